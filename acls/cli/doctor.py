"""Look through a file of predictions and say what looks wrong, in plain sentences.

Exit code 0: nothing serious. 1: something serious, such as probabilities named as logits, softmax applied twice, labels
in another order, NaN, or a calibration set that overlaps with the test set. 2: the file or a name was not found.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from acls.cli.inputs import NAMES, add_columns, columns_of, with_progress
from acls.cli.output import add_output, say

if TYPE_CHECKING:
    from acls.watch.doctor import Diagnosis, Finding

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
    add_output(parser)
    add_columns(parser)


def run(args: argparse.Namespace) -> int:
    """Print the findings; 1 if one is serious."""
    from acls.predictions import open_batches
    from acls.watch.doctor import compare, examine

    def look(path: str) -> Diagnosis:
        batches = open_batches(path, columns_of(args), ignore_index=args.ignore_index, check=False)
        shown = with_progress(batches, f"reading {Path(path).name}", quiet=args.quiet or args.json)
        return examine(shown, ignore_index=args.ignore_index)

    diagnosis = look(args.file)
    findings = list(diagnosis.findings)
    if args.against is not None:
        findings += compare(diagnosis, look(args.against), args.against)
    told = {
        "file": args.file,
        "n": diagnosis.n,
        "kind": diagnosis.kind,
        "classes": diagnosis.n_classes,
        "accuracy": diagnosis.accuracy,
        "confidence": diagnosis.confidence,
        "findings": [{"level": finding.level, "sentence": finding.sentence} for finding in findings],
    }
    say(args, told, *_sentences(args.file, diagnosis, findings))
    return int(any(finding.level == "serious" for finding in findings))


def _sentences(path: str, diagnosis: Diagnosis, findings: list[Finding]) -> Iterator[str]:
    from acls.report.tables import paragraph

    if diagnosis.n:
        classes = f" of {diagnosis.n_classes} classes" if diagnosis.n_classes else ""
        sure = f", mean confidence {diagnosis.confidence:.2%}" if diagnosis.confidence <= 1 else ""
        yield f"{path}: {diagnosis.n} rows, {diagnosis.kind}{classes}; accuracy {diagnosis.accuracy:.2%}{sure}"
    for finding in findings:
        yield paragraph(f"{finding.level}: {finding.sentence}")
    if not findings:
        yield "nothing looks wrong"
