"""Fit calibrators to validation predictions, judge them by cross-validation, recommend one and save it.

Each method is fitted on all folds of VAL but one and measured on the held-out fold. The advice is to keep the model
unchanged unless the held-out NLL falls by more than its standard error (half of it for a method that learns a single
value) and the ECE does not rise by more than twice its standard error.

Examples:
  acls calibrate val.npz --test test.npz --out calibrator.safetensors
  acls calibrate val.npz --method temperature,vector,isotonic
  acls calibrate val.npz --method 'Vector(space=log_probs), ETS'
  acls calibrate val.npz --method all --test test.npz
  acls calibrate pixels.npz --image image_index --method temperature,selective

"""

import argparse

from acls.cli.common import FILES, add_columns, add_shared, batches_of, check_out, say
from acls.options import number


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``acls calibrate``."""
    parser.add_argument("val", metavar="VAL", help=f"predictions to fit to: {FILES}")
    method = "calibrators to try, with fields as in Histogram(kind=mass)"
    parser.add_argument("--method", default="temperature", metavar="NAME[,NAME...]|all", help=method)
    parser.add_argument(
        "--test", metavar="TEST", help="other predictions of the same model, to measure before and after"
    )
    parser.add_argument("--out", metavar="FILE", help="save the recommended calibrator (.safetensors)")
    parser.add_argument("--folds", type=number(int, "[2, 1000]"), default=5, help="folds of the cross-validation")
    force = (
        "overwrite files that acls did not write, and save the best calibrator even if the advice is to keep the model"
    )
    add_shared(parser, "json", "markdown", "quiet", force=force, bootstrap="draws for the noise floors on TEST")
    add_columns(parser, weight=True)


def run(args: argparse.Namespace) -> None:
    """Fit the calibrators, judge them, print the results and save the recommended one."""
    check_out(args, args.out, "calibrator", args.val, args.test)
    from acls.calibrators import make_calibrators
    from acls.results import recommend

    calibrators = make_calibrators(args.method)  # raises before a long file is read
    test = batches_of(args, args.test) if args.test else None
    settings = {"folds": args.folds, "replicates": args.bootstrap, "ignore_index": args.ignore_index}
    advice = recommend(batches_of(args, args.val), calibrators, test=test, **settings)
    say(args, advice if args.out is None else advice.save(args.out, force=args.force))
