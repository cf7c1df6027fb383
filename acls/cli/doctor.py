"""Look through a file of predictions and say what looks wrong, in plain sentences.

Exit code 0: nothing serious. 1: something serious, such as probabilities named as logits, softmax applied twice, labels
in another order, NaN, or a calibration set that overlaps with the test set. 2: the file or a name was not found.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from acls.cli.inputs import NAMES, add_columns, columns_of, with_progress

if TYPE_CHECKING:
    from acls.doctor import Diagnosis, Finding

EXAMPLE = f"""\
examples:
  acls doctor preds.npz
  acls doctor nets.npz --logits resnet20
  acls doctor calibration.parquet --against test.parquet

{NAMES}"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``acls doctor``."""
    parser.add_argument("file", metavar="FILE", help=".npz, .safetensors, .parquet or .csv; a folder or glob of parts")
    parser.add_argument(
        "--against", metavar="TESTFILE", help="a set, with the same names, that FILE must not overlap with"
    )
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    add_columns(parser)


def run(args: argparse.Namespace) -> int:
    """Print the findings; 1 if one is serious."""
    from acls.doctor import compare, examine
    from acls.predictions import open_batches

    def look(path: str) -> Diagnosis:
        batches = open_batches(path, columns_of(args), ignore_index=args.ignore_index, check=False)
        return examine(
            with_progress(batches, f"reading {Path(path).name}", quiet=args.quiet), ignore_index=args.ignore_index
        )

    diagnosis = look(args.file)
    findings = list(diagnosis.findings)
    if args.against is not None:
        findings += compare(diagnosis, look(args.against), args.against)
    _print(args.file, diagnosis, findings)
    return int(any(finding.level == "serious" for finding in findings))


def _print(path: str, diagnosis: Diagnosis, findings: list[Finding]) -> None:
    from acls.report.tables import paragraph

    if diagnosis.n:
        classes = f" of {diagnosis.n_classes} classes" if diagnosis.n_classes else ""
        sure = f", mean confidence {diagnosis.confidence:.2%}" if diagnosis.confidence <= 1 else ""
        print(f"{path}: {diagnosis.n} rows, {diagnosis.kind}{classes}; accuracy {diagnosis.accuracy:.2%}{sure}")
    for finding in findings:
        print(paragraph(f"{finding.level}: {finding.sentence}"))
    if not findings:
        print("nothing looks wrong")
