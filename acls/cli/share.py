"""Copy a study without its weights, to send or publish it; the copy still gives the page, tables and figures.

Outputs are stored in half precision, metrics are copied unchanged, and paths are reduced to file names. Run the same
command again to add runs that have finished since; nothing in the copy is replaced.

Examples:
  acls share studies/cifar10_mini shared/cifar10_mini
  acls share studies/voc_mini shared/voc_mini --no-outputs

"""

import argparse

from acls.cli.common import add_shared, say


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``acls share``."""
    parser.add_argument("study", metavar="STUDY", help="folder that acls compare wrote")
    parser.add_argument("out", metavar="OUT", help="folder for the copy: a new one, or one to add runs to")
    text = "numbers only, with intervals of differences: the page will have no diagrams"
    parser.add_argument("--no-outputs", action="store_true", help=text)
    add_shared(parser, "json", quiet="print nothing but errors")


def run(args: argparse.Namespace) -> None:
    """Copy the study, and print what the copy contains."""
    from acls.study.share import share

    say(args, share(args.study, args.out, outputs=not args.no_outputs), "" if args.quiet else None)
