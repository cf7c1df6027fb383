"""Check new predictions, labelled or not, for drift away from the calibration set.

Three tests ask whether the differences are more than chance: of the confidences (Kolmogorov-Smirnov, and the population
stability index over tenths of the calibration set), and of how often each class is predicted. Accuracy on the new data
is predicted from its confidences. Labels, where the new data has some, tell accuracy and classes themselves. The alarm
is raised where a difference is beyond chance and large enough to matter; a shift of the classes is one of its own, with
the new shares of the classes, and --out saves a calibrator that corrects for it.

Exit code 0: no alarm. 1: alarm. 2: a file or a name was not found.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from typing import TYPE_CHECKING

from acls.cli.inputs import NAMES, add_columns, columns_of, with_progress
from acls.cli.output import add_force, check_out
from acls.errors import InputError
from acls.options import number

if TYPE_CHECKING:
    from acls.watch.drift import Drift, Profile

EXAMPLE = f"""\
examples:
  acls drift calibration.npz monday.npz
  acls drift val.parquet 'logs/2025-06-*.parquet' --probs p --json
  acls drift val.npz new.npz --alpha 0.001 --psi 0.25
  acls drift val.npz new.npz --out shift.safetensors && acls apply shift.safetensors new.npz corrected.npz

{NAMES}"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``acls drift``."""
    parser.add_argument(
        "calibration", metavar="CALIBRATION_FILE", help="labelled predictions that the model is trusted on"
    )
    parser.add_argument(
        "new", metavar="NEW_FILE", help="predictions on new data, under the same names; labels may be missing"
    )
    parser.add_argument(
        "--alpha", type=number(float, "(0, 1)"), default=0.01, help="how often to let undrifted data raise an alarm"
    )
    parser.add_argument(
        "--psi", type=number(float, "[0, inf)"), default=0.1, help="stability index from which on a difference matters"
    )
    parser.add_argument(
        "--drop",
        type=number(float, "[0, 1]"),
        default=0.02,
        help="fall of the predicted accuracy from which on it matters",
    )
    parser.add_argument(
        "--label-shift",
        type=number(float, "[0, 1]"),
        default=0.1,
        help="share of samples with another class from which on that matters",
    )
    parser.add_argument("--out", metavar="FILE", help="save a calibrator that corrects for the classes' new shares")
    add_force(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    add_columns(parser)


def run(args: argparse.Namespace) -> int:
    """Print what was found; 1 for an alarm."""
    if args.out is not None and not args.out.endswith(".safetensors"):
        raise InputError(f"cannot write {args.out}: name a file that ends in .safetensors")
    from acls.predictions import open_batches
    from acls.watch.drift import compare, profile

    def look(path: str, *, unlabelled: bool) -> Profile:
        columns = columns_of(args)
        if unlabelled:
            columns = replace(columns, unlabelled=True)
        batches = open_batches(path, columns, ignore_index=args.ignore_index)
        return profile(with_progress(batches, f"reading {path}", quiet=args.quiet), ignore_index=args.ignore_index)

    known, new = look(args.calibration, unlabelled=False), look(args.new, unlabelled=True)
    limits = {"alpha": args.alpha, "psi_alarm": args.psi, "drop_alarm": args.drop, "label_alarm": args.label_shift}
    found = compare(known, new, **limits)
    if args.out is not None:
        check_out(args, args.out, "calibrator", args.calibration, args.new)
        found.calibrator().save(args.out)
    if args.json:
        print(json.dumps(found.as_json(), indent=2))
    else:
        _print(found, by_image=bool(known.images or new.images))
    return int(found.alarm)


def _print(found: Drift, *, by_image: bool) -> None:
    from acls.report.tables import Table, paragraph, percent

    table = Table(["", "calibration set", "new"])
    table.add("n", str(found.n_calibration), str(found.n_new))
    table.add("mean confidence %", percent(found.confidence_calibration), percent(found.confidence_new))
    table.add("accuracy %", percent(found.accuracy_calibration))
    table.add("accuracy predicted from the confidences %", "", percent(found.accuracy_by_confidence))
    table.add("accuracy predicted by a threshold (ATC) %", "", percent(found.accuracy_by_threshold))
    if found.accuracy_new is not None:
        table.add("accuracy by its labels %", "", percent(found.accuracy_new))
    print(table.text(), end="\n\n")
    tests = Table(["test", "distance", "p"])
    titles = {
        "ks": "confidences (KS)", "psi": "confidences (PSI)", "classes": "predicted classes",
        "labels": "classes by label", "accuracy": "accuracy by label",
    }  # fmt: skip
    for name, check in found.checks.items():
        tests.add(titles[name], f"{check.distance:.4f}", "< 0.001" if check.p < 0.001 else f"{check.p:.3f}")
    print(tests.text(), end="\n\n")
    print(paragraph(("ALARM: " if found.alarm else "") + found.verdict()))
    if by_image:
        print("The rows of an image are not independent: images were counted, not rows.")
