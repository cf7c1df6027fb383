"""Atomic writes, checks of output paths, locks on folders, and tensors in files with checksums."""

from __future__ import annotations

import glob
import io
import json
import logging
import os
import re
import secrets
import socket
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from acls.errors import InputError, require

if TYPE_CHECKING:
    from torch import Tensor

MARKS: dict[str, tuple[bytes, ...]] = {
    "predictions": (b'"acls":"predictions"', b'"acls": "predictions"', '"acls": "predictions"'.encode("utf-32-le")),
    "calibrator": (b'"acls":"calibrator"',),
    "page": (b'<meta name="generator" content="acls">', b'<a class="skip" href="#verdict">Skip to the verdict</a>'),
    "figure": (b"acls figure",),
}
"""Bytes near the start or end of each kind of file that acls writes; files of other programs do not contain them."""
FOLDERS = {
    "run": ("recipe.yaml", ".lock"),
    "study": ("study.sqlite", "study.lock"),
    "search": ("tune.lock", "tune.sqlite"),
    "reproduction": ("reproduce.lock", "summary.md"),
}
"""Files that identify each kind of folder that acls writes."""
_NEAR = 1 << 18
CHECKSUMS = "checksums"
"""The metadata entry that `save_tensors` adds: the CRC-32 of each tensor and of the other metadata."""


FORMS = {
    "calibrator": (".safetensors",),
    "figure": (".png", ".svg", ".pdf"),
    "predictions": (".npz", ".safetensors", ".parquet", ".csv", ".tsv"),
}
"""Allowed file name extensions for each kind of file."""


def check_form(path: str | os.PathLike[str], kind: str) -> str:
    """Return the extension of a file; raise an error if it is not allowed, or if its writer is not installed.

    A figure without an extension is a PNG.
    """
    suffix = (Path(path).suffix.lower() or ".png") if kind == "figure" else Path(path).suffix
    if suffix not in FORMS[kind]:
        raise InputError(f"cannot write {path}: name a file that ends in {', '.join(FORMS[kind])}")
    if suffix == ".parquet":
        require("pyarrow", extra="io")
    return suffix


def check_output(
    path: str | os.PathLike[str], kind: str, *, inputs: Iterable[str | os.PathLike[str]] = (), force: bool = False
) -> None:
    """Raise an error if a command must not or cannot write ``path``, a file or a folder. Call this before any work.

    An output must not be one of the inputs, also not through a link or another name. Files and folders of the same kind
    that acls wrote, recognized by `MARKS` and `FOLDERS`, may be replaced or continued. An empty folder may be used.
    Anything else may be replaced only with ``force``.
    """
    if kind in FORMS:
        check_form(path, kind)
    target = Path(os.path.realpath(path))
    folder = kind in FOLDERS
    if target.exists():
        for source in inputs:
            if os.path.exists(source) and os.path.samefile(source, target):
                raise InputError(f"{path} is also an input, {source}: pass another path for the output")
        if target.is_dir() and not folder:
            raise InputError(f"cannot write {path}: it is a folder; name a file in it")
        if not (target.is_dir() if folder else target.is_file()):
            raise InputError(f"cannot write {path}: it is not a {'folder' if folder else 'regular file'}")
        if not force and not _is_ours(target, kind):
            what = f"contains files and is not a {kind}" if folder else f"exists and is not a {kind} file"
            way = f"or {'write into it' if folder else 'replace it'} with --force, in Python force=True"
            raise InputError(f"{path} {what} that acls wrote: pass another path, {way}")
    above = next(place for place in (target, *target.parents)[not folder :] if place.exists())
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        raise InputError(f"cannot write {path}: {above} is not a writable folder")


def _is_ours(path: Path, kind: str) -> bool:
    if kind in FOLDERS:
        return any((path / name).exists() for name in FOLDERS[kind]) or not any(path.iterdir())
    with open(path, "rb") as file:
        near = file.read(_NEAR)
        file.seek(max(file.tell(), path.stat().st_size - _NEAR))
        near += file.read()
    return any(mark in near for mark in MARKS[kind])


@contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path that is renamed to ``path`` if the block succeeds, and is removed if it fails.

    A reader sees either the old file or the complete new file, never a part of it, even after a power failure. The
    temporary file is in the same folder and has the same suffix, because some writers choose the format by the suffix.
    Missing folders are created. A symbolic link is followed, not replaced. The file gets the mode of a normal new file,
    even if the writer chose another mode. Temporary files of ``path`` that killed processes left behind are removed.
    """
    final = Path(os.path.realpath(path))
    if final.is_dir():
        raise InputError(f"cannot write {path}: it is a folder; name a file in it")
    host = f"{zlib.crc32(socket.gethostname().encode()):08x}"
    temporary = final.with_name(f".{final.stem}.{host}-{os.getpid()}-{secrets.token_hex(4)}{final.suffix}")
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(final, host)
        temporary.touch()
        mode = temporary.stat().st_mode & 0o777
        temporary.unlink()
        yield temporary
        os.chmod(temporary, mode)
        _flush_to_disk(temporary)
        os.replace(temporary, final)
        _flush_to_disk(final.parent)
        logging.getLogger(__name__).info("wrote %s", path)
    except OSError as error:
        if error.filename in (None, str(temporary)):  # many writers set no file name; the user knows the final path
            error.filename = str(path)
        raise
    finally:
        with suppress(OSError):
            temporary.unlink()


def _remove_leftovers(final: Path, host: str) -> None:
    """Remove temporary files of ``final`` that ended processes on this machine left behind."""
    for left in glob.glob(f".{glob.escape(final.stem)}.{host}-*{glob.escape(final.suffix)}", root_dir=final.parent):
        process = left.removeprefix(f".{final.stem}.{host}-").partition("-")[0]
        try:
            os.kill(int(process), 0)
        except ProcessLookupError:
            (final.parent / left).unlink(missing_ok=True)
        except (ValueError, OverflowError, OSError):
            continue


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write text as UTF-8, atomically."""
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def save_tensors(path: str | os.PathLike[str], tensors: Mapping[str, Tensor], meta: Mapping[str, str]) -> None:
    """Write named tensors, metadata and checksums to one safetensors file, atomically."""
    safetensors, of_torch = (require(name, extra="io") for name in ("safetensors", "safetensors.torch"))
    with atomic_write(path) as temporary:
        plain = _unshared(tensors)
        sums = {name: checksum(tensor) for name, tensor in plain.items()} | {"": _text_checksum(meta)}
        try:
            of_torch.save_file(plain, temporary, metadata={**meta, CHECKSUMS: json.dumps(sums)})
        except safetensors.SafetensorError as error:
            # safetensors wraps errors of the operating system in its own error, with the number in the message.
            number = re.search(r"(?:os error|code:) (\d+)", str(error))
            if number is None:
                raise
            raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error


def load_tensors(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read the memory-mapped tensors and the metadata of a safetensors file; verify the checksums if it has any."""
    with open_tensors(path) as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        meta, sums = split_checksums(file.metadata(), path)
    for name, tensor in tensors.items():
        if name in sums and checksum(tensor) != sums[name]:
            raise damaged(path, name)
    return tensors, meta


@contextmanager
def open_tensors(path: str | os.PathLike[str]) -> Iterator[Any]:
    """Open a safetensors file, which checks shapes, offsets and size; convert read errors to one-line input errors."""
    safetensors = require("safetensors", extra="io")
    if os.path.isdir(path):
        raise InputError(f"{path} is a folder, not a safetensors file")
    try:
        with open(path, "rb"), safetensors.safe_open(path, framework="pt") as file:
            yield file
    except FileNotFoundError:
        raise InputError(f"there is no file {path}") from None
    except (safetensors.SafetensorError, OverflowError) as error:
        raise InputError(f"{path} is not a complete safetensors file: {error}") from error


def split_checksums(
    meta: Mapping[str, str] | None, path: str | os.PathLike[str]
) -> tuple[dict[str, str], dict[str, int]]:
    """Split metadata of a safetensors file into text, verified by its checksum, and the checksums of the tensors."""
    rest = dict(meta or {})
    try:
        sums = json.loads(rest.pop(CHECKSUMS, "{}"))
        if sums and sums.pop("") != _text_checksum(rest):
            raise damaged(path, "metadata")
        return rest, {str(name): int(value) for name, value in sums.items()}
    except (TypeError, AttributeError, KeyError, json.JSONDecodeError) as error:
        raise damaged(path, "metadata") from error


def checksum(tensor: Tensor, start: int = 0) -> int:
    """Return the CRC-32 of a tensor's values; to continue over slices, pass the previous checksum as ``start``."""
    import torch

    # A tensor with one value counts as contiguous with any stride, so set the stride to 1.
    flat = tensor.detach().contiguous().as_strided((tensor.numel(),), (1,))
    return zlib.crc32(flat.view(torch.uint8).numpy().data, start)


def damaged(path: str | os.PathLike[str], what: str) -> InputError:
    """Return the error for a file whose values differ from those that were written."""
    return InputError(f"{path} is damaged: {what!r} does not match its checksum; restore the file, or write it again")


def _text_checksum(meta: Mapping[str, str]) -> int:
    return zlib.crc32(json.dumps(dict(meta), sort_keys=True).encode())


def _unshared(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return contiguous CPU tensors, each with its own storage: the file format does not support views."""
    own: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        plain = tensor.detach().cpu().contiguous()
        storage = plain.untyped_storage()
        if storage.data_ptr() in seen or storage.nbytes() != plain.nbytes:
            plain = plain.clone()
        seen.add(plain.untyped_storage().data_ptr())
        own[name] = plain
    return own


def _flush_to_disk(path: Path) -> None:
    # Flush the folder too, so that the rename itself is permanent. Some systems, such as Windows, cannot open a folder.
    try:
        handle = os.open(path, os.O_RDONLY)
    except PermissionError:
        if path.is_dir():
            return
        raise
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


_held: dict[str, io.FileIO] = {}
"""The locks that this process holds."""


def _drop() -> None:
    """Release the locks in a forked process, such as a data worker: it would keep them after its parent is killed."""
    for file in _held.values():
        file.close()
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_drop)


class Held(InputError):
    """Another process holds the lock; the message says which process, and what to do."""


@contextmanager
def hold(path: str | os.PathLike[str], *, wait: bool = False) -> Iterator[None]:
    """Hold a lock on the file ``path``; if another process holds it, wait for it or raise `Held`.

    The folder of the file is created. The operating system locks the open file, so the lock is released when its
    process is killed. The file is not removed; its text only says which process holds the lock. A process may take the
    same lock several times, so that code that locks the folder of a run can call other code that locks it.
    """
    import fcntl

    path = Path(os.path.realpath(path))
    if str(path) in _held:
        yield
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot create the folder {path.parent}: {error.strerror}; pass another --out") from error
    with open(path, "a+b", buffering=0) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not wait:
                file.seek(0)
                holder = file.read().decode(errors="replace").strip() or "another process"
                used = f"{path.parent} is in use by {holder}"
                raise Held(f"{used}: wait for it with --wait, or pass another --out") from None
            fcntl.flock(file, fcntl.LOCK_EX)
        file.truncate(0)
        holder = f"process {os.getpid()} on {socket.gethostname()} since {datetime.now():%Y-%m-%d %H:%M:%S}\n"
        try:
            file.write(holder.encode())
        except OSError as error:
            error.filename = str(path)
            raise
        _held[str(path)] = file
        try:
            yield
        finally:
            _held.pop(str(path), None)
