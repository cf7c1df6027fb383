"""Files that are whole or absent: atomic writes, what an output may replace, locks on folders, and tensors in files."""

from __future__ import annotations

import glob
import io
import json
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
"""What the files of each kind that acls writes hold near their start or end, and those of others do not."""
FOLDERS = {
    "run": ("recipe.yaml", ".lock"),
    "study": ("study.sqlite", "study.lock"),
    "search": ("tune.lock", "tune.sqlite"),
    "reproduction": ("reproduce.lock", "summary.md"),
}
"""Files by which a folder of each kind that acls writes is known."""
_NEAR = 1 << 18
CHECKSUMS = "checksums"
"""The entry of a safetensors file's metadata that `save_tensors` adds: the CRC-32 of each tensor and of the rest."""


FORMS = {
    "calibrator": (".safetensors",),
    "figure": (".png", ".svg", ".pdf"),
    "predictions": (".npz", ".safetensors", ".parquet", ".csv", ".tsv"),
}
"""How the names of files may end, by their kind."""


def check_form(path: str | os.PathLike[str], kind: str) -> str:
    """Return the ending of a file; raise where its kind has another, or where what writes it is not installed.

    A figure may have none, and is a PNG then.
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
    """Raise, before any work, where a command must not or cannot write ``path``, a file or a folder.

    An output is never one of the inputs, under whatever name or link. What acls wrote of the same kind, one of `MARKS`
    or `FOLDERS`, is replaced or gone on with, as is an empty folder; anything else only by ``force``.
    """
    if kind in FORMS:
        check_form(path, kind)
    target = Path(os.path.realpath(path))
    folder = kind in FOLDERS
    if target.exists():
        for source in inputs:
            if os.path.exists(source) and os.path.samefile(source, target):
                raise InputError(f"{path} is an input too, {source}: pass another path for the output")
        if target.is_dir() and not folder:
            raise InputError(f"cannot write {path}: it is a folder; name a file in it")
        if not (target.is_dir() if folder else target.is_file()):
            raise InputError(f"cannot write {path}: it is not a {'folder' if folder else 'regular file'}")
        if not force and not _is_ours(target, kind):
            what = f"holds files and is no {kind}" if folder else f"exists and is no {kind} file"
            way = f"or {'write into it' if folder else 'replace it'} with --force, in Python force=True"
            raise InputError(f"{path} {what} that acls wrote: pass another path, {way}")
    above = next(place for place in (target, *target.parents)[not folder :] if place.exists())
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        raise InputError(f"cannot write {path}: {above} is not a folder that you may write in")


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
    """Give a temporary path beside ``path`` that becomes ``path`` when the block ends well, and vanishes when it fails.

    A reader sees the old file or the whole new one, never a part, also after a power cut. The temporary name keeps the
    suffix, which some writers look at. Missing folders are made; a symbolic link is followed, not replaced. The mode is
    that of any new file, whatever mode the writer chose. What a process that was killed left of the same file goes.
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
    except OSError as error:
        if error.filename in (None, str(temporary)):  # writers often name none; the user knows the final one
            error.filename = str(path)
        raise
    finally:
        with suppress(OSError):
            temporary.unlink()


def _remove_leftovers(final: Path, host: str) -> None:
    """Remove the temporary files of ``final`` whose process, on this machine, is no more."""
    for left in glob.glob(f".{glob.escape(final.stem)}.{host}-*{glob.escape(final.suffix)}", root_dir=final.parent):
        process = left.removeprefix(f".{final.stem}.{host}-").partition("-")[0]
        try:
            os.kill(int(process), 0)
        except ProcessLookupError:
            (final.parent / left).unlink(missing_ok=True)
        except (ValueError, OverflowError, OSError):
            continue


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write text as UTF-8, whole or not at all."""
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def save_tensors(path: str | os.PathLike[str], tensors: Mapping[str, Tensor], meta: Mapping[str, str]) -> None:
    """Write named tensors and text about them, with checksums, as one safetensors file, whole or not at all."""
    safetensors, of_torch = (require(name, extra="io") for name in ("safetensors", "safetensors.torch"))
    with atomic_write(path) as temporary:
        plain = _unshared(tensors)
        sums = {name: checksum(tensor) for name, tensor in plain.items()} | {"": _text_checksum(meta)}
        try:
            of_torch.save_file(plain, temporary, metadata={**meta, CHECKSUMS: json.dumps(sums)})
        except safetensors.SafetensorError as error:
            # It reports the system's errors as errors of its own, with the number in the text.
            number = re.search(r"os error (\d+)", str(error))
            if number is None:
                raise
            raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error


def load_tensors(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read a safetensors file: the tensors, memory-mapped, and the text about them; checksums, if any, must agree."""
    with open_tensors(path) as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        meta, sums = split_checksums(file.metadata(), path)
    for name, tensor in tensors.items():
        if name in sums and checksum(tensor) != sums[name]:
            raise damaged(path, name)
    return tensors, meta


@contextmanager
def open_tensors(path: str | os.PathLike[str]) -> Iterator[Any]:
    """Open a safetensors file, which checks shapes, offsets and size, and give the errors of reading it in a line."""
    safetensors = require("safetensors", extra="io")
    if os.path.isdir(path):
        raise InputError(f"{path} is a folder, not a safetensors file")
    try:
        with open(path, "rb"), safetensors.safe_open(path, framework="pt") as file:
            yield file
    except FileNotFoundError:
        raise InputError(f"there is no file {path}") from None
    except (safetensors.SafetensorError, OverflowError) as error:
        raise InputError(f"{path} is not a whole safetensors file: {error}") from error


def split_checksums(
    meta: Mapping[str, str] | None, path: str | os.PathLike[str]
) -> tuple[dict[str, str], dict[str, int]]:
    """The metadata of a safetensors file without the checksums, which agree with it, and those of its tensors."""
    rest = dict(meta or {})
    try:
        sums = json.loads(rest.pop(CHECKSUMS, "{}"))
        if sums and sums.pop("") != _text_checksum(rest):
            raise damaged(path, "metadata")
        return rest, {str(name): int(value) for name, value in sums.items()}
    except (TypeError, AttributeError, KeyError, json.JSONDecodeError) as error:
        raise damaged(path, "metadata") from error


def checksum(tensor: Tensor, start: int = 0) -> int:
    """The CRC-32 of a tensor's values; ``start`` is that of what comes before, so that slices add up to the whole."""
    import torch

    # One value of every second is contiguous too, whatever its stride.
    flat = tensor.detach().contiguous().as_strided((tensor.numel(),), (1,))
    return zlib.crc32(flat.view(torch.uint8).numpy().data, start)


def damaged(path: str | os.PathLike[str], what: str) -> InputError:
    """The error about a file whose values are not the ones that were written."""
    return InputError(f"{path} is damaged: {what!r} does not match its checksum; restore the file, or write it again")


def _text_checksum(meta: Mapping[str, str]) -> int:
    return zlib.crc32(json.dumps(dict(meta), sort_keys=True).encode())


def _unshared(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors on the CPU, contiguous, no two in the same storage: the format has no notion of a view."""
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
    # A folder is flushed too, so that the rename itself survives; not every system can open one (Windows cannot).
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
"""The locks of this process."""


def _drop() -> None:
    """Give the locks up in a forked process, as a reader of data: it would keep them when its parent is killed."""
    for file in _held.values():
        file.close()
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_drop)


class Held(InputError):
    """Another process holds the lock; the message says which, and the way out."""


@contextmanager
def hold(path: str | os.PathLike[str], *, wait: bool = False) -> Iterator[None]:
    """Hold the lock file ``path``, whose folder is made; where another process holds it, wait for it or raise `Held`.

    The lock is the operating system's, on the open file, so that of a process that was killed is free. The file stays:
    its text only says who holds the lock. A process may hold one lock several times, so that code that locks a
    run's folder can call code that locks it, too.
    """
    import fcntl

    path = Path(os.path.realpath(path))
    if str(path) in _held:
        yield
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the folder {path.parent}: {error.strerror}; pass another --out") from error
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
