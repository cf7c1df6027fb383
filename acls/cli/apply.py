"""Apply a saved calibrator to predictions: read IN, write the calibrated log-probabilities to OUT.

Files are read in slices, and .parquet and .csv are written so, too: they may be larger than memory. Labels need not be
there. Of stated confidences, with --confidence and --correct, the calibrated confidences are written.

Examples:
  acls calibrate val.npz --out calibrator.safetensors
  acls apply calibrator.safetensors test.npz calibrated.npz

"""

from __future__ import annotations

import argparse
import itertools
from dataclasses import replace

from acls.cli.common import FILES, Line, add_columns, add_shared, batches_of, check_out, say, with_progress
from acls.errors import InputError


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``acls apply``."""
    parser.add_argument("calibrator", metavar="CALIBRATOR", help="what acls calibrate --out wrote")
    parser.add_argument("source", metavar="IN", help=FILES)
    parser.add_argument("out", metavar="OUT", help=".npz, .safetensors, .parquet or .csv to write")
    add_shared(parser, "force", "json", "quiet")
    add_columns(parser)


def run(args: argparse.Namespace) -> None:
    """Calibrate slice by slice."""
    from acls.calibrators import Calibrator
    from acls.predictions import save_batches
    from acls.results.recommending import check_pointwise

    calibrator = Calibrator.load(args.calibrator)
    check_pointwise(calibrator)
    batches = batches_of(args, args.source, unlabelled=True)
    check_out(args, args.out, "predictions", args.calibrator, *batches.files)
    stated = any(p.kind == "triples" for p in itertools.islice(batches, 1))
    if stated != calibrator.stated:
        kinds = ("rows of scores", "stated confidences")
        own, other = kinds[calibrator.stated], kinds[stated]
        raise InputError(f"{args.calibrator} was fitted to {own}, but {args.source} holds {other}")
    about = {"calibrator": repr(calibrator)}
    shown = with_progress(args, batches)
    save_batches(args.out, (replace(p.calibrated(calibrator), meta={**p.meta, **about}) for p in shown))
    what = "confidences" if stated else "log-probabilities"
    say(args, {"file": args.out, **about}, [Line(f"{args.out}: {what} calibrated by {calibrator!r}")])
