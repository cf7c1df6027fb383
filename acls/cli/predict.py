"""Write the predictions of a trained network, for use with `acls evaluate`, `acls calibrate` and other commands.

Examples:
  acls predict runs/digits_cnn-ACLS-1 --out test.safetensors
  acls predict runs/mine/last.safetensors --part val --out val.npz
  acls predict runs/mine --data folder --root OTHER --out other.safetensors
  acls predict runs/mine --mc-samples 20 --out dropout.safetensors

"""

import argparse

from acls.cli.common import add_shared, check_out, say
from acls.cli.settings import add_settings, data_of
from acls.data import DataOptions
from acls.options import leaves, number


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``acls predict``."""
    parser.add_argument("source", metavar="RUN|CHECKPOINT", help="folder of a run, or a weights file in it")
    parser.add_argument("--out", required=True, metavar="FILE", help=".safetensors, .npz, .parquet or .csv")
    parser.add_argument("--part", choices=("train", "val", "test"), default="test", help="which part of the data")
    passes = "average T passes with dropout (default: as the run's recipe says)"
    parser.add_argument("--mc-samples", type=number(int, "[0, 1e6]"), metavar="T", help=passes)
    add_shared(parser, "force", "json", quiet="print nothing but errors")
    add_settings(parser, leaves(DataOptions, "data."))


def run(args: argparse.Namespace) -> None:
    """Predict and save."""
    from acls.train import predict_run

    check_out(args, args.out, "predictions", args.source)
    predictions = predict_run(args.source, part=args.part, data=data_of(args), passes=args.mc_samples)
    predictions.save(args.out)
    say(args, {"file": args.out, **predictions.as_json()}, "" if args.quiet else f"{predictions}: {args.out}")
