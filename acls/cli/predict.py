"""Write the predictions of a trained network, for `acls evaluate`, `acls calibrate` and all that follows."""

from __future__ import annotations

import argparse
from pathlib import Path

from acls.cli.output import add_force, add_output, check_out, say
from acls.cli.settings import add_settings, settings_of
from acls.data import DataOptions
from acls.errors import InputError
from acls.options import leaves, number, override

EXAMPLE = """\
examples:
  acls predict runs/digits_cnn-ACLS-1 --out test.safetensors
  acls predict runs/mine/last.safetensors --part val --out val.npz
  acls predict runs/mine --data folder --root OTHER_IMAGES --out other.safetensors
  acls predict runs/mine --mc-samples 20 --out dropout.safetensors
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("source", metavar="RUN|CHECKPOINT", help="folder of a run, or a weights file in it")
    parser.add_argument("--out", required=True, metavar="FILE", help=".safetensors, .npz, .parquet or .csv")
    add_force(parser)
    parser.add_argument("--part", choices=("train", "val", "test"), default="test", help="which part of the data")
    parser.add_argument(
        "--mc-samples",
        type=number(int, "[0, 1e6]"),
        metavar="T",
        help="average T passes with dropout (default: as the run's recipe says)",
    )
    add_output(parser, quiet="print nothing but errors")
    add_settings(
        parser, leaves(DataOptions, "data."), {"data": "data.name", "root": "data.root", "download": "data.download"}
    )


def run(args: argparse.Namespace) -> int:
    """Predict and save."""
    from acls.predictions.writers import check_suffix
    from acls.train import open_run, predict_run

    path = Path(args.source)
    if not path.exists():
        raise InputError(f"there is no run or checkpoint {path}")
    check_suffix(args.out)
    check_out(args, args.out, "predictions", path)
    _, recipe = open_run(path if path.is_dir() else path.parent)
    given = {name.removeprefix("data."): value for name, value in settings_of(args).items()}
    data = override(recipe.data, given)
    predictions = predict_run(path, part=args.part, data=data, passes=args.mc_samples)
    predictions.save(args.out)
    accuracy = float(predictions.correct().float().mean())
    said = f"{len(predictions):,} rows of {predictions.n_classes} classes, accuracy {100 * accuracy:.2f} %: {args.out}"
    told = {"file": args.out, "n": len(predictions), "classes": predictions.n_classes, "accuracy": accuracy}
    if args.json or not args.quiet:
        say(args, told, said)
    return 0
