"""Say which epoch of a run to keep, by which rule, from its numbers on the validation part.

The front holds the epochs that no other beats in accuracy and ECE at once. The ECE after temperature is that of the
validation samples which the temperature was fitted on, and so a little too low.

Examples:
  acls advise runs/digits_cnn-ACLS-1
  acls advise runs/digits_cnn-ACLS-1 --figure front.png

"""

from __future__ import annotations

import argparse

from acls.cli.common import add_shared, check_out, say
from acls.report.tables import Table, percent


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``acls advise``."""
    parser.add_argument("folder", metavar="RUN", help="folder of a run")
    add_shared(parser, "json", "force", figure="draw accuracy against ECE: .png, .svg or .pdf")


def run(args: argparse.Namespace) -> None:
    """Print the rules and what they keep."""
    from acls.study.advisor import advise, read_history

    check_out(args, args.figure, "figure")
    advice = advise(read_history(args.folder))
    if args.figure:
        from acls.report.figures import sweeps

        sweeps.save_front({"epochs": [(one.accuracy, one.ece) for one in advice.epochs]}, args.figure)
    titles = ["keep by", "epoch", "accuracy %", "NLL", "ECE %", "ECE % after T", "good for"]
    table = Table(titles, align="lrrrrrl", optional=("good for",))
    for rule in advice.rules:
        one = rule.keep
        numbers = (percent(one.accuracy), f"{one.nll:.4f}", percent(one.ece), percent(one.ece_after_temperature))
        table.add(rule.name, str(one.epoch), *numbers, rule.when)
    low, high = (end(one.ece for one in advice.close) for end in (min, max))
    kept = (
        f"Keep epoch {advice.rules[-1].keep.epoch}: of {len(advice.epochs)} epochs, {len(advice.close)} are within a "
        f"standard error of the best accuracy (n = {advice.epochs[0].n:,}), with an ECE from {percent(low)} to "
        f"{percent(high)} %, and this one has their lowest NLL."
    )
    front = "front of accuracy and ECE: epochs " + ", ".join(str(one.epoch) for one in advice.front)
    select = "`acls train --select nll` keeps the epoch of the lowest NLL."
    say(args, advice, [kept, "", table, "", front, select])
