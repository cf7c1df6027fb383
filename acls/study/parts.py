"""Count a data set of many files by several processes or machines; the sums, and so the result, are the same."""

from __future__ import annotations

import functools
import itertools
import operator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from acls.errors import InputError
from acls.predictions import Batches, Columns, open_batches
from acls.results import Counts, count
from acls.study.engine import Engine


@dataclass(frozen=True)
class FileTask:
    """A file of the data set, and the settings for counting it."""

    place: Path
    columns: Columns
    first: int
    """The number of its first row in the whole data set."""
    by_group: bool
    settings: dict[str, Any]

    def below(self, root: Path) -> FileTask:
        """Return the same task with its file under another root, for a machine without a shared disk."""
        return replace(self, place=root / self.place.relative_to("/"))


def count_parts(batches: Batches, engine: Engine, *, by_group: bool = False, **settings: Any) -> Counts:
    """Count each file of a data set in its own task; ``settings`` are the fields of `Counts`.

    Rows have the same numbers as in one pass, so intervals and comparisons are the same as in one pass.
    """
    by_image = settings.get("by_image")
    if by_image or (by_image is None and next(iter(batches)).image is not None):
        raise InputError("an image may continue in the next part: leave out --workers, or pass --by row")
    counts = [open_batches(path, batches.columns).n_rows for path in batches.files]
    if None in counts:
        raise InputError("--workers needs files that store their number of rows, such as .parquet")
    firsts = itertools.accumulate([count or 0 for count in counts[:-1]], initial=0)
    parts = [
        FileTask(path.absolute(), batches.columns, first, by_group, settings)
        for path, first in zip(batches.files, firsts, strict=True)
    ]
    with closing(engine.map(count_part, parts)) as results:
        found = dict(results)
    return functools.reduce(operator.add, (found[number] for number in range(len(parts))))


def count_part(part: FileTask) -> Counts:
    """Count one file."""
    ignored = {name: part.settings[name] for name in ("ignore_index",) if name in part.settings}
    batches = open_batches(part.place, part.columns, **ignored)
    return count(batches, by_group=part.by_group, first=part.first, **part.settings)
