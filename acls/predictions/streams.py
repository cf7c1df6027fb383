"""Opening data sets of predictions and reading them in slices."""

from __future__ import annotations

import glob
import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from acls.errors import InputError
from acls.predictions.arrays import ArrayFile, NpzFile, SafetensorsFile
from acls.predictions.building import Builder
from acls.predictions.columns import Columns, resolve
from acls.predictions.core import Kind, Predictions
from acls.predictions.files import DataFile
from acls.predictions.tables import CsvFile, ParquetFile
from acls.shapes import IGNORE_INDEX

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

CELLS = 1 << 21
"""Scores in a slice unless the caller says how many rows: 8 MB of float32."""


_READERS: dict[str, type[DataFile]] = {
    ".npz": NpzFile,
    ".safetensors": SafetensorsFile,
    ".parquet": ParquetFile,
    ".csv": CsvFile,
    ".tsv": CsvFile,
}


def open_batches(
    paths: Paths,
    columns: Columns | None = None,
    *,
    rows: int | None = None,
    ignore_index: int = IGNORE_INDEX,
    check: bool = True,
) -> Batches:
    """Open a file, a folder or a glob of parquet parts, or a list of files as one data set, read in slices.

    Iterating gives `Predictions` of at most ``rows`` rows (dense maps: ``rows`` maps); it can be done again and again.
    Names and shapes are looked at now, values when they come, unless ``check`` is False: the first row that is wrong
    raises an InputError with its file and number. Rows labelled ``ignore_index`` are right, and stay.
    """
    files = _files(paths)
    columns = columns or Columns()
    n_rows: int | None = 0
    cells = 1
    for path in files:
        with _open(path) as file:
            layout = resolve(columns, file.fields, str(path))
            # Unchecked, arrays that do not fit each other are left to be found when they are read.
            n = file.n_rows(layout) if check else None
            n_rows = None if n is None or n_rows is None else n_rows + n
            cells = max(cells, file.n_cells(layout))
    return Batches(files, columns, rows or max(1, CELLS // max(cells, 8)), n_rows, ignore_index, check)


@dataclass(frozen=True)
class Batches:
    """A data set of predictions on disk; iterating reads it in slices."""

    files: tuple[Path, ...]
    columns: Columns
    rows: int
    n_rows: int | None
    """How many rows (or dense maps) there are; None where only reading tells, as for text."""
    ignore_index: int
    check: bool

    def __iter__(self) -> Iterator[Predictions]:
        expected: tuple[Kind, int | None] | None = None
        build = Builder(missing=self.ignore_index)
        for path in self.files:
            with _open(path) as file:
                layout = resolve(self.columns, file.fields, str(path))
                row = 0
                for block in file.blocks(layout, self.rows):
                    batch = build(block, layout, file.meta, str(path), row)
                    expected = expected or (batch.kind, batch.n_classes)
                    if (batch.kind, batch.n_classes) != expected:
                        raise InputError(
                            f"{path}: row {row}: {batch.kind} of {batch.n_classes} classes, but "
                            f"{expected[0]} of {expected[1]} classes before, from {self.files[0]} on"
                        )
                    if self.check:
                        batch.check(ignore_index=self.ignore_index, where=str(path), first_row=row)
                    row += len(batch)
                    yield batch


def load(path: str | os.PathLike[str], columns: Columns, *, ignore_index: int = IGNORE_INDEX) -> Predictions:
    """Read all of a data set into one `Predictions`; a single file of stored arrays is memory-mapped."""
    files = _files(path)
    if len(files) == 1:
        with _open(files[0]) as file:
            if isinstance(file, ArrayFile):
                layout = resolve(columns, file.fields, str(files[0]))
                whole = Builder(missing=ignore_index)(file.whole(layout), layout, file.meta, str(files[0]), 0)
                whole.check(ignore_index=ignore_index, where=str(files[0]))
                return whole
    parts = list(open_batches(path, columns, ignore_index=ignore_index))
    if not parts:
        raise InputError(f"{path} has no rows")
    return Predictions.concat(parts)


def _files(paths: Paths) -> tuple[Path, ...]:
    if not isinstance(paths, str | os.PathLike):
        found = tuple(itertools.chain.from_iterable(_files(path) for path in paths))
        if not found:
            raise InputError("no file was named")
        return found
    path = Path(paths)
    if path.is_dir():
        parts = tuple(sorted(part for part in path.rglob("*.parquet") if not part.name.startswith((".", "_"))))
        if not parts:
            raise InputError(f"the folder {path} has no .parquet files: name a file, or a glob in quotes")
        return parts
    if not path.exists() and glob.has_magic(str(paths)):
        parts = tuple(Path(name) for name in sorted(glob.glob(str(paths), recursive=True)))
        if not parts:
            raise InputError(f"no file matches {paths}")
        return parts
    if not path.exists():
        raise InputError(f"there is no file {path}")
    return (path,)


def _open(path: Path) -> DataFile:
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise InputError(f"cannot read {path}: name a file that ends in {', '.join(_READERS)}")
    try:
        return reader(path)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
