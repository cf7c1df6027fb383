"""Opening, reading in slices, and writing files of predictions."""

from __future__ import annotations

import glob
import itertools
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from acls.errors import InputError, require
from acls.predictions.arrays import ArrayFile, NpzFile, SafetensorsFile
from acls.predictions.columns import Columns, Layout, resolve
from acls.predictions.core import Predictions
from acls.predictions.files import Array, DataFile
from acls.predictions.tables import META_KEY, CsvFile, ParquetFile
from acls.shapes import IGNORE_INDEX
from acls.storage import atomic_write, save_tensors

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
        first: Predictions | None = None
        build = _Builder()
        for path in self.files:
            with _open(path) as file:
                layout = resolve(self.columns, file.fields, str(path))
                row = 0
                for block in file.blocks(layout, self.rows):
                    batch = build(block, layout, file.meta, str(path), row)
                    first = first or batch
                    if batch.kind != first.kind or batch.n_classes != first.n_classes:
                        raise InputError(
                            f"{path}: row {row}: {batch.kind} of {batch.n_classes} classes, but "
                            f"{first.kind} of {first.n_classes} classes before, from {self.files[0]} on"
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
                whole = _Builder()(file.whole(layout), layout, file.meta, str(files[0]), 0)
                whole.check(ignore_index=ignore_index, where=str(files[0]))
                return whole
    parts = list(open_batches(path, columns, ignore_index=ignore_index))
    if not parts:
        raise InputError(f"{path} has no rows")
    return Predictions.concat(parts)


def side_by_side(*streams: Iterable[Predictions]) -> Iterator[tuple[Predictions, ...]]:
    """Go through data sets of equal length together, in slices that hold the same rows of each.

    Ends with the shortest only if all end there; else raises an InputError.
    """
    iterators = [iter(stream) for stream in streams]
    waiting: list[Predictions | None] = [None] * len(iterators)
    done = 0
    while True:
        for at, iterator in enumerate(iterators):
            if waiting[at] is None:
                waiting[at] = next(iterator, None)
        ready = [part for part in waiting if part is not None]
        if not ready:
            return
        if len(ready) < len(waiting):
            ended = waiting.index(None) + 1
            raise InputError(
                f"data set {ended} of {len(waiting)} ends after {done} rows, others go on: they must match"
            )
        n = min(len(part) for part in ready)
        yield tuple(part[:n] for part in ready)
        waiting = [part[n:] if len(part) > n else None for part in ready]
        done += n


def save_batches(path: str | os.PathLike[str], batches: Iterable[Predictions]) -> None:
    """Write predictions as one file, whole or not at all; ``.parquet`` slice by slice, the others gathered first."""
    path = Path(path)
    if path.suffix == ".parquet":
        _save_parquet(path, batches)
    elif path.suffix == ".npz":
        _save_npz(path, Predictions.concat(list(batches)))
    elif path.suffix == ".safetensors":
        _save_safetensors(path, Predictions.concat(list(batches)))
    else:
        raise InputError(f"cannot write {path}: name a file that ends in .npz, .safetensors or .parquet")


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


@dataclass
class _Builder:
    """Makes `Predictions` of arrays, with the same number for the same name of a group in every slice."""

    names: dict[str, dict[str, int]] = field(default_factory=lambda: {"group": {}, "image": {}})
    images: int = 0

    def __call__(
        self, block: dict[str, list[Array]], layout: Layout, meta: dict[str, str], where: str, row: int
    ) -> Predictions:
        columns: dict[str, Any] = {"scores": None}
        for role, arrays in block.items():
            name = ",".join(map(str, layout.roles[role][:3]))
            if role == "scores":
                columns[role] = _scores(arrays, name, layout, where)
            elif role == "confidence":
                columns[role] = _floats(arrays[0], name, where)
            elif role in self.names and arrays[0].dtype.kind in "UOS":
                columns[role] = self._numbers(role, arrays[0])
            else:
                columns[role] = _integers(arrays[0], name, where, row)
        _flatten_maps(columns, self.images, where)
        self.images += len(block["labels"][0])
        meta = dict(meta)
        group_names = tuple(self.names["group"]) or tuple(json.loads(meta.pop("group_names", "[]")))
        try:
            return Predictions(kind=layout.kind, group_names=group_names, meta=meta, **columns)
        except InputError as error:
            raise InputError(f"{where}: {error}") from error

    def _numbers(self, role: str, names: Array) -> Tensor:
        known = self.names[role]
        distinct, first, inverse = np.unique(names.astype(str), return_index=True, return_inverse=True)
        for at in np.argsort(first):  # numbers in the order of first appearance, whatever the slices
            known.setdefault(str(distinct[at]), len(known))
        return torch.from_numpy(np.array([known[str(name)] for name in distinct])[inverse])


def _scores(arrays: list[Array], name: str, layout: Layout, where: str) -> Tensor:
    for array, ref in zip(arrays, layout.roles["scores"], strict=True):
        if len(arrays) > 1 and array.ndim != 1:
            raise InputError(f"{where}: {str(ref)!r} has shape {array.shape}; of several columns each holds one class")
    scores = _floats(arrays[0] if len(arrays) == 1 else np.stack(arrays, axis=1), name, where)
    if scores.ndim == 1 or scores.shape[1:] == (1,):
        return _two_classes(scores.reshape(-1), layout.kind)
    return scores


def _two_classes(second: Tensor, kind: str) -> Tensor:
    """Scores of classes 0 and 1 from the one column that binary models give: that of class 1."""
    if kind == "logits":
        return torch.stack([torch.zeros_like(second), second], 1)
    if kind == "probs":
        return torch.stack([1 - second, second], 1)
    return torch.stack([torch.log(-torch.expm1(second)), second], 1)


def _floats(array: Array, name: str, where: str) -> Tensor:
    if array.dtype.kind not in "fiu":
        raise InputError(f"{where}: {name!r} has dtype {array.dtype}, but numbers are called for")
    if array.dtype.kind in "iu":
        array = array.astype(np.float32)
    elif array.dtype.itemsize > 8:
        array = array.astype(np.float64)
    return _tensor(array)


def _integers(array: Array, name: str, where: str, row: int) -> Tensor:
    if array.dtype.kind not in "fiub":
        raise InputError(
            f"{where}: {name!r} has dtype {_dtype_name(array)}, but class ids are called for: integers from 0 on"
        )
    if array.dtype.kind == "f":
        wrong = np.argwhere(~(np.isfinite(array) & (array == np.rint(array))))
        if wrong.size:
            value = array[tuple(wrong[0])]
            raise InputError(f"{where}: row {row + wrong[0][0]}: {name!r} is {value}, but an integer is called for")
    return _tensor(array.astype(np.int64))


def _tensor(array: Array) -> Tensor:
    return torch.from_numpy(np.require(array, array.dtype.newbyteorder("="), ["W"]))


def _dtype_name(array: Array) -> str:
    return "text" if array.dtype.kind in "UOS" else str(array.dtype)


def _flatten_maps(columns: dict[str, Any], first_image: int, where: str) -> None:
    """Turn maps ``(N, K, *D)`` with labels ``(N, *D)`` into rows of K, and number the images if nobody did."""
    labels, scores = columns["labels"], columns["scores"]
    n, maps = labels.shape[0], labels.shape[1:]
    if scores is not None and scores.shape[2:] != maps:
        raise InputError(f"{where}: {_shape_trouble(tuple(scores.shape[1:]), tuple(maps))}")
    if not maps:
        return
    columns["image"] = columns.get("image", torch.arange(first_image, first_image + n))
    for name, column in columns.items():
        if name == "scores":
            columns[name] = None if column is None else column.movedim(1, -1).reshape(-1, column.shape[1])
        else:
            columns[name] = (column if column.ndim > 1 else column.repeat_interleave(maps.numel())).reshape(-1)


def _shape_trouble(scores: tuple[int, ...], labels: tuple[int, ...]) -> str:
    def show(shape: tuple[int, ...]) -> str:
        return f"({', '.join(map(str, ('n', *shape)))}{'' if shape else ','})"

    came = f"labels have shape {show(labels)}, scores {show(scores)}"
    if labels == scores:
        return f"{came}: class ids, one a row, are called for; of one-hot labels save the argmax over the classes"
    if labels and scores[:-1] == labels:
        return f"{came}: the classes belong on axis 1; save the scores with their last axis moved there"
    return f"{came}, but {show(scores[1:])} is called for: the same without axis 1, which holds the classes"


def _save_npz(path: Path, p: Predictions) -> None:
    arrays = {name: column.numpy() for name, column in _columns(p).items()}
    if p.group is not None and p.group_names:
        arrays["group"] = np.array(p.group_names)[arrays["group"]]
    if p.meta:
        arrays["meta"] = np.array(json.dumps(p.meta))
    with atomic_write(path) as temporary:
        np.savez(temporary, **arrays)  # type: ignore[arg-type]


def _save_safetensors(path: Path, p: Predictions) -> None:
    meta = dict(p.meta)
    if p.group_names:
        meta["group_names"] = json.dumps(p.group_names)
    save_tensors(path, _columns(p, keep_brain_float=True), meta)


def _save_parquet(path: Path, batches: Iterable[Predictions]) -> None:
    arrow, parquet = require("pyarrow", extra="io"), require("pyarrow.parquet", extra="io")
    with atomic_write(path) as temporary:
        writer = None
        try:
            for batch in batches:
                rows = max(1, CELLS // (batch.n_classes or 1))
                for start in range(0, max(1, len(batch)), rows):
                    table = _arrow_table(batch[start : start + rows], arrow)
                    writer = writer or parquet.ParquetWriter(temporary, table.schema)
                    writer.write_table(table)
        finally:
            if writer is not None:
                writer.close()
        if writer is None:
            raise InputError(f"cannot write {path}: there are no predictions")


def _arrow_table(p: Predictions, arrow: Any) -> Any:
    columns: dict[str, Any] = {}
    for name, column in _columns(p).items():
        values = np.ascontiguousarray(column.numpy())
        if column.ndim == 2:
            columns[name] = arrow.FixedSizeListArray.from_arrays(arrow.array(values.reshape(-1)), column.shape[1])
        elif name == "group" and p.group_names:
            columns[name] = arrow.DictionaryArray.from_arrays(values.astype(np.int32), list(p.group_names)).cast(
                "string"
            )
        else:
            columns[name] = arrow.array(values)
    return arrow.table(columns).replace_schema_metadata({META_KEY: json.dumps(p.meta)})


def _columns(p: Predictions, *, keep_brain_float: bool = False) -> dict[str, Tensor]:
    """What there is, by the names it has in files; bfloat16 widened for what does not know it."""
    found = {
        "labels": p.labels,
        "confidence": p.confidence,
        "predicted": p.predicted,
        "group": p.group,
        "image": p.image,
    }
    if p.scores is not None:
        found = {p.kind: p.scores, **found}
    plain = {name: column.detach().cpu() for name, column in found.items() if column is not None}
    if keep_brain_float:
        return plain
    return {name: column.float() if column.dtype == torch.bfloat16 else column for name, column in plain.items()}
