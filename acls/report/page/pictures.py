"""Pictures of samples, if they are available: from the data set of a run, or from files that the user names."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from acls.data import load
from acls.data.dataset import InMemory, OnDisk, Part
from acls.errors import InputError, require
from acls.recipes import Recipe

Picture = Callable[[int], "NDArray[np.uint8] | None"]
"""Returns the picture of the sample with a number, or None."""
LARGEST = 96
"""Largest side of a thumbnail, in pixels."""
_SUFFIXES = {".png", ".jpg", ".jpeg", ".webp", ".bmp"}


def addresses(picture: Picture | None, numbers: Iterable[int]) -> dict[int, str]:
    """Return the data URLs of the samples that have a picture."""
    if picture is None:
        return {}
    found = {number: picture(number) for number in dict.fromkeys(numbers)}
    return {number: data_address(pixels) for number, pixels in found.items() if pixels is not None}


def of_recipe(recipe: Recipe) -> Picture | None:
    """Return the pictures of a recipe's test part; None if the data is not available."""
    try:
        part = load(recipe.data, seed=recipe.seed).test
    except (InputError, ImportError, OSError):  # a report does not need the data of the run
        return None
    return lambda number: _from_part(part, number)


def of_files(path: str | Path) -> Picture:
    """Return pictures from a path of the user, in the order of the rows of the predictions.

    The path is a ``.npy`` or ``.npz`` file (with one array) of shape ``(n, H, W)``, ``(n, H, W, 3)`` or
    ``(n, 3, H, W)``, or a folder of picture files, which are sorted by name.
    """
    path = Path(path)
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.suffix.lower() in _SUFFIXES)
        if not files:
            raise InputError(f"expected .png, .jpg, .webp or .bmp files in {path}, got none")
        return lambda number: _read(files[number]) if number < len(files) else None
    if path.suffix not in (".npy", ".npz") or not path.is_file():
        raise InputError(f"{path} contains no pictures: pass a folder of pictures, or a .npy or .npz file")
    try:
        loaded: Any = np.load(path, mmap_mode="r", allow_pickle=False)
        arrays = [loaded] if path.suffix == ".npy" else [loaded[name] for name in loaded.files]
    except (ValueError, OSError) as error:
        raise InputError(f"cannot read pictures from {path}: {error}") from error
    shapes = [array for array in arrays if array.ndim >= 3]
    if len(shapes) != 1:
        raise InputError(f"expected one array of pictures, (n, H, W) or (n, H, W, 3), in {path}, got {len(shapes)}")
    return lambda number: _bytes(shapes[0][number]) if number < len(shapes[0]) else None


def _from_part(part: Part, number: int) -> NDArray[np.uint8] | None:
    if number >= len(part):
        return None
    index = int(part.chosen[number])
    if isinstance(part.source, InMemory):
        x = part.source.x[index]
        return _bytes(x.numpy()) if x.ndim == 3 else None
    if isinstance(part.source, OnDisk):
        return _bytes(np.asarray(part.source.read(part.source.items[index])[0].convert("RGB")))
    return None


def _read(file: Path) -> NDArray[np.uint8] | None:
    with require("PIL.Image", extra="vision").open(file) as image:
        return _bytes(np.asarray(image.convert("RGB")))


def _bytes(picture: NDArray[Any]) -> NDArray[np.uint8] | None:
    """Convert a picture to grey or colour bytes, channels last; floats are scaled from their minimum and maximum."""
    if picture.ndim == 3 and picture.shape[0] in (1, 3) and picture.shape[2] not in (1, 3):
        picture = np.moveaxis(picture, 0, 2)
    if picture.ndim == 3 and picture.shape[2] == 1:
        picture = picture[..., 0]
    if picture.ndim not in (2, 3) or (picture.ndim == 3 and picture.shape[2] != 3):
        return None
    if picture.dtype != np.uint8:
        low, high = float(picture.min()), float(picture.max())
        picture = ((picture - low) * (255 / (high - low or 1.0))).round().astype(np.uint8)
    return picture


def data_address(picture: NDArray[np.uint8]) -> str:
    """Convert a picture ``(H, W)`` or ``(H, W, 3)`` of bytes to a ``data:`` URL; large pictures are subsampled."""
    step = max(1, -(-max(picture.shape[:2]) // LARGEST))
    return "data:image/png;base64," + base64.b64encode(encode(picture[::step, ::step])).decode()


def encode(picture: NDArray[np.uint8]) -> bytes:
    """Encode a grey or colour picture as PNG (ISO/IEC 15948), with eight bits per channel and unfiltered rows."""
    height, width = picture.shape[:2]
    rows = np.ascontiguousarray(picture).reshape(height, -1)
    raw = np.concatenate([np.zeros((height, 1), np.uint8), rows], 1).tobytes()
    header = struct.pack(">IIBBBBB", width, height, 8, 0 if picture.ndim == 2 else 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(raw, 9)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks
    )
