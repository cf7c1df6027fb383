"""Show the label that each method really trains towards, at given logits and a true class.

The gradient of a loss is softmax(z) minus a label. For cross-entropy that is the one-hot label; every other method
smooths it: it lowers the label at a pivot class (the predicted class ŷ or the true class y) by f where its indicator C
holds, and raises it at the other classes. Methods that look at the whole batch see a batch of this one sample.

Examples:
  acls explain
  acls explain --logits 9,2,1,-3 --label 0
  acls explain --logits=-1,2,8 --label 2 --methods "CE, ACLS, ACLS(form=paper)"
  acls explain --figure figure1.png

"""

from __future__ import annotations

import argparse
import math
from typing import Any

from acls.cli.common import Line, Parts, add_shared, check_out, say
from acls.errors import InputError
from acls.options import number
from acls.report.tables import Table

LOGITS = "9,2,1,-3"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``acls explain``."""
    parser.add_argument("--logits", metavar="Z1,Z2,...", default=LOGITS, help="the logits, separated by commas")
    parser.add_argument("--label", type=number(int, "[0, inf)"), default=0, metavar="Y", help="true class, from 0 on")
    parser.add_argument("--methods", default="all", help='"paper", "all", or methods as in "CE, ACLS(margin=6)"')
    figure = "draw the paper's Figure 1 instead: .png, .svg or .pdf"
    add_shared(parser, "force", json="print one JSON object, by method", figure=figure)


def run(args: argparse.Namespace) -> None:
    """Print the tables, or draw the figure."""
    try:
        logits = [float(z) for z in args.logits.split(",")]
    except ValueError:
        logits = []
    if len(logits) < 2 or not all(map(math.isfinite, logits)):
        raise InputError(f"--logits: expected two finite numbers or more, separated by commas, got {args.logits!r}")
    if not 0 <= args.label < len(logits):
        raise InputError(f"--label: expected a class from 0 to {len(logits) - 1}, got {args.label}")
    if args.figure:
        check_out(args, args.figure, "figure")
        from acls.report.figures.regulariser import DEFAULT_LOGITS, smoothing_figure
        from acls.report.figures.style import save

        given = args.logits != LOGITS
        save(smoothing_figure(logits, args.label) if given else smoothing_figure(DEFAULT_LOGITS), args.figure)
        print(f"drawn to {args.figure}")
        return
    from acls.losses import make_losses
    from acls.losses.rule import explain

    found = {repr(loss): explain(loss, logits, args.label) for loss in make_losses(args.methods)}
    say(args, found, _parts(found, logits, args.label))


def _parts(found: dict[str, dict[str, Any]], logits: list[float], label: int) -> Parts:
    import torch

    p = torch.tensor(logits, dtype=torch.float64).softmax(0)
    shown = ", ".join(f"{z:g}" for z in logits)
    yield Line(f"Logits {shown}; true class {label}, predicted {int(p.argmax())}.\n")
    table = Table(["trains towards", *(f"class {k}" for k in range(len(logits))), "sum"])
    table.add("(softmax)", *(f"{value:.4f}" for value in p.tolist()), "1")
    for method, one in found.items():
        total = "1" if one["sums_to_one"] else f"{one['sum']:.4f} !"
        table.add(method, *(f"{value:.4f}" for value in one["label"]), total)
    yield table
    if not all(one["sums_to_one"] for one in found.values()):
        yield "! does not sum to 1: the gradient does not sum to zero over the classes, and the logits can drift."
    ruled = {method: one for method, one in found.items() if "formula" in one}
    if len(ruled) < len(found):
        without = ", ".join(method for method in found if method not in ruled)
        yield from ("", f"Not functions of one sample, so without a row below: {without}.")
    if not ruled:
        return
    yield Line("\nThe label is lowered by f C at the pivot class and raised by f C at the others:\n")
    table = Table(["method", "pivot", *(f"f, C {k}" for k in range(len(logits)))], align="ll" + "r" * len(logits))
    formulas = []
    for method, one in ruled.items():
        formula = one["formula"]
        pairs = [f"{f:.4f}, {c}" for f, c in zip(one["f"], one["C"], strict=True)]
        table.add(method, f"{formula['pivot']} = {one['pivot']}", *pairs)
        sides = [
            f"f {where} is {formula[f'f {where}']} if {formula[f'C {where}']}".removesuffix(" if 1")
            for where in ("at the pivot", "elsewhere")
        ]
        formulas.append(f"{method}: {'; '.join(sides)}.")
    yield from (table, "")
    yield from formulas
