"""Recommend which epoch of a run to keep, by several rules, from its metrics on the validation part.

The front holds the epochs for which no other epoch is better in both accuracy and ECE. The ECE after temperature
scaling uses the validation samples on which the temperature was fitted, so it is slightly too low.

Examples:
  acls advise runs/digits_cnn-ACLS-1
  acls advise runs/digits_cnn-ACLS-1 --figure front.png

"""

import argparse

from acls.cli.common import add_shared, check_out, say


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``acls advise``."""
    parser.add_argument("folder", metavar="RUN", help="folder of a run")
    add_shared(parser, "json", "force", figure="draw accuracy against ECE: .png, .svg or .pdf")


def run(args: argparse.Namespace) -> None:
    """Print the rules and the epochs that they keep."""
    from acls.study.advisor import advise

    check_out(args, args.figure, "figure")
    advice = advise(args.folder)
    if args.figure:
        from acls.report.figures import sweeps

        sweeps.save_front("epochs", advice.epochs, args.figure)
    say(args, advice)
