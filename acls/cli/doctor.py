"""Check a file of predictions and report what looks wrong, in plain sentences.

Exit code 0: nothing serious. 1: something serious, such as probabilities named as logits, softmax applied twice, labels
in another order, NaN, or a calibration set that overlaps with the test set. 2: the file or a name was not found.

Examples:
  acls doctor preds.npz
  acls doctor nets.npz --logits resnet20
  acls doctor calibration.parquet --against test.parquet

"""

import argparse

from acls.cli.common import FILES, add_columns, add_shared, batches_of, say


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``acls doctor``."""
    parser.add_argument("file", metavar="FILE", help=FILES)
    against = "predictions that FILE must not overlap with, under the same names"
    parser.add_argument("--against", metavar="TESTFILE", help=against)
    add_shared(parser, "json", "quiet")
    add_columns(parser)


def run(args: argparse.Namespace) -> int:
    """Print the findings; return 1 if one is serious."""
    from acls.watch.doctor import examine

    against = None if args.against is None else batches_of(args, args.against, check=False)
    found = examine(batches_of(args, args.file, check=False), against=against, ignore_index=args.ignore_index)
    say(args, found)
    return int(not found.healthy)
