"""Small pictures as PNG text for a page, without an imaging library."""

from __future__ import annotations

import base64
import struct
import zlib

import numpy as np
from numpy.typing import NDArray

from acls.errors import InputError

LARGEST = 96
"""Sides of a thumbnail, in pixels, at most."""


def data_address(picture: NDArray[np.uint8]) -> str:
    """A picture ``(H, W)`` or ``(H, W, 3)`` of bytes as a ``data:`` address, thinned out where it is large."""
    if picture.dtype != np.uint8 or picture.ndim not in (2, 3) or (picture.ndim == 3 and picture.shape[2] != 3):
        raise InputError(f"a picture is (H, W) or (H, W, 3) of bytes, but {picture.shape} of {picture.dtype} came")
    step = max(1, -(-max(picture.shape[:2]) // LARGEST))
    return "data:image/png;base64," + base64.b64encode(encode(picture[::step, ::step])).decode()


def encode(picture: NDArray[np.uint8]) -> bytes:
    """A grey or colour picture as a PNG file (ISO/IEC 15948): eight bits a channel, rows unfiltered."""
    height, width = picture.shape[:2]
    rows = np.ascontiguousarray(picture).reshape(height, -1)
    raw = np.concatenate([np.zeros((height, 1), np.uint8), rows], 1).tobytes()
    header = struct.pack(">IIBBBBB", width, height, 8, 0 if picture.ndim == 2 else 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(raw, 9)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks
    )
