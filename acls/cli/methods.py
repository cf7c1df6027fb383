"""List every training method: its type in the paper's terms, where it comes from, and its fields with their defaults.

AR smooths adaptively, CR smooths under a condition, and ACR does both. The other methods change the data term itself.

Examples:
  acls methods
  acls methods --json

"""

import argparse

from acls.cli.common import add_shared, say


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``acls methods``."""
    add_shared(parser, json="print one JSON object, by method")


def run(args: argparse.Namespace) -> None:
    """Print the list."""
    from acls.study.methods import list_methods

    say(args, list_methods())
