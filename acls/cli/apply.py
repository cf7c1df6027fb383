"""Apply a saved calibrator to predictions: read IN, write the calibrated log-probabilities to OUT.

Files are read in slices, and .parquet and .csv are written so, too: they may be larger than memory. Labels need not be
there. Of stated confidences, with --confidence and --correct, the calibrated confidences are written.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

from acls.cli.inputs import NAMES, add_columns, columns_of, with_progress
from acls.cli.output import add_force, add_output, check_out, say
from acls.errors import InputError

if TYPE_CHECKING:
    from acls.predictions import Predictions

EXAMPLE = f"""\
examples:
  acls calibrate val.npz --out calibrator.safetensors
  acls apply calibrator.safetensors test.npz calibrated.npz

{NAMES}"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``acls apply``."""
    parser.add_argument("calibrator", metavar="CALIBRATOR", help="what acls calibrate --out wrote")
    parser.add_argument("source", metavar="IN", help=".npz, .safetensors, .parquet, .csv; a folder or glob")
    parser.add_argument("out", metavar="OUT", help=".npz, .safetensors, .parquet or .csv to write")
    add_force(parser)
    add_output(parser)
    add_columns(parser)


def run(args: argparse.Namespace) -> int:
    """Calibrate slice by slice."""
    from dataclasses import replace

    from acls.calibrators import Calibrator
    from acls.predictions import open_batches, save_batches
    from acls.predictions.writers import check_suffix
    from acls.results.recommending import check_pointwise

    check_suffix(args.out)
    calibrator = Calibrator.load(args.calibrator)
    check_pointwise(calibrator)
    columns = replace(columns_of(args), unlabelled=True)
    batches = open_batches(args.source, columns, ignore_index=args.ignore_index)

    check_out(args, args.out, "predictions", args.calibrator, *batches.files)
    stated = "triples" in {p.kind for p in itertools.islice(batches, 1)}
    if stated != calibrator.stated:
        kinds = ("rows of scores", "stated confidences")
        raise InputError(
            f"{args.calibrator} was fitted to {kinds[calibrator.stated]}, but {args.source} holds {kinds[stated]}"
        )

    def calibrated() -> Iterator[Predictions]:
        for batch in with_progress(batches, f"reading {args.source}", quiet=args.quiet or args.json):
            yield replace(batch.calibrated(calibrator), meta={**batch.meta, "calibrator": repr(calibrator)})

    save_batches(args.out, calibrated())
    told = {"file": args.out, "calibrator": repr(calibrator)}
    say(args, told, f"{args.out}: log-probabilities calibrated by {calibrator!r}")
    return 0
