"""Files that are whole or absent: atomic writes, and tensors in safetensors files (never pickle)."""

from __future__ import annotations

import math
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from acls.errors import InputError, require

if TYPE_CHECKING:
    from torch import Tensor


@contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a temporary path beside ``path`` that becomes ``path`` when the block ends well, and vanishes when it fails.

    A reader sees the old file or the whole new one, never a part, also after a power cut. The temporary name keeps the
    suffix, which some writers look at. Missing folders are made; a symbolic link is followed, not replaced.
    """
    final = Path(os.path.realpath(path))
    if final.is_dir():
        raise InputError(f"cannot write {path}: it is a folder; name a file in it")
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the folder of {path}: {error.strerror}") from error
    temporary = final.with_name(f".{final.stem}.{secrets.token_hex(6)}{final.suffix}")
    try:
        yield temporary
        _flush_to_disk(temporary)
        os.replace(temporary, final)
        _flush_to_disk(final.parent)
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write text as UTF-8, whole or not at all."""
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def save_tensors(path: str | os.PathLike[str], tensors: Mapping[str, Tensor], meta: Mapping[str, str]) -> None:
    """Write named tensors and text about them as one safetensors file, whole or not at all."""
    safetensors, of_torch = (require(name, extra="io") for name in ("safetensors", "safetensors.torch"))
    with atomic_write(path) as temporary:
        try:
            of_torch.save_file(_unshared(tensors), temporary, metadata=dict(meta))
        except safetensors.SafetensorError as error:
            # It reports the system's errors as errors of its own, with the number in the text.
            told = re.search(r"os error (\d+)", str(error))
            if told is None:
                raise
            raise OSError(int(told[1]), os.strerror(int(told[1])), str(path)) from error


def load_tensors(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read what `save_tensors` wrote: the tensors, memory-mapped, and the text about them."""
    safetensors = require("safetensors", extra="io")
    if not os.path.isfile(path):
        raise InputError(f"there is no file {path}")
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118
    except safetensors.SafetensorError as error:
        raise InputError(f"{path} is not a whole safetensors file: {error}") from error


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


def finite(value: Any) -> Any:
    """The same value, however nested, with None for NaN and infinities, which JSON does not have; tuples as lists."""
    if isinstance(value, dict):
        return {key: finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
