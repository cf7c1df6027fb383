"""List the recipes, or show one whole; also the networks and the data sets.

Examples:
  acls recipes
  acls recipes cifar10_resnet50 > mine.yaml
  acls recipes --models

"""

from __future__ import annotations

import argparse
import inspect
import re

from acls.cli.common import Line, add_shared, say
from acls.errors import require
from acls.options import to_plain
from acls.recipes import RECIPES, find


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``acls recipes``."""
    parser.add_argument("name", nargs="?", metavar="RECIPE", help="show this recipe as YAML, with what it is for")
    parser.add_argument("--models", action="store_true", help="list the networks instead")
    parser.add_argument("--data", action="store_true", help="list the data sets instead")
    add_shared(parser, json="print one JSON object instead")


def run(args: argparse.Namespace) -> None:
    """Print the list, or the recipe."""
    if args.name and not (args.models or args.data):
        plain = to_plain(find(args.name))
        about = [f"# {line}".rstrip() for line in (inspect.getdoc(RECIPES[args.name]) or "").splitlines()]
        text = require("yaml", extra="train").safe_dump(plain, sort_keys=False).rstrip()
        say(args, plain, map(Line, [*about, text]))
        return
    if args.models:
        from acls.models import CATALOGUE as models

        about_all = {**models, "timm/NAME": "any of timm's networks"}
    elif args.data:
        from acls.data import CATALOGUE as sets

        about_all = {name: known.about for name, known in sets.items()}
    else:
        about_all = {name: (inspect.getdoc(recipe) or "").splitlines()[0] for name, recipe in RECIPES.items()}
    # Without the command in it, which `acls recipes NAME` shows.
    plainly = (f"{name}: {re.sub(r' ``.*?``', '', text)}" for name, text in about_all.items())
    say(args, about_all, plainly)
