"""Fit calibrators to validation predictions, judge them by cross-validation, recommend one and save it.

Each method is fitted to folds of VAL and measured on the fold left out, so its numbers are held-out. The advice is to
keep the model as it is unless the held-out NLL falls by more than its standard error (half of it for a method that
learns a single value) and the ECE does not rise by more than twice its own.

Examples:
  acls calibrate val.npz --test test.npz --out calibrator.safetensors
  acls calibrate val.npz --method temperature,vector,isotonic
  acls calibrate val.npz --method 'Vector(space=log_probs), ETS'
  acls calibrate val.npz --method all --test test.npz
  acls calibrate pixels.npz --image image_index --method temperature,selective

"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from acls.cli.common import FILES, Line, Parts, add_columns, add_shared, batches_of, check_out, note, say, with_progress
from acls.options import number

if TYPE_CHECKING:
    from acls.predictions import Predictions
    from acls.results import Advice, Candidate, Differences, Result

    Tested = tuple[Mapping[str, Result], Differences]


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``acls calibrate``."""
    parser.add_argument("val", metavar="VAL", help=f"predictions to fit to: {FILES}")
    method = "calibrators to try, with fields as in Histogram(kind=mass)"
    parser.add_argument("--method", default="temperature", metavar="NAME[,NAME...]|all", help=method)
    parser.add_argument("--test", metavar="TEST", help="other predictions of the same model, to show before and after")
    parser.add_argument("--out", metavar="FILE", help="save the recommended calibrator (.safetensors)")
    parser.add_argument("--folds", type=number(int, "[2, 1000]"), default=5, help="folds of the cross-validation")
    force = "write over what acls did not write, and save the best calibrator where the advice is to keep the model"
    add_shared(parser, "json", "markdown", "quiet", force=force, bootstrap="draws for the noise floors on TEST")
    add_columns(parser, weight=True)


def run(args: argparse.Namespace) -> None:
    """Fit, judge, show, save."""
    check_out(args, args.out, "calibrator", args.val, args.test)
    from acls.calibrators import make_calibrators
    from acls.results.recommending import before_and_after, check_pointwise, recommend

    calibrators = make_calibrators(args.method)
    for calibrator in calibrators:  # before a long file is read
        check_pointwise(calibrator)
    advice = recommend(_read(args), calibrators, folds=args.folds)
    tested = None
    if args.test:
        shown = with_progress(args, batches_of(args, args.test))
        settings = {"replicates": args.bootstrap, "ignore_index": args.ignore_index}
        tested = before_and_after(shown, advice.candidates, **settings)
    saved = advice.chosen or (advice.best if args.force else None)
    if args.out is not None and saved is not None:
        saved.calibrator.save(args.out)
    plain: dict[str, Any] = advice.as_json()
    if tested is not None:
        plain["test"] = {name: result.as_json() for name, result in tested[0].items()}
        plain["changes"] = tested[1].as_json()
    say(args, {**plain, "saved": args.out if saved else None}, _parts(args, advice, tested, saved))


def _read(args: argparse.Namespace) -> Predictions:
    from acls.predictions import ZERO, Predictions

    val = Predictions.concat(list(with_progress(args, batches_of(args, args.val)))).labelled(args.ignore_index)
    zeros = int((val.scores == 0).sum()) if val.kind == "probs" and val.scores is not None else 0
    if zeros:
        note(args, f"{zeros:,} probabilities in {args.val} are 0, so they were rounded; each is taken for {ZERO:g}")
    return val


def _parts(args: argparse.Namespace, advice: Advice, tested: Tested | None, saved: Candidate | None) -> Parts:
    """The advice, then what it rests on."""
    from acls.report.results import judged_table, tested_table

    yield from (advice.text, "", judged_table(advice))
    remarks = [(one, warning) for one in advice.candidates for warning in one.calibrator.report.warnings]
    remarks += [(one, one.why) for one in advice.candidates if not one.use and not one.doubts]
    if remarks:
        yield from ("", *(f"{one.name}: {text}." for one, text in remarks))
    if tested is not None:
        yield from (Line(f"\non {args.test}, which no method has seen:\n"), tested_table(*tested), "")
        yield "p: of no change in that metric against the model as it is."
    if args.out is not None:
        use = f"{saved.name} is saved as {args.out}; use it: acls apply {args.out} IN OUT" if saved else ""
        yield from ("", use or "Nothing is saved: --force saves the best of them all the same.")
