"""Read predictions from ``.npz``, ``.safetensors``, ``.parquet`` and ``.csv`` files, whole or in slices of rows.

This module checks the content of a file: sizes against shapes, checksums if there are any, numbers, and labels, which
must be class ids. A damaged file, or a file of another kind, raises an InputError with the name of the file and, where
possible, the row.
"""

from __future__ import annotations

import csv
import glob
import itertools
import json
import logging
import math
import os
import re
import zipfile
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.lib import format as npy
from numpy.typing import NDArray
from torch import Tensor

from acls.arrays import ONE_TOLERANCE, as_tensor, refuse, two_scores
from acls.errors import InputError, require
from acls.predictions.columns import Columns, Field, Layout, Ref, flag, resolve
from acls.predictions.core import Predictions, flatten_maps
from acls.shapes import IGNORE_INDEX
from acls.storage import checksum, damaged, open_tensors, split_checksums

Array = NDArray[Any]
Block = dict[str, list[Array]]
"""Some rows of a file: the arrays of each role, one per name."""
Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
Source = str | os.PathLike[str] | Predictions | Iterable[Predictions]
"""A file of any size, predictions in memory, or slices of them."""
Read = Callable[[int, int], Array]
"""Reads the rows from a start (included) to an end (excluded); calls follow the order of the rows."""

CELLS = 1 << 21
"""Scores in a slice if the caller gives no number of rows: 8 MB of float32."""
META_KEY = b"acls"
"""The key of ``meta`` in the metadata of a parquet file."""
_META_BYTES = 1 << 24


def open_batches(
    paths: Paths,
    columns: Columns | None = None,
    *,
    rows: int | None = None,
    ignore_index: int = IGNORE_INDEX,
    check: bool = True,
) -> Batches:
    """Open a file, a folder or a glob of parquet parts, or a list of files as one data set that is read in slices.

    Iterating yields `Predictions` of at most ``rows`` rows (for dense maps, ``rows`` maps). It can be repeated. Names
    and shapes are checked immediately. Values are checked when they are read, unless ``check`` is False: the first
    invalid row raises an InputError with its file and number. Rows with the label ``ignore_index`` are valid and kept.
    """
    files, columns = _files(paths), columns or Columns()
    counts, cells = [], 8
    for path in files:
        with _open(path, columns) as file:
            # Without the check, arrays of different lengths are detected only when they are read.
            counts.append(file.n_rows() if check else None)
            cells, layout = max(cells, file.n_cells()), file.layout
    n_rows = None if None in counts else sum(n or 0 for n in counts)
    name = str(paths) if isinstance(paths, str | os.PathLike) else str(files[0])
    found = f"{n_rows or 'an unknown number of'} rows of {layout.kind}, from the columns {', '.join(layout.names)}"
    logging.getLogger(__name__).info("reading %s: %d file(s), %s", name, len(files), found)
    return Batches(files, columns, rows or max(1, CELLS // cells), n_rows, ignore_index, check, name)


def slices(source: Source, columns: Columns | None = None, **settings: Any) -> Iterable[Predictions]:
    """Return any source as slices; a file is opened by `open_batches` with ``settings``."""
    if isinstance(source, str | os.PathLike):
        return open_batches(source, columns, **settings)
    return [source] if isinstance(source, Predictions) else source


@dataclass(frozen=True)
class Batches:
    """A data set of predictions on disk; iterating reads it in slices."""

    files: tuple[Path, ...]
    columns: Columns
    rows: int
    n_rows: int | None
    """The number of rows (or dense maps); None if it is not known before reading, as for text files."""
    ignore_index: int
    check: bool
    name: str = ""  # the path as it was given

    def __iter__(self) -> Iterator[Predictions]:
        expected = ""
        build = _Builder(self.ignore_index)
        for path in self.files:
            with _open(path, self.columns) as file:
                row, blocks = 0, file.blocks(self.rows)
                while True:
                    with _reading(f"{path} cannot be read after row {row}: the file is truncated or damaged"):
                        block = next(blocks, None)
                    if block is None:
                        break
                    batch = build(block, file, row)
                    got = f"{batch.kind} of {batch.n_classes} classes"
                    expected = expected or got
                    if got != expected:
                        before = f"{expected}, as in the rows before, starting in {self.files[0]}"
                        raise InputError(f"{path}: row {row}: got {got}, expected {before}")
                    if self.check:
                        batch.check(ignore_index=self.ignore_index, where=str(path), first_row=row)
                    row += len(batch)
                    yield batch
        if self.check and build.ends and max(build.ends) <= 1 + ONE_TOLERANCE and min(build.ends) >= -ONE_TOLERANCE:
            raise InputError(
                f"{self.name}: the logits of class 1 all lie in 0..1, so they are probably probabilities: pass "
                f"{flag('probs', build.single)} (in Python probs={build.single!r}), or logits of both classes as two "
                "columns"
            )


def _files(paths: Paths) -> tuple[Path, ...]:
    if not isinstance(paths, str | os.PathLike):
        found, missing = list(itertools.chain.from_iterable(map(_files, paths))), "expected at least one file, got none"
    elif (path := Path(paths)).is_dir():
        found = sorted(part for part in path.rglob("*.parquet") if not part.name.startswith((".", "_")))
        missing = f"the folder {path} has no .parquet files: pass a file, or a glob in quotes"
    elif path.exists() or not glob.has_magic(str(paths)):
        found, missing = [path] * path.exists(), f"there is no file {path}"
    else:
        found = [Path(name) for name in sorted(glob.glob(str(paths), recursive=True))]
        missing = f"no file matches {paths}"
    if not found:
        raise InputError(missing)
    return tuple(found)


@contextmanager
def _open(path: Path, columns: Columns) -> Iterator[DataFile]:
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise InputError(f"cannot read {path}: expected a file that ends in {', '.join(_READERS)}")
    with ExitStack() as stack:
        try:
            file = reader(path, columns, stack)
        except OSError as error:
            raise InputError(f"cannot read {path}: {error.strerror or error}") from error
        yield file


@contextmanager
def _reading(message: str) -> Iterator[None]:
    """Convert decoder errors for a damaged file to an InputError; errors that name a file are raised unchanged."""
    try:
        yield
    except Exception as error:
        if isinstance(error, InputError) or getattr(error, "filename", None) is not None:
            raise
        raise InputError(f"{message} ({error})") from error


class DataFile(ABC):
    """An open file: its names (`fields`), the role of each name (`layout`), its `meta`, and its rows in slices."""

    def __init__(self, path: Path, columns: Columns, stack: ExitStack) -> None:
        self.path = path
        self.meta: dict[str, str] = {}
        self.fields: dict[str, Field] = {}
        self._open(stack)
        try:
            self.layout = resolve(columns, self.fields, str(path))
        except InputError:
            self.layout = resolve(columns, self._with_units(), str(path))  # raises again, with a better hint

    def _with_units(self) -> dict[str, Field]:
        fields = dict(self.fields)
        self.layout = Layout("probs", {"group": tuple(map(Ref, fields))})  # as groups, words are no error
        with suppress(Exception):
            for name, values in zip(fields, next(self.blocks(100))["group"], strict=True):
                with suppress(ValueError, TypeError):
                    values = values.astype(float)
                    unit = values.ndim == 1 and bool(((values >= 0) & (values <= 1)).all() and (values % 1).any())
                    fields[name] = replace(fields[name], unit=unit)
        return fields

    @abstractmethod
    def _open(self, stack: ExitStack) -> None:
        """Set `fields` and `meta`; push resources that must be closed onto the stack."""

    def n_rows(self) -> int | None:
        """Return the number of rows, equal for all arrays of the layout; None if it is not known before reading."""
        return None

    @abstractmethod
    def n_cells(self) -> int:
        """Return the number of values in one row of scores."""

    @abstractmethod
    def blocks(self, rows: int) -> Iterator[Block]:
        """Yield at most ``rows`` rows at a time."""


class ArrayFile(DataFile):
    """An open file of named arrays, whose `fields` have shapes."""

    def n_rows(self) -> int:
        first = self.layout.roles.get("labels", self.layout.main)[0]
        shape = self._shape(first)
        if not shape:
            raise InputError(f"{self.path}: {str(first)!r} is a single value: expected one value per row")
        for ref in itertools.chain.from_iterable(self.layout.roles.values()):
            its = self._shape(ref)
            name = f"{self.path}: {str(ref)!r}"
            if self.fields[ref.name].dtype == "object":
                raise InputError(f"{name} contains Python objects, which need pickle: save it as an array of numbers")
            if its[:1] != shape[:1]:
                hint = _axis_hint(str(ref), its, shape[0])
                got = f"has shape {its}, but there are {shape[0]} {first}"
                raise InputError(f"{name} {got}: axis 0 holds the samples{hint}")
        return shape[0]

    def n_cells(self) -> int:
        return sum(math.prod(self._shape(ref)[1:]) for ref in self.layout.main)

    def blocks(self, rows: int) -> Iterator[Block]:
        n, roles = self.n_rows(), self.layout.roles
        with ExitStack() as stack:
            readers = {role: [self._reader(ref, n, stack) for ref in refs] for role, refs in roles.items()}
            for start in range(0, n, rows):
                yield {role: [read(start, min(start + rows, n)) for read in some] for role, some in readers.items()}

    @abstractmethod
    def _reader(self, ref: Ref, n: int, stack: ExitStack) -> Read: ...

    def _shape(self, ref: Ref) -> tuple[int, ...]:
        return (self.fields[ref.name].shape or ())[len(ref.index) :]


def _axis_hint(name: str, shape: tuple[int, ...], n: int) -> str:
    if len(shape) == 2 and shape[1] == n:
        return ", so save its transpose"
    if len(shape) == 3 and shape[1] == n:
        return f", so pass one of them, {name}[0] to {name}[{shape[0] - 1}]"
    return ""


class SafetensorsFile(ArrayFile):
    """A safetensors file; the library checks shapes, offsets and size, and this class checks the checksums of acls."""

    def _open(self, stack: ExitStack) -> None:
        with open_tensors(self.path) as file:
            self.meta, self._sums = split_checksums(file.metadata(), self.path)
            for name in file.keys():  # noqa: SIM118
                self.fields[name] = Field(tuple(file.get_slice(name).get_shape()))

    def _reader(self, ref: Ref, n: int, stack: ExitStack) -> Read:
        running = 0

        def read(start: int, stop: int) -> Array:
            nonlocal running
            # Open the file again for each slice: mapped pages count as resident memory until the file is closed.
            with open_tensors(self.path) as file:
                part = file.get_slice(ref.name)[(*ref.index, slice(start, stop))]
            if not ref.index:
                running = checksum(part, running)
                if stop == n and self._sums.get(ref.name, running) != running:
                    raise damaged(self.path, ref.name)
            return np.asarray(part.float() if part.dtype == torch.bfloat16 else part)

        return read


class NpzFile(ArrayFile):
    """A file from ``np.savez`` or ``np.savez_compressed``; object arrays raise an error, because they are pickles."""

    def _open(self, stack: ExitStack) -> None:
        with _reading(f"{self.path} is not a complete .npz file: it is truncated or has another format"):
            self._zip = stack.enter_context(zipfile.ZipFile(self.path))
        names = Counter(info.filename for info in self._zip.infolist())
        for info in self._zip.infolist():
            name = info.filename.removesuffix(".npy")
            if name == info.filename:
                continue
            where = f"{self.path}: {name}"
            with _reading(f"{where} is not a NumPy array"), self._zip.open(info) as stream:
                shape, _, dtype = _npy_header(stream)
                header = stream.tell()
                if name == "meta" and shape == () and dtype.kind == "U" and dtype.itemsize < _META_BYTES:
                    self.meta = _text_dict(str(np.frombuffer(stream.read(), dtype)[0]))
                    continue
            if not dtype.hasobject and header + math.prod(shape) * dtype.itemsize != info.file_size:
                raise InputError(
                    f"{where} is damaged: {info.file_size} bytes do not match shape {shape} and dtype {dtype}"
                )
            self.fields[name] = Field(shape, str(dtype), twice=names[info.filename] > 1)

    def _reader(self, ref: Ref, n: int, stack: ExitStack) -> Read:
        stream = stack.enter_context(self._zip.open(f"{ref.name}.npy"))
        # Read instead of seek: after a seek, zipfile no longer verifies the checksum.
        whole, fortran, dtype = _npy_header(stream)
        if fortran and len(whole) > 1:  # its rows are not contiguous
            array = np.frombuffer(stream.read(), dtype).reshape(whole, order="F")[ref.index]
            return lambda start, stop: array[start:stop]
        shape = self._shape(ref)[1:]
        size = math.prod(shape) * dtype.itemsize
        if ref.index:
            before = int(np.ravel_multi_index(ref.index, whole[: len(ref.index)])) * n
            stream.seek(before * size, os.SEEK_CUR)

        def read(start: int, stop: int) -> Array:
            return np.frombuffer(stream.read((stop - start) * size), dtype).reshape(stop - start, *shape)

        return read


def _npy_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = npy.read_magic(stream)
    shape, fortran, dtype = (npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0)(stream)
    if any(size < 0 for size in shape):
        raise ValueError(f"its shape is {shape}")
    return shape, fortran, dtype


class ParquetFile(DataFile):
    """A parquet file; a row of scores is a list, a fixed-size list, or one column per class."""

    def _open(self, stack: ExitStack) -> None:
        parquet = require("pyarrow.parquet", extra="io")
        with open(self.path, "rb"):  # raises the error of the operating system if the file is not readable
            pass
        with _reading(f"{self.path} is not a complete parquet file"):
            # Use a buffer: otherwise a whole column of a row group, possibly the whole file, is read at once.
            how = {"buffer_size": 1 << 20, "pre_buffer": False, "page_checksum_verification": True}
            self._file = stack.enter_context(parquet.ParquetFile(self.path, **how))
            schema = self._file.schema_arrow
            self.meta = _text_dict((schema.metadata or {}).get(META_KEY, b"{}").decode())
        names = Counter(schema.names)
        self.fields = {field.name: Field(None, str(field.type), twice=names[field.name] > 1) for field in schema}

    def n_rows(self) -> int:
        return int(self._file.metadata.num_rows)

    def n_cells(self) -> int:
        if not self._file.metadata.num_row_groups:
            return 1
        first = self._file.metadata.row_group(0)  # counts all columns; nearly all values are scores
        values = sum(first.column(index).num_values for index in range(first.num_columns))
        return int(values) // max(1, int(first.num_rows))

    def blocks(self, rows: int) -> Iterator[Block]:
        done = 0
        for batch in self._file.iter_batches(batch_size=rows, columns=self.layout.names, use_threads=False):
            if batch.num_rows:
                yield {
                    role: [self._values(batch.column(ref.name), ref.name, done) for ref in refs]
                    for role, refs in self.layout.roles.items()
                }
            done += batch.num_rows

    def _values(self, column: Any, name: str, first_row: int, per_row: int = 1) -> Array:
        if column.null_count:
            index = int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
            raise InputError(f"{self.path}: row {first_row + index // per_row}: {name!r} is null")
        if hasattr(column, "value_lengths"):  # a list of any size and kind
            lengths = column.value_lengths().to_numpy(zero_copy_only=False)
            wrong = np.flatnonzero(lengths != lengths[0])
            if wrong.size:
                got = f"{name!r} has {lengths[wrong[0]]} classes, but {lengths[0]} in the rows before"
                raise InputError(f"{self.path}: row {first_row + wrong[0]}: {got}")
            k = int(lengths[0])
            return self._values(column.flatten(), name, first_row, max(1, k)).reshape(len(column), k)
        if hasattr(column, "dictionary_decode"):
            column = column.dictionary_decode()
        return np.asarray(column.to_numpy(zero_copy_only=False))


class CsvFile(DataFile):
    """A text file with a header line; the separator is the most frequent of ``, ; tab`` in the header."""

    def _open(self, stack: ExitStack) -> None:
        file = stack.enter_context(open(self.path, newline="", encoding="utf-8-sig"))  # noqa: SIM115
        with _reading(f"{self.path} is not a text file with a header line"):
            line = file.readline()
            self._records = csv.reader(itertools.chain([line], file), delimiter=max(",;\t", key=line.count))
            self._header = [name.strip() for name in next(self._records, [])]
        if not self._header:
            raise InputError(f"{self.path} is empty: expected a header line with the names of the columns")
        self.fields = {name: Field(twice=count > 1) for name, count in Counter(self._header).items()}

    def n_cells(self) -> int:
        return 8 * len(self._header)  # all columns are read; a number as text takes about eight times the memory

    def blocks(self, rows: int) -> Iterator[Block]:
        done = 0
        filled = (record for record in self._records if len(record) > 1 or "".join(record).strip())
        while records := list(itertools.islice(filled, rows)):
            for index, record in enumerate(records):
                if len(record) != len(self._header):
                    got = f"row {done + index}: {len(record)} values for {len(self._header)} columns"
                    raise InputError(f"{self.path}: {got}: the file is truncated, or a value contains the separator")
            columns = dict(zip(self._header, zip(*records, strict=True), strict=True))
            yield {
                role: [self._values(columns[ref.name], ref.name, role, done) for ref in refs]
                for role, refs in self.layout.roles.items()
            }
            done += len(records)

    def _values(self, cells: Sequence[str], name: str, role: str, first_row: int) -> Array:
        if role in ("group", "image"):  # always text: a later row may not be a number
            return np.array(cells)
        if role == "correct":
            cells = [_TRUTH.get(cell.strip().lower(), cell) for cell in cells]
        try:
            if "_" in "".join(cells):  # Python accepts it as a separator of thousands
                raise ValueError
            return np.array(list(map(float, cells)))
        except ValueError:
            index = next(index for index, cell in enumerate(cells) if not _NUMBER.fullmatch(cell))
            what = f"is {cells[index]!r}, which is not a number" if cells[index].strip() else "is empty"
            raise InputError(f"{self.path}: row {first_row + index}: {name!r} {what}") from None


_TRUTH = {"true": "1", "false": "0", "yes": "1", "no": "0"}
_NUMBER = re.compile(r"\s*[+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|nan|inf(inity)?)\s*", re.IGNORECASE)
_READERS: dict[str, type[DataFile]] = {
    ".npz": NpzFile, ".safetensors": SafetensorsFile, ".parquet": ParquetFile, ".csv": CsvFile, ".tsv": CsvFile
}  # fmt: skip


def _text_dict(text: str) -> dict[str, str]:
    """Parse the ``meta`` of a file from JSON text; return an empty dictionary if the text is something else."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return {str(key): str(value) for key, value in found.items()} if isinstance(found, dict) else {}


@dataclass
class _Builder:
    """Makes `Predictions` from arrays; a group name gets the same number in every slice."""

    missing: int
    """The label of all rows if the file has no labels."""
    names: dict[str, dict[str, int]] = field(default_factory=lambda: {"group": {}, "image": {}})
    images: int = 0
    single: str = ""
    """The name of the logits if it holds one score per row."""
    ends: list[float] = field(default_factory=list)
    """The smallest and largest of these scores in each slice."""

    def __call__(self, block: Block, file: DataFile, row: int) -> Predictions:
        layout, meta, where = file.layout, file.meta, str(file.path)
        columns: dict[str, Any] = {"scores": None}
        for role, arrays in block.items():
            name = ",".join(map(str, layout.roles[role][:3]))
            if role == "scores":
                columns[role] = _scores(arrays, name, layout, where)
                if layout.kind == "logits" and math.prod(arrays[0].shape[1:]) * len(arrays) == 1 and len(arrays[0]):
                    self.single = name
                    self.ends += (float(end) for end in columns[role][:, 1].aminmax())
            elif role in ("confidence", "weight"):
                columns[role] = _floats(arrays[0], name, where)
            elif role in self.names and arrays[0].dtype.kind in "UOS":
                columns[role] = self._numbers(role, arrays[0])
            else:
                columns[role] = _integers(arrays[0], name, where, row)
        if "group_names" in meta and "group" in columns:
            try:
                named = np.array([str(name) for name in json.loads(meta["group_names"])])[columns["group"].numpy()]
            except (ValueError, TypeError, IndexError) as error:
                raise InputError(f"{where}: the names of its groups do not match the groups: {error}") from error
            columns["group"] = self._numbers("group", named)
        if "correct" in columns:
            columns["labels"] = correct = columns.pop("correct")
            wrong = (correct != 0) & (correct != 1) & (correct != self.missing)
            refuse([(wrong, "expected 1 (correct) or 0 (wrong), got {}", correct)], where, row)
        if layout.kind == "triples":  # a stated confidence is that of class 1, "correct"
            columns.setdefault("predicted", torch.ones(columns["confidence"].shape, dtype=torch.int64))
        if "labels" not in columns:
            shape = columns["confidence"].shape if columns["scores"] is None else columns["scores"][:, 0].shape
            columns["labels"] = torch.full(shape, self.missing)
        images = len(columns["labels"])
        rest = {key: value for key, value in meta.items() if key not in ("group_names", "acls")}
        try:
            flat, self.images = flatten_maps(columns, self.images), self.images + images
            return Predictions(kind=layout.kind, group_names=tuple(self.names["group"]), meta=rest, **flat)
        except InputError as error:
            raise InputError(f"{where}: {error}") from error

    def _numbers(self, role: str, names: Array) -> Tensor:
        known = self.names[role]
        distinct, first, inverse = np.unique(names.astype(str), return_index=True, return_inverse=True)
        for index in np.argsort(first):  # numbered by first appearance, independent of the slices
            known.setdefault(str(distinct[index]), len(known))
        return torch.from_numpy(np.array([known[str(name)] for name in distinct])[inverse])


def _scores(arrays: list[Array], name: str, layout: Layout, where: str) -> Tensor:
    for array, ref in zip(arrays, layout.roles["scores"], strict=True):
        if len(arrays) > 1 and array.ndim != 1:
            raise InputError(f"{where}: {str(ref)!r} has shape {array.shape}: expected one column per class")
    scores = _floats(arrays[0] if len(arrays) == 1 else np.stack(arrays, axis=1), name, where)
    if scores.ndim > 1 and scores.shape[1] > 1:
        return scores
    return two_scores(scores if scores.ndim == 1 else scores[:, 0], layout.kind)


def _floats(array: Array, name: str, where: str) -> Tensor:
    if array.dtype.kind not in "fiu":
        raise InputError(f"{where}: {name!r} has dtype {_dtype_name(array)}: expected numbers")
    return as_tensor(array.astype(np.float32) if array.dtype.kind in "iu" else array)


def _integers(array: Array, name: str, where: str, row: int) -> Tensor:
    if array.dtype.kind not in "fiub":
        raise InputError(f"{where}: {name!r} has dtype {_dtype_name(array)}: expected integers of 0 or more")
    if array.dtype.kind == "f":
        right = np.isfinite(array) & (array == np.rint(array)) & (np.abs(array) < 2.0**53)
    else:
        right = array <= np.iinfo(np.int64).max
    if not right.all():
        first = np.argwhere(~right)[0]
        raise InputError(f"{where}: row {row + first[0]}: {name!r} is {array[tuple(first)]}: expected an integer")
    return as_tensor(array.astype(np.int64))


def _dtype_name(array: Array) -> str:
    return "text" if array.dtype.kind in "UOS" else str(array.dtype)
