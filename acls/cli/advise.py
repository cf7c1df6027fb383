"""Say which epoch of a run to keep, by which rule, from its numbers on the validation part.

The front holds the epochs that no other beats in accuracy and ECE at once. The ECE after temperature is that of the
validation samples which the temperature was fitted on, and so a little too low.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from acls.cli.output import add_force, check_out

EXAMPLE = """\
examples:
  acls advise runs/digits_cnn-ACLS-1
  acls advise runs/digits_cnn-ACLS-1 --figure front.png
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``acls advise``."""
    parser.add_argument("folder", metavar="RUN", help="folder of a run")
    parser.add_argument("--figure", metavar="FILE", help="draw accuracy against ECE to a png, svg or pdf file")
    parser.add_argument("--json", action="store_true", help="print one JSON object, with fractions, not percent")
    add_force(parser)


def run(args: argparse.Namespace) -> int:
    """Print the rules and what they keep."""
    from acls.report.tables import Table, paragraph, percent
    from acls.study.advisor import advise, read_history

    if args.figure:
        check_out(args, args.figure, "figure")
    advice = advise(read_history(args.folder))
    if args.figure:
        from acls.report.figures import pareto
        from acls.report.figures.style import canvas, save

        figure, (ax,) = canvas()
        pareto.draw(pareto.prepare({"epochs": [(one.accuracy, one.ece) for one in advice.epochs]}), ax)
        save(figure, args.figure)
    if args.json:
        print(json.dumps(asdict(advice), indent=2))
        return 0
    table = Table(["keep by", "epoch", "accuracy %", "NLL", "ECE %", "ECE % after T", "good for"])
    for rule in advice.rules:
        one = rule.keep
        numbers = (percent(one.accuracy), f"{one.nll:.4f}", percent(one.ece), percent(one.ece_after_temperature))
        table.add(rule.name, str(one.epoch), *numbers, rule.when)
    table.align = "lrrrrrl"
    print(table.text(), "\n")
    print("front of accuracy and ECE: epochs " + ", ".join(str(one.epoch) for one in advice.front))
    low, high = (end(one.ece for one in advice.close) for end in (min, max))
    print(
        paragraph(
            f"Of {len(advice.epochs)} epochs, {len(advice.close)} are within a standard error of the best accuracy (n "
            f"= {advice.epochs[0].n:,}); their ECE goes from {percent(low)} to {percent(high)} %. `acls train --select "
            "nll` keeps the epoch of least NLL."
        )
    )
    return 0
