"""Fit calibrators to validation predictions, judge them by cross-validation, recommend one and save it.

Each method is fitted to folds of VAL and measured on the fold left out, so its numbers are held-out. The advice is to
keep the model as it is unless the held-out NLL falls by more than its standard error and the ECE does not rise.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from acls.cli.apply import check_pointwise
from acls.cli.inputs import NAMES, add_columns, columns_of, with_progress
from acls.cli.output import add_force, check_out
from acls.errors import InputError
from acls.options import number
from acls.storage import finite

if TYPE_CHECKING:
    from acls.calibrators import Calibrator, Judgement
    from acls.evaluation import Evaluation, Worth
    from acls.metrics.intervals import Comparison
    from acls.predictions import Predictions
    from acls.report.tables import Table

EXAMPLE = f"""\
examples:
  acls calibrate val.npz --test test.npz --out calibrator.safetensors
  acls calibrate val.npz --method temperature,vector,isotonic
  acls calibrate val.npz --method 'Vector(space=log_probs), Temperature(objective=ece)'
  acls calibrate val.npz --method all --test test.npz
  acls calibrate pixels.npz --image image_index --method temperature,selective

{NAMES}"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``acls calibrate``."""
    parser.add_argument("val", metavar="VAL", help="predictions to fit to: .npz, .safetensors, .parquet, .csv")
    parser.add_argument(
        "--method",
        default="temperature",
        metavar="NAME[,NAME...]|all",
        help="calibrators to try, with fields as in Histogram(kind=mass)",
    )
    parser.add_argument("--test", metavar="TEST", help="other predictions of the same model, to show before and after")
    parser.add_argument("--out", metavar="FILE", help="save the recommended calibrator (.safetensors)")
    add_force(parser)
    parser.add_argument("--folds", type=number(int, "[2, 1000]"), default=5, help="folds of the cross-validation")
    parser.add_argument(
        "--bootstrap", type=number(int, "[1, 1e6]"), default=1000, metavar="N", help="resamples for intervals on TEST"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object, with fractions, not percent")
    parser.add_argument("--markdown", action="store_true", help="print the tables as Markdown")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    add_columns(parser)


@dataclass
class _Candidate:
    name: str
    calibrator: Calibrator
    judgement: Judgement


def run(args: argparse.Namespace) -> int:
    """Fit, judge, show, save."""
    from acls.calibrators import make_calibrators

    calibrators = make_calibrators(args.method)
    for calibrator in calibrators:
        check_pointwise(calibrator)
    if args.out is not None and not args.out.endswith(".safetensors"):
        raise InputError(f"cannot write {args.out}: name a file that ends in .safetensors")
    if args.out is not None:
        check_out(args, args.out, "calibrator", args.val, args.test)
    candidates = _fitted(args, calibrators)
    chosen = _recommended(candidates)
    worths, comparisons = _tested(args, candidates) if args.test else ({}, {})
    saved = chosen or min(candidates, key=lambda one: one.judgement.after.nll)
    if args.out is not None:
        saved.calibrator.save(args.out)
    if args.json:
        print(json.dumps(finite(_as_json(candidates, chosen, worths, comparisons)), indent=2, allow_nan=False))
        return 0
    _show(args, _judged_table(candidates))
    print()
    _print_words(candidates, chosen)
    if worths:
        print(f"\non {args.test}, which no method has seen:\n")
        _show(args, _test_table(worths, comparisons))
    if args.out is not None:
        advice = "" if chosen else ", although the advice is to keep the model as it is"
        print(f"\n{saved.name} is saved as {args.out}{advice}; use it: acls apply {args.out} IN OUT")
    return 0


def _fitted(args: argparse.Namespace, calibrators: list[Calibrator]) -> list[_Candidate]:
    from acls.calibrators import judge
    from acls.predictions import ZERO, Predictions, open_batches
    from acls.spec import written

    batches = open_batches(args.val, columns_of(args), ignore_index=args.ignore_index)
    val = Predictions.concat(list(with_progress(batches, f"reading {args.val}", quiet=args.quiet)))
    val = val.labelled(args.ignore_index)
    logits = val.logits()
    zeros = int((val.scores == 0).sum()) if val.kind == "probs" and val.scores is not None else 0
    if zeros:
        told = f"{zeros:,} probabilities in {args.val} are 0, so they were rounded; each is taken for {ZERO:g}"
        print(f"acls calibrate: {told}", file=sys.stderr)
    candidates = []
    target = val.target(args.ignore_index)
    for calibrator in calibrators:
        calibrator.stated = val.scores is None
        judgement = judge(calibrator, logits, target, folds=args.folds, group=val.image)
        calibrator.fit(logits, target, group=val.image)
        candidates.append(_Candidate(written(calibrator), calibrator, judgement))
    return candidates


def _recommended(candidates: list[_Candidate]) -> _Candidate | None:
    """Return the simplest of those whose held-out NLL is within a standard error of the best; None: keep the model."""
    useful = [one for one in candidates if one.judgement.use]
    if not useful:
        return None
    best = min(useful, key=lambda one: one.judgement.after.nll).judgement
    close = [one for one in useful if one.judgement.after.nll <= best.after.nll + best.nll_change_se]
    return min(close, key=lambda one: sum(value.numel() for value in one.calibrator.state_dict().values()))


def _tested(
    args: argparse.Namespace, candidates: list[_Candidate]
) -> tuple[dict[str, Worth], dict[str, dict[str, Comparison]]]:
    from acls.evaluation import Evaluation
    from acls.predictions import open_batches

    batches = open_batches(args.test, columns_of(args), ignore_index=args.ignore_index)
    found: dict[str, Evaluation] = {}
    for batch in with_progress(batches, f"reading {args.test}", quiet=args.quiet):
        for name, calibrated in _before_and_after(batch, candidates):
            if name not in found:
                found[name] = Evaluation(by_image=batch.image is not None, ignore_index=args.ignore_index)
            found[name].add(calibrated)
    worths = {name: one.worth(args.bootstrap) for name, one in found.items()}
    comparisons = {}
    if worths[AS_IT_IS].intervals:  # there are none for a single sample or image
        comparisons = {one.name: found[one.name].compare(found[AS_IT_IS], args.bootstrap) for one in candidates}
    return worths, comparisons


AS_IT_IS = "as it is"


def _before_and_after(batch: Predictions, candidates: list[_Candidate]) -> list[tuple[str, Predictions]]:
    return [(AS_IT_IS, batch), *((one.name, batch.calibrated(one.calibrator)) for one in candidates)]


def _judged_table(candidates: list[_Candidate]) -> Table:
    from acls.report.tables import Table, percent

    first = candidates[0].judgement.before
    table = Table(["held out in VAL", "NLL", "change", "± s.e.", "ECE %", "change", "± s.e.", "advice"])
    table.add(AS_IT_IS, f"{first.nll:.4f}", "", "", percent(first.ece))
    for one in candidates:
        told = one.judgement
        table.add(
            one.name,
            f"{told.after.nll:.4f}",
            f"{told.after.nll - told.before.nll:+.4f}",
            f"{told.nll_change_se:.4f}",
            percent(told.after.ece),
            f"{100 * (told.after.ece - told.before.ece):+.2f}",
            percent(told.ece_change_se),
            "use" if told.use else "keep as it is",
        )
    return table


def _print_words(candidates: list[_Candidate], chosen: _Candidate | None) -> None:
    from acls.report.tables import paragraph

    for one in candidates:
        for warning in one.calibrator.report.warnings:
            print(paragraph(f"{one.name}: {warning}."))
        if not one.judgement.use:
            print(paragraph(f"{one.name}: {one.judgement.why}."))
    if chosen is None:
        print(paragraph("Recommended: keep the model as it is."))
        return
    reason = chosen.judgement.why.removeprefix("use it: ")
    if len(candidates) > 1:
        reason += "; none of those within a standard error of the best is simpler"
    print(paragraph(f"Recommended: {_described(chosen.calibrator)}: {reason}."))


def _described(calibrator: Calibrator) -> str:
    scalars = [f"{name} = {float(value):.4g}" for name, value in calibrator.state_dict().items() if value.numel() == 1]
    return f"{calibrator!r}" + (f" with {', '.join(scalars)}" if scalars else "")


def _test_table(worths: dict[str, Worth], comparisons: dict[str, dict[str, Comparison]]) -> Table:
    from acls.evaluation import show_p
    from acls.report.tables import Table, percent

    table = Table(["", "accuracy %", "NLL", "95 % interval", "ECE %", "95 % interval", "noise floor", "p of no change"])
    for name, worth in worths.items():
        nll, ece = worth.intervals.get("nll"), worth.intervals.get("ece")
        table.add(
            name,
            percent(worth.summary["accuracy"]),
            f"{worth.summary['nll']:.4f}",
            f"{nll.low:.4f} .. {nll.high:.4f}" if nll else "",
            percent(worth.summary["ece"]),
            f"{percent(ece.low)} .. {percent(ece.high)}" if ece else "",
            percent(worth.floors["ece"].mean),
            show_p(comparisons[name]["ece"].p).removeprefix("= ") if name in comparisons else "",
        )
    return table


def _show(args: argparse.Namespace, table: Table) -> None:
    print(table.markdown() if args.markdown else table.text())


def _as_json(
    candidates: list[_Candidate],
    chosen: _Candidate | None,
    worths: dict[str, Worth],
    comparisons: dict[str, dict[str, Comparison]],
) -> dict[str, Any]:
    methods = [
        {
            "method": one.name,
            "settings": one.calibrator.settings(),
            "held_out": asdict(one.judgement),
            "fit": asdict(one.calibrator.report),
        }
        for one in candidates
    ]
    plain: dict[str, Any] = {"recommended": chosen.name if chosen else None, "methods": methods}
    if worths:
        plain["test"] = {name: worth.as_json() for name, worth in worths.items()}
        plain["changes"] = {
            name: {metric: asdict(one) for metric, one in metrics.items()} for name, metrics in comparisons.items()
        }
    return plain
