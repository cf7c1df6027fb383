"""Measure the calibration of saved predictions: every metric with its interval, its noise floor and n.

The noise floor is the value that a perfectly calibrated model with the same confidences would have at the same n.
Several files are treated as several models on the same samples, and are compared with the first file. A folder or a
quoted glob of parquet parts is one data set. Files may be larger than memory.

Examples:
  acls evaluate preds.npz
  acls evaluate preds.csv --probs p0,p1,p2 --label y
  acls evaluate nets.npz --logits resnet20 --logits resnet56
  acls evaluate before.parquet after.parquet --json
  acls evaluate 'parts/*.parquet' --by group --workers 4
  acls evaluate pixels.npz --image image_index
  acls evaluate preds.npz --max-error 2%
  acls evaluate preds.npz --protocol all

"""

import argparse

from acls.cli.common import FILES, add_columns, add_shared, engine_of, models_of, say
from acls.options import number


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``acls evaluate``."""
    parser.add_argument("files", metavar="FILE", nargs="+", help=FILES)
    parser.add_argument("--bins", type=number(int, "[1, 100000]"), default=15, help="bins of the calibration errors")
    by = "group, or a column name: also metrics and --max-error per group; predicted: per predicted "
    by += "class; row: treat rows as independent even if the file names their images"
    parser.add_argument("--by", action="append", default=[], metavar="group|predicted|row|NAME", help=by)
    protocol = "compute metrics as a paper's code does; all: every protocol side by side"
    parser.add_argument("--protocol", metavar="NAME", help=protocol)
    workers = "processes that share the parts of a data set (default: only this one)"
    add_shared(parser, "max_error", "bootstrap", "json", "markdown", "quiet", "engine", "address", workers=workers)
    add_columns(parser, several=True, weight=True)


def run(args: argparse.Namespace) -> None:
    """Evaluate every model and print the results."""
    from acls.front import evaluate_files, measure_files

    models = dict(models_of(args, args.files))
    if args.protocol is not None:
        say(args, measure_files(models, args.protocol, ignore_index=args.ignore_index))
        return
    settings = {"bins": args.bins, "replicates": args.bootstrap, "ignore_index": args.ignore_index}
    shared = args.engine != "local" or any(one is not None for one in (args.workers, args.address))
    engine = engine_of(args) if shared else None
    say(args, evaluate_files(models, by=args.by, max_error=args.max_error, engine=engine, **settings))
