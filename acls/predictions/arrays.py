"""Files of named arrays, ``.npz`` and ``.safetensors``, read in slices of rows with plain reads.

Slices come through `read`, not through a memory map, because pages of a map count as resident memory until the system
wants them back. Whole arrays are mapped where the file stores them uncompressed.
"""

from __future__ import annotations

import json
import math
import mmap
import shutil
import tempfile
import zipfile
import zlib
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

from acls.errors import InputError
from acls.predictions.columns import Field, Layout, Ref
from acls.predictions.files import Array, DataFile, text_dict


@dataclass(frozen=True)
class _Stored:
    """How one array lies in its file."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int | None
    """Where its values start in the file; None where they are compressed."""
    fortran: bool = False
    brain_float: bool = False
    """Whether the dtype, uint16, stands for bfloat16, which NumPy does not have."""

    @property
    def dtype_name(self) -> str:
        return "bfloat16" if self.brain_float else str(self.dtype)


class ArrayFile(DataFile):
    """An open file of named arrays; the formats differ in `_describe` and `_open`."""

    def _open_files(self, stack: ExitStack) -> None:
        self._stored = self._describe(stack)
        self.fields = {name: Field(array.shape, array.dtype_name) for name, array in self._stored.items()}

    def n_rows(self, layout: Layout) -> int:
        for name in layout.names:
            if self._stored[name].dtype.hasobject:
                raise InputError(
                    f"{self.path}: {name!r} holds Python objects, which are pickles: save it as an array of numbers"
                )
        lengths = {str(ref): self._shape(ref) for refs in layout.roles.values() for ref in refs}
        name, shape = next((str(ref), self._shape(ref)) for ref in layout.roles.get("labels", layout.main))
        if not shape:
            raise InputError(f"{self.path}: {name!r} is a single value, not one a row")
        for other, its in lengths.items():
            if not its or its[0] != shape[0]:
                raise InputError(
                    f"{self.path}: {other!r} has shape {its}, but there are {shape[0]} {name}: axis 0 holds the samples"
                    + _axis_hint(other, its, shape[0])
                )
        return shape[0]

    def n_cells(self, layout: Layout) -> int:
        return sum(math.prod(self._shape(ref)[1:]) for ref in layout.main)

    def blocks(self, layout: Layout, rows: int) -> Iterator[dict[str, list[Array]]]:
        n = self.n_rows(layout)
        with ExitStack() as stack:
            readers = {role: [self._reader(ref, n, stack) for ref in refs] for role, refs in layout.roles.items()}
            for start in range(0, n, rows):
                stop = min(start + rows, n)
                yield {role: [reader.read(start, stop) for reader in some] for role, some in readers.items()}

    def whole(self, layout: Layout) -> dict[str, list[Array]]:
        """All rows of each role, memory-mapped where they are stored as they are."""
        self.n_rows(layout)
        return {role: [self._whole(ref) for ref in refs] for role, refs in layout.roles.items()}

    @abstractmethod
    def _describe(self, stack: ExitStack) -> dict[str, _Stored]: ...

    @abstractmethod
    def _open(self, name: str) -> IO[bytes]:
        """A stream that stands at the first value of an array."""

    def _shape(self, ref: Ref) -> tuple[int, ...]:
        return self._stored[ref.name].shape[len(ref.index) :]

    def _whole(self, ref: Ref) -> Array:
        stored = self._stored[ref.name]
        if stored.offset is None:
            with ExitStack() as stack:
                n = self._shape(ref)[0]
                return self._reader(ref, n, stack).read(0, n)
        array = _mapped(self.path, stored, stored.offset)[ref.index]
        return _widen_brain_float(array) if stored.brain_float else array

    def _reader(self, ref: Ref, n: int, stack: ExitStack) -> _Rows | _Strided:
        stored = self._stored[ref.name]
        if not stored.fortran:
            stream = stack.enter_context(self._open(ref.name))
            row = math.prod(self._shape(ref)[1:]) * stored.dtype.itemsize
            rows_before = int(np.ravel_multi_index(ref.index, stored.shape[: len(ref.index)])) * n if ref.index else 0
            stream.seek(rows_before * row, 1)
            return _Rows(stream, stored, self._shape(ref)[1:], f"{self.path}: {ref}")
        if stored.offset is not None:
            return _Strided(_mapped(self.path, stored, stored.offset), ref.index)
        # Column by column and compressed: rows cannot be had in order, so the values go through a temporary file.
        spool = stack.enter_context(tempfile.NamedTemporaryFile())  # noqa: SIM115
        with self._open(ref.name) as stream, _reading(f"{self.path}: {ref}"):
            shutil.copyfileobj(stream, spool, 1 << 20)
        spool.flush()
        return _Strided(_mapped(Path(spool.name), stored, 0), ref.index)


class NpzFile(ArrayFile):
    """What ``np.savez`` or ``np.savez_compressed`` wrote; object arrays, which are pickles, are refused."""

    def _describe(self, stack: ExitStack) -> dict[str, _Stored]:
        try:
            self._zip = stack.enter_context(zipfile.ZipFile(self.path))
        except zipfile.BadZipFile as error:
            raise InputError(f"{self.path} is not a whole .npz file: truncated, or of another format") from error
        stored = {}
        for info in self._zip.infolist():
            name = info.filename.removesuffix(".npy")
            if name == info.filename:
                continue
            with _reading(f"{self.path}: {name}"), self._zip.open(info) as stream:
                shape, fortran, dtype = _npy_header(stream, f"{self.path}: {name}")
                header = stream.tell()
                if name == "meta" and shape == () and dtype.kind == "U":
                    self.meta = text_dict(str(np.frombuffer(stream.read(), dtype)[0]))
                    continue
            offset = None
            if info.compress_type == zipfile.ZIP_STORED:
                offset = _member_start(self.path, info) + header
            stored[name] = _Stored(shape, dtype, offset, fortran and len(shape) > 1)
        return stored

    def _open(self, name: str) -> IO[bytes]:
        stream = self._zip.open(f"{name}.npy")
        _npy_header(stream, f"{self.path}: {name}")
        return stream


class SafetensorsFile(ArrayFile):
    """The safetensors format: eight bytes of length, a JSON header of that length, raw values."""

    _DTYPES: Mapping[str, str] = {
        "F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1",
        "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "u1", "BOOL": "?",
    }  # fmt: skip

    def _describe(self, stack: ExitStack) -> dict[str, _Stored]:
        broken = InputError(f"{self.path} is not a whole safetensors file: truncated, or of another format")
        size = self.path.stat().st_size
        with open(self.path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > size - 8:
                raise broken
            try:
                header = json.loads(file.read(length))
            except ValueError:
                raise broken from None
        self.meta = dict(header.pop("__metadata__", {}))
        stored = {}
        for name, entry in header.items():
            begin, end = entry["data_offsets"]
            if 8 + length + end > size:
                raise broken
            if entry["dtype"] in self._DTYPES:
                dtype = np.dtype(self._DTYPES[entry["dtype"]])
                brain = entry["dtype"] == "BF16"
                stored[name] = _Stored(tuple(entry["shape"]), dtype, 8 + length + begin, brain_float=brain)
        return stored

    def _open(self, name: str) -> IO[bytes]:
        file = open(self.path, "rb")  # noqa: SIM115 - the caller closes it
        file.seek(self._stored[name].offset or 0)
        return file


@dataclass
class _Rows:
    """Rows of an array one after the other, from a stream of its values."""

    stream: IO[bytes]
    stored: _Stored
    shape: tuple[int, ...]
    where: str

    def read(self, start: int, stop: int) -> Array:
        block: Array = np.empty((stop - start, *self.shape), self.stored.dtype)
        left = block.reshape(-1).view(np.uint8).data if block.nbytes else memoryview(b"")
        with _reading(self.where):
            while left:
                got = self.stream.readinto(left)  # type: ignore[attr-defined]
                if not got:
                    raise InputError(f"{self.where} ends before row {stop}: the file is truncated")
                left = left[got:]
        return _widen_brain_float(block) if self.stored.brain_float else block


@dataclass
class _Strided:
    """Rows of a mapped array whose memory order is another; what was read is given back to the system."""

    array: Array
    index: tuple[int, ...]

    def read(self, start: int, stop: int) -> Array:
        block = np.array(self.array[self.index][start:stop], order="C")
        if hasattr(mmap, "MADV_DONTNEED") and isinstance(self.array, np.memmap):
            self.array._mmap.madvise(mmap.MADV_DONTNEED)  # type: ignore[attr-defined]
        return block


@contextmanager
def _reading(where: str) -> Iterator[None]:
    """Turn what a damaged file makes the decoders raise into a sentence."""
    try:
        yield
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise InputError(f"{where} cannot be read: the file is truncated or damaged ({error})") from error


def _mapped(path: Path, stored: _Stored, offset: int) -> Array:
    if math.prod(stored.shape) == 0:
        return np.empty(stored.shape, stored.dtype)
    # Copy-on-write: torch wants memory that it may write, and the file must not change.
    return np.memmap(path, stored.dtype, "c", offset, stored.shape, "F" if stored.fortran else "C")


def _npy_header(stream: IO[bytes], where: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    try:
        version = npy.read_magic(stream)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, fortran, dtype = read(stream)
    except ValueError as error:
        raise InputError(f"{where} is not a NumPy array: {error}") from error
    return shape, fortran, dtype


def _member_start(path: Path, info: zipfile.ZipInfo) -> int:
    """Where the bytes of a stored member begin: behind its local header, whose last two fields have any length."""
    with open(path, "rb") as file:
        file.seek(info.header_offset + 26)
        name, extra = np.frombuffer(file.read(4), "<u2")
    return info.header_offset + 30 + int(name) + int(extra)


def _widen_brain_float(bits: Array) -> Array:
    wide: Array = (bits.astype(np.uint32) << 16).view(np.float32)
    return wide


def _axis_hint(name: str, shape: tuple[int, ...], n: int) -> str:
    if len(shape) == 2 and shape[1] == n:
        return ", so save its transpose"
    if len(shape) == 3 and shape[1] == n:
        return f", so name one of them, {name}[0] to {name}[{shape[0] - 1}]"
    return ""
