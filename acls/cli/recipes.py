"""List the recipes, or show one in full; also list the networks and the data sets.

Examples:
  acls recipes
  acls recipes cifar10_resnet50 > mine.yaml
  acls recipes --models

"""

import argparse

from acls.cli.common import add_shared, say
from acls.options import to_plain
from acls.recipes import RECIPES, about, explained, find
from acls.report.tables import paragraph


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``acls recipes``."""
    parser.add_argument("name", nargs="?", metavar="RECIPE", help="show this recipe as YAML, with its purpose")
    parser.add_argument("--models", action="store_true", help="list the networks instead")
    parser.add_argument("--data", action="store_true", help="list the data sets instead")
    add_shared(parser, json="print one JSON object instead")


def run(args: argparse.Namespace) -> None:
    """Print the list, or the recipe."""
    if args.name and not (args.models or args.data):
        say(args, to_plain(find(args.name)), "" if args.json else explained(args.name))
        return
    if args.models:
        from acls.models import CATALOGUE as models

        listed = {**models, "timm/NAME": "any of timm's networks"}
    elif args.data:
        from acls.data import CATALOGUE as sets

        listed = {name: known.about for name, known in sets.items()}
    else:
        listed = {name: about(name) for name in RECIPES}
    say(args, listed, "\n".join(paragraph(f"{name}: {line}") for name, line in listed.items()))
