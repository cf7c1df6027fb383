"""Studies that run in a blink."""

from dataclasses import replace

from acls.study.engine import Here
from acls.study.runs import plan
from tests.train.quick import digits

HERE = Here(workers=1, threads=1)


def cells(folder, methods="CE, ACLS(margin=4)", seeds=(1, 2), posthoc="temperature", **changes):
    return plan(folder, digits(**changes), methods, seeds, posthoc)


def timeless(rows):
    """What must be the same of two studies: all but the time they took."""
    return {row.key: replace(row, seconds=0.0) for row in rows}
