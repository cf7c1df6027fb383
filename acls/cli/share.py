"""Copy a study without its weights, small enough to send or to publish: the page, tables and figures come out of it.

Outputs are kept in half precision, numbers as they were measured, and of paths only the file's name. Runs that finished
since are added to a copy by the same command; nothing in it is replaced.

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
    """Copy, and say what there is."""
    from acls.study.share import share

    say(args, share(args.study, args.out, outputs=not args.no_outputs), "" if args.quiet else None)
