"""List the recipes, or show one whole; also the networks and the data sets."""

from __future__ import annotations

import argparse
import inspect
import json
import re
import textwrap

from acls.errors import require
from acls.options import to_plain
from acls.recipes import RECIPES, find

EXAMPLE = """\
examples:
  acls recipes
  acls recipes cifar10_resnet50 > mine.yaml
  acls recipes --models
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("name", nargs="?", metavar="RECIPE", help="show this recipe as YAML, with what it is for")
    parser.add_argument("--models", action="store_true", help="list the networks instead")
    parser.add_argument("--data", action="store_true", help="list the data sets instead")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")


def run(args: argparse.Namespace) -> int:
    """Print the list, or the recipe."""
    if args.models:
        from acls.models import CATALOGUE as models

        _list(args, {**models, "timm/NAME": "any of timm's networks"})
    elif args.data:
        from acls.data import CATALOGUE as sets

        _list(args, {name: known.about for name, known in sets.items()})
    elif args.name and args.json:
        print(json.dumps(to_plain(find(args.name)), indent=2))
    elif args.name:
        recipe = find(args.name)
        for line in (inspect.getdoc(RECIPES[args.name]) or "").splitlines():
            print(f"# {line}".rstrip())
        print(require("yaml", extra="train").safe_dump(to_plain(recipe), sort_keys=False), end="")
    else:
        _list(args, {name: (inspect.getdoc(recipe) or "").splitlines()[0] for name, recipe in RECIPES.items()})
    return 0


def _list(args: argparse.Namespace, about: dict[str, str]) -> None:
    if args.json:
        print(json.dumps(about, indent=2))
        return
    for name, text in about.items():
        plain = re.sub(r" ``.*?``", "", text)  # the command, which `acls recipes NAME` shows
        print(textwrap.fill(f"{name}: {plain}", 79, subsequent_indent="    "))
