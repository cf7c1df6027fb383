"""Fit calibrators to validation predictions, judge them by cross-validation, recommend one and save it.

Each method is fitted to folds of VAL and measured on the fold left out, so its numbers are held-out. The advice is to
keep the model as it is unless the held-out NLL falls by more than its standard error and the ECE does not rise.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from acls.cli.inputs import NAMES, add_columns, columns_of, with_progress
from acls.cli.output import add_force, check_out, say, show_table
from acls.errors import InputError
from acls.options import number

if TYPE_CHECKING:
    from acls.predictions import Predictions
    from acls.results import Advice, Candidate, Differences, Result

    Tested = tuple[Mapping[str, Result], Differences]

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
        "--bootstrap",
        type=number(int, "[1, 1e6]"),
        default=1000,
        metavar="N",
        help="draws for floors on TEST",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object, with fractions, not percent")
    parser.add_argument("--markdown", action="store_true", help="print the tables as Markdown")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    add_columns(parser)


def run(args: argparse.Namespace) -> int:
    """Fit, judge, show, save."""
    if args.out is not None and not args.out.endswith(".safetensors"):
        raise InputError(f"cannot write {args.out}: name a file that ends in .safetensors")
    if args.out is not None:
        check_out(args, args.out, "calibrator", args.val, args.test)
    from acls.calibrators import make_calibrators
    from acls.results.recommending import before_and_after, check_pointwise, recommend

    calibrators = make_calibrators(args.method)
    for calibrator in calibrators:
        check_pointwise(calibrator)
    advice = recommend(_read(args), calibrators, folds=args.folds)
    tested = None
    if args.test:
        from acls.predictions import open_batches

        batches = open_batches(args.test, columns_of(args), ignore_index=args.ignore_index)
        shown = with_progress(batches, f"reading {args.test}", quiet=args.quiet)
        settings = {"replicates": args.bootstrap, "ignore_index": args.ignore_index}
        tested = before_and_after(shown, advice.candidates, **settings)
    saved = advice.chosen or (advice.best if args.force else None)
    if args.out is not None and saved is not None:
        saved.calibrator.save(args.out)
    if args.json:
        say(args, {**_as_json(advice, tested), "saved": args.out if saved else None})
    else:
        _print(args, advice, tested, saved)
    return 0


def _read(args: argparse.Namespace) -> Predictions:
    from acls.predictions import ZERO, Predictions, open_batches

    batches = open_batches(args.val, columns_of(args), ignore_index=args.ignore_index)
    val = Predictions.concat(list(with_progress(batches, f"reading {args.val}", quiet=args.quiet)))
    val = val.labelled(args.ignore_index)
    zeros = int((val.scores == 0).sum()) if val.kind == "probs" and val.scores is not None else 0
    if zeros:
        told = f"{zeros:,} probabilities in {args.val} are 0, so they were rounded; each is taken for {ZERO:g}"
        print(f"acls calibrate: {told}", file=sys.stderr)
    return val


def _print(args: argparse.Namespace, advice: Advice, tested: Tested | None, saved: Candidate | None) -> None:
    """The advice, then what it rests on."""
    from acls.report.results import judged_table, tested_table
    from acls.report.tables import paragraph

    print(paragraph(advice.text), end="\n\n")
    show_table(args, judged_table(advice))
    print()
    for one in advice.candidates:
        for warning in one.calibrator.report.warnings:
            print(paragraph(f"{one.name}: {warning}."))
        if not one.use and not one.doubts:
            print(paragraph(f"{one.name}: {one.why}."))
    if tested is not None:
        print(f"\non {args.test}, which no method has seen:\n")
        show_table(args, tested_table(*tested))
        print(paragraph("\np, NLL and p, ECE: of no change in that metric against the model as it is."))
    if args.out is not None:
        use = f"{saved.name} is saved as {args.out}; use it: acls apply {args.out} IN OUT" if saved else ""
        print(paragraph(f"\n{use or 'Nothing is saved: --force saves the best of them all the same.'}"))


def _as_json(advice: Advice, tested: Tested | None) -> dict[str, Any]:
    methods = [
        {
            "method": one.name,
            "settings": one.calibrator.settings(),
            "parameters": one.parameters,
            "use": one.use,
            "why": one.why,
            "held_out": asdict(one.judgement),
            "fit": asdict(one.calibrator.report),
        }
        for one in advice.candidates
    ]
    chosen = advice.chosen.name if advice.chosen else None
    plain: dict[str, Any] = {"recommended": chosen, "text": advice.text, "methods": methods}
    if tested is not None:
        results, changes = tested
        plain["test"] = {name: result.as_json() for name, result in results.items()}
        plain["changes"] = {
            name: {metric: vars(one) for metric, one in found.items()} for name, found in changes.comparisons.items()
        }
    return plain
