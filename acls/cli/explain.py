"""Show the label that each method really trains towards, for given logits and a true class.

The gradient of a loss is softmax(z) minus a label. For cross-entropy that is the one-hot label; every other method
smooths it: if its indicator C holds, it lowers the label of a pivot class (the predicted class ŷ or the true class y)
by f and raises the labels of the other classes. Methods that use the whole batch get a batch with this one sample.

Examples:
  acls explain
  acls explain --logits 9,2,1,-3 --label 0
  acls explain --logits=-1,2,8 --label 2 --methods "CE, ACLS, ACLS(form=paper)"
  acls explain --figure figure1.png

"""

import argparse

from acls.cli.common import add_shared, check_out, say
from acls.errors import InputError
from acls.options import convert, number

LOGITS = "9,2,1,-3"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``acls explain``."""
    parser.add_argument("--logits", metavar="Z1,Z2,...", default=LOGITS, help="the logits, separated by commas")
    parser.add_argument(
        "--label", type=number(int, "[0, inf)"), default=0, metavar="Y", help="true class, starting at 0"
    )
    parser.add_argument("--methods", default="all", help='"paper", "all", or methods as in "CE, ACLS(margin=6)"')
    figure = "draw the paper's Figure 1 instead: .png, .svg or .pdf"
    add_shared(parser, "force", json="print one JSON object, by method", figure=figure)


def run(args: argparse.Namespace) -> None:
    """Print the tables, or draw the figure."""
    try:
        logits = list(convert(args.logits, tuple[float, ...]))
    except ValueError:
        logits = []
    if len(logits) < 2:
        raise InputError(f"--logits: expected two finite numbers or more, separated by commas, got {args.logits!r}")
    if not 0 <= args.label < len(logits):
        raise InputError(f"--label: expected a class from 0 to {len(logits) - 1}, got {args.label}")
    if args.figure:
        check_out(args, args.figure, "figure")
        from acls.report.figures.regulariser import DEFAULT_LOGITS, smoothing_figure
        from acls.report.figures.style import save

        given = args.logits != LOGITS
        save(smoothing_figure(logits, args.label) if given else smoothing_figure(DEFAULT_LOGITS), args.figure)
        say(args, {"figure": args.figure}, f"drawn to {args.figure}")
        return
    from acls.losses import make_losses
    from acls.losses.rule import explain_all

    say(args, explain_all(make_losses(args.methods), logits, args.label))
