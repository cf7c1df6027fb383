"""Show the label that each method really trains towards, at given logits and a true class.

The gradient of a loss is softmax(z) minus a label. For cross-entropy that is the one-hot label; every other method
smooths it: it lowers the label at a pivot class (the predicted class ŷ or the true class y) by f where its indicator C
holds, and raises it at the other classes. Methods that look at the whole batch see a batch of this one sample.

Examples:
  acls explain
  acls explain --logits 9,2,1,-3 --label 0
  acls explain --logits=-1,2,8 --label 2 --methods "CE, MbLS(margin=6), ACLS(margin=6), ACLS(margin=6, form=released)"
  acls explain --figure figure1.png

"""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING, Any

from acls.cli.common import add_shared, check_out, say, say_paragraphs, show_table
from acls.errors import InputError
from acls.options import number

if TYPE_CHECKING:
    from acls.losses import Loss


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``acls explain``."""
    parser.add_argument("--logits", metavar="Z1,Z2,...", default="9,2,1,-3", help="the logits, separated by commas")
    parser.add_argument(
        "--label", type=number(int, "[0, inf)"), default=0, metavar="Y", help="the true class, counted from 0"
    )
    parser.add_argument("--methods", default="all", help='"paper", "all", or methods as in "CE, ACLS(margin=6)"')
    figure = "draw the paper's Figure 1 instead: .png, .svg or .pdf"
    add_shared(parser, "force", json="print one JSON object, by method", figure=figure)


def run(args: argparse.Namespace) -> None:
    """Print the tables, or draw the figure."""
    try:
        logits = [float(z) for z in args.logits.split(",")]
    except ValueError:
        raise InputError(f"--logits: expected numbers separated by commas, got {args.logits!r}") from None
    if len(logits) < 2 or not all(map(math.isfinite, logits)):
        raise InputError(f"--logits: expected at least two finite numbers, one per class, got {args.logits!r}")
    if not 0 <= args.label < len(logits):
        raise InputError(f"--label: expected a class from 0 to {len(logits) - 1}, got {args.label}")
    if args.figure:
        check_out(args, args.figure, "figure")
        _draw(args, logits)
        return
    from acls.losses import make_losses

    rows = [_explain(loss, logits, args.label) for loss in make_losses(args.methods)]
    if args.json:
        say(args, {row.pop("method"): row for row in rows})
    else:
        _print(args, rows, logits)


def _explain(loss: Loss, logits: list[float], label: int) -> dict[str, Any]:
    import torch

    from acls.losses import effective_label

    z, y = torch.tensor([logits], dtype=torch.float64), torch.tensor([label])
    loss.prepare(n_train=1, n_classes=len(logits))
    index = torch.tensor([0]) if loss.needs_index else None
    # Rounding to what a float64 softmax is worth also turns -0.0000 into 0.0000.
    aims_at = effective_label(loss.double(), z, y, index=index)[0].round(decimals=12) + 0.0
    row: dict[str, Any] = {"method": repr(loss), "type": loss.about.kind, "label": aims_at.tolist()}
    row["sum"] = float(aims_at.sum())
    row["sums_to_one"] = abs(float(aims_at.sum()) - 1) < 1e-9
    rule = loss.rule(len(logits))
    if rule is not None:
        from acls.losses.rule import View

        at = View(z, y)
        pivot = int(at.predicted) if rule.pivot == "predicted" else label
        sides = [rule.down if k == pivot else rule.up for k in range(len(logits))]
        row["pivot"] = pivot
        row["f"] = [float(side.f(at).expand_as(z)[0, k].round(decimals=12) + 0.0) for k, side in enumerate(sides)]
        row["C"] = [int(side.when(at).expand_as(z)[0, k]) for k, side in enumerate(sides)]
        row["formula"] = {
            "pivot": "ŷ" if rule.pivot == "predicted" else "y",
            "f at the pivot": rule.down.formula,
            "C at the pivot": rule.down.condition,
            "f elsewhere": rule.up.formula,
            "C elsewhere": rule.up.condition,
        }
    return row


def _print(args: argparse.Namespace, rows: list[dict[str, Any]], logits: list[float]) -> None:
    import torch

    from acls.report.tables import Table

    p = torch.tensor(logits, dtype=torch.float64).softmax(0)
    classes = range(len(logits))
    print(f"Logits {', '.join(f'{z:g}' for z in logits)}; true class {args.label}, predicted {int(p.argmax())}.\n")
    table = Table(["trains towards", *(f"class {k}" for k in classes), "sum"])
    table.add("(softmax)", *(f"{value:.4f}" for value in p.tolist()), "1")
    for row in rows:
        told = "1" if row["sums_to_one"] else f"{row['sum']:.4f} !"
        table.add(str(row["method"]), *(f"{value:.4f}" for value in row["label"]), told)
    show_table(args, table)
    if not all(row["sums_to_one"] for row in rows):
        say_paragraphs(
            "! sums to something else: the gradient does not sum to zero over the classes, and the logits can drift."
        )
    without = [str(row["method"]) for row in rows if "formula" not in row]
    if without:
        print(f"\nNot functions of one sample, so without a row here: {', '.join(without)}.")
    if len(without) == len(rows):
        return
    print("\nThe label is lowered by f C at the pivot class and raised by f C at the others:\n")
    table = Table(["method", "pivot", *(f"f, C {k}" for k in classes)], align="ll" + "r" * len(logits))
    formulas = []
    for row in rows:
        formula = row.get("formula")
        if isinstance(formula, dict):
            pairs = [f"{f:.4f}, {c}" for f, c in zip(row["f"], row["C"], strict=True)]
            sides = [
                f"f {where} is {formula[f'f {where}']} if {formula[f'C {where}']}".removesuffix(" if 1")
                for where in ("at the pivot", "elsewhere")
            ]
            table.add(str(row["method"]), f"{formula['pivot']} = {row['pivot']}", *pairs)
            formulas.append(f"{row['method']}: {'; '.join(sides)}.")
    show_table(args, table)
    say_paragraphs("", *formulas)


def _draw(args: argparse.Namespace, logits: list[float]) -> None:
    from acls.report.figures.regulariser import DEFAULT_LOGITS, smoothing_figure
    from acls.report.figures.style import save

    given = args.logits != "9,2,1,-3"
    save(smoothing_figure(logits, args.label) if given else smoothing_figure(DEFAULT_LOGITS), args.figure)
    print(f"drawn to {args.figure}")
