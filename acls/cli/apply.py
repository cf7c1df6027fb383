"""Apply a saved calibrator to predictions: read IN, write the calibrated log-probabilities to OUT.

Files are read in slices, and .parquet and .csv files are also written in slices, so they may be larger than memory.
Labels are not required. For stated confidences, with --confidence and --correct, the output holds the calibrated
confidences.

Examples:
  acls calibrate val.npz --out calibrator.safetensors
  acls apply calibrator.safetensors test.npz calibrated.npz

"""

import argparse

from acls.cli.common import FILES, add_columns, add_shared, batches_of, say


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``acls apply``."""
    parser.add_argument("calibrator", metavar="CALIBRATOR", help="file written by acls calibrate --out")
    parser.add_argument("source", metavar="IN", help=FILES)
    parser.add_argument("out", metavar="OUT", help=".npz, .safetensors, .parquet or .csv to write")
    add_shared(parser, "force", "json", "quiet")
    add_columns(parser)


def run(args: argparse.Namespace) -> None:
    """Calibrate slice by slice."""
    from acls.front import apply_file

    done = apply_file(args.calibrator, batches_of(args, args.source, unlabelled=True), args.out, force=args.force)
    say(args, done, str(done))
