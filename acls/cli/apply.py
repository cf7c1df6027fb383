"""Apply a saved calibrator to predictions: read IN, write the calibrated log-probabilities to OUT.

Files are read and written in slices, so they may be larger than memory.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from acls.cli.inputs import NAMES, add_columns, columns_of, with_progress
from acls.cli.output import add_output, say

if TYPE_CHECKING:
    from torch import Tensor

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
    parser.add_argument("out", metavar="OUT", help=".npz, .safetensors or .parquet to write")
    add_output(parser)
    add_columns(parser)


def run(args: argparse.Namespace) -> int:
    """Calibrate slice by slice."""
    from dataclasses import replace

    from acls.calibrators import Calibrator
    from acls.predictions import open_batches, save_batches

    calibrator = Calibrator.load(args.calibrator)
    batches = open_batches(args.source, columns_of(args), ignore_index=args.ignore_index)

    def calibrated() -> Iterator[Predictions]:
        for batch in with_progress(batches, f"reading {args.source}", quiet=args.quiet or args.json):
            meta = {**batch.meta, "calibrator": repr(calibrator)}
            yield replace(batch, scores=calibrator(as_logits(batch)), kind="log_probs", meta=meta)

    save_batches(args.out, calibrated())
    told = {"file": args.out, "calibrator": repr(calibrator)}
    say(args, told, f"{args.out}: log-probabilities calibrated by {calibrator!r}")
    return 0


def as_logits(p: Predictions) -> Tensor:
    """Return what a calibrator takes: logits as they are, or the logs of probabilities, which are logits as well."""
    if p.kind != "logits":
        return p.log_probs()
    assert p.scores is not None
    return p.scores
