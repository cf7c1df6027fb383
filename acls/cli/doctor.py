"""Look through a file of predictions and say what looks wrong, in plain sentences.

Exit code 0: nothing serious. 1: something serious, such as probabilities named as logits, softmax applied twice, labels
in another order, NaN, or a calibration set that overlaps with the test set. 2: the file or a name was not found.

Examples:
  acls doctor preds.npz
  acls doctor nets.npz --logits resnet20
  acls doctor calibration.parquet --against test.parquet

"""

from __future__ import annotations

import argparse

from acls.cli.common import FILES, add_columns, add_shared, batches_of, say, with_progress


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``acls doctor``."""
    parser.add_argument("file", metavar="FILE", help=FILES)
    against = "predictions that FILE must not overlap with, under the same names"
    parser.add_argument("--against", metavar="TESTFILE", help=against)
    add_shared(parser, "json", "quiet")
    add_columns(parser)


def run(args: argparse.Namespace) -> int:
    """Print the findings; 1 if one is serious."""
    from acls.watch.doctor import Diagnosis, examine

    def examined(path: str) -> Diagnosis:
        return examine(with_progress(args, batches_of(args, path, check=False)), ignore_index=args.ignore_index)

    found = examined(args.file)
    if args.against is not None:
        found = found.against(examined(args.against), args.against)
    whole = [f"{args.file}: {found}"] if found.n else []
    wrong = [f"{one.level}: {one.sentence}" for one in found.findings] or ["nothing looks wrong"]
    say(args, {"file": args.file, **found.as_json()}, [*whole, *wrong])
    return int(not found.healthy)
