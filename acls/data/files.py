"""Files of a folder or of a zip alike, and images decoded from them with Pillow."""

from __future__ import annotations

import io
import lzma
import os
import stat
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch
from torch import Tensor

from acls.errors import InputError
from acls.vision import pillow

LARGEST, HARMLESS, RATIO = 2**28, 2**24, 200
"""Bytes that a zip's member may unpack to at most, those that are not asked about, and their largest compression."""
IMAGES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")


class Files:
    """The files under a root, by names relative to it with forward slashes; the root is a folder or a zip file."""

    def __init__(self, root: str | os.PathLike[str], *, layout: str) -> None:
        """Open the root; ``layout`` says in the error message what should be there."""
        self.root = Path(root)
        self._archive: tuple[int, zipfile.ZipFile] | None = None
        if self.root.is_dir():
            self.zipped = False
        elif zipfile.is_zipfile(self.root):
            self.zipped = True
        else:
            what = "is neither a folder nor a zip file" if self.root.exists() else "does not exist"
            raise InputError(f"{root} {what}: expected {layout}")
        self._names: list[str] | None = None

    def names(self) -> list[str]:
        """Every file, sorted."""
        if self._names is None:
            if self.zipped:
                found = [name for name in self._zip().namelist() if not name.endswith("/")]
            else:
                found = [path.relative_to(self.root).as_posix() for path in self.root.rglob("*") if path.is_file()]
            self._names = sorted(found)
        return self._names

    def __contains__(self, name: str) -> bool:
        if not self.zipped:
            return (self.root / name).is_file()
        try:
            self._zip().getinfo(name)
        except KeyError:
            return False
        return True

    def folders(self, under: str) -> list[str]:
        """The names of the folders directly under one, sorted, empty ones among them."""
        if not self.zipped:
            place = self.root / under
            return sorted(entry.name for entry in place.iterdir() if entry.is_dir()) if place.is_dir() else []
        inside = [name for name in self._zip().namelist() if name.startswith(under)]
        return sorted({name[len(under) :].split("/")[0] for name in inside if "/" in name[len(under) :]})

    def images(self, under: str) -> list[str]:
        """The images in a folder and those below it, sorted."""
        if self.zipped:
            return [name for name in self.names() if name.startswith(under) and name.lower().endswith(IMAGES)]
        found = (Path(folder, name) for folder, _, names in os.walk(self.root / under) for name in names)
        return sorted(path.relative_to(self.root).as_posix() for path in found if path.suffix.lower() in IMAGES)

    def base(self, *places: str) -> str:
        """The first of the folders (ending in a slash, "" for the root) that holds train/, or "" where none does."""
        return next((place for place in places if "train" in self.folders(place)), "")

    def read(self, name: str) -> bytes:
        """A file's bytes."""
        if self.zipped and name in self:
            member = self._zip().getinfo(name)
            if member.file_size > LARGEST or member.file_size > max(HARMLESS, RATIO * member.compress_size):
                raise InputError(
                    f"{name} of {self.root} would unpack from {member.compress_size:,} to {member.file_size:,} bytes: "
                    "expected images and lists; unpack it yourself if you trust it"
                )
        try:
            return self._zip().read(name) if self.zipped else (self.root / name).read_bytes()
        except (
            OSError,
            KeyError,
            zipfile.BadZipFile,
            NotImplementedError,
            RuntimeError,
            EOFError,
            ValueError,
            zlib.error,
            lzma.LZMAError,
        ) as error:
            raise InputError(f"cannot read {name} of {self.root}: {error}") from error

    def lines(self, name: str) -> list[str]:
        """A text file's lines that are not empty."""
        try:
            return [line for line in self.read(name).decode().splitlines() if line.strip()]
        except UnicodeDecodeError as error:
            raise InputError(f"{name} of {self.root} is not text in UTF-8: {error}") from error

    def numbers(self, name: str, count: int) -> list[int]:
        """The whole numbers below ``count`` of a text file, one per line."""
        lines = [line.strip() for line in self.lines(name)]
        wrong = [line for line in lines if not line.isdecimal() or int(line) >= count]
        if wrong:
            raise InputError(
                f"{name} of {self.root} holds {wrong[0]!r}: expected numbers of images, from 0 to {count - 1}"
            )
        return sorted({int(line) for line in lines})

    def image(self, name: str, mode: str = "RGB") -> Any:
        """A decoded image in the mode; gray images become RGB by repetition."""
        return self._open(name).convert(mode)

    def mask(self, name: str, n_classes: int, void: int) -> Any:
        """A label map: an image whose pixel values, palette indices among them, are class ids or void."""
        image = self._open(name)
        if image.mode not in ("P", "L", "I", "I;16", "1"):
            raise InputError(
                f"the mask {name} has mode {image.mode}, expected one channel of class ids: "
                "save masks as palette or gray images"
            )
        ids = np.asarray(image)
        wrong = ids[(ids >= n_classes) & (ids != void)]
        if wrong.size:
            raise InputError(
                f"the mask {name} holds the class id {int(wrong[0])}, outside 0..{n_classes - 1}; "
                f"only {void} marks pixels that count for nothing"
            )
        return pillow().fromarray(ids.astype(np.uint8))

    def size(self, name: str) -> tuple[int, int]:
        """An image's width and height, without decoding it where it is in a folder."""
        Image = pillow()
        try:
            with Image.open(io.BytesIO(self.read(name)) if self.zipped else self.root / name) as image:
                width, height = image.size
        except Exception as error:
            raise InputError(f"{name} of {self.root} cannot be decoded ({error}): replace or remove it") from error
        return width, height

    def _open(self, name: str) -> Any:
        Image, data = pillow(), self.read(name)
        try:
            image = Image.open(io.BytesIO(data))
            image.load()
        except Exception as error:  # Pillow's decoders raise many kinds for a damaged file
            raise InputError(f"{name} of {self.root} cannot be decoded ({error}): replace or remove it") from error
        return image

    def _zip(self) -> zipfile.ZipFile:
        # Processes that share an open file share its position: each opens its own.
        if self._archive is None or self._archive[0] != os.getpid():
            try:
                archive = zipfile.ZipFile(self.root)
            except (OSError, zipfile.BadZipFile) as error:
                raise InputError(f"cannot read {self.root}: {error}") from error
            for member in archive.infolist():
                path = PurePosixPath(member.filename.replace("\\", "/"))
                if path.is_absolute() or ".." in path.parts or stat.S_ISLNK(member.external_attr >> 16):
                    raise InputError(f"{self.root} holds {member.filename!r}, a link or a path outside: expected files")
            self._archive = (os.getpid(), archive)
        return self._archive[1]

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_archive": None}


def decode(files: Files, names: Sequence[str], size: int) -> Tensor:
    """Images as bytes ``(N, 3, size, size)``, resized where they have another size."""
    images = torch.empty((len(names), 3, size, size), dtype=torch.uint8)
    for i, name in enumerate(names):
        images[i] = to_bytes(fit(files.image(name), size))
    return images


def fit(image: Any, size: int) -> Any:
    """The image at ``size`` x ``size``: its shorter side resized, its middle kept."""
    if image.size == (size, size):
        return image
    Image = pillow()
    width, height = image.size
    side = min(width, height)
    left, top = (width - side) // 2, (height - side) // 2
    return image.resize((size, size), Image.Resampling.BILINEAR, box=(left, top, left + side, top + side))


def letterbox(
    image: Any, mask: Any, longer: int, void: int, *, square: int | None = None, u: Sequence[float] = (0.5, 0.5)
) -> tuple[Any, Any]:
    """Image and mask with the longer side so long, padded to a square with 0 and void, in the middle.

    With a ``square`` smaller than the image, the window of it at the share ``u`` of the way from left and top.
    """
    Image, side = pillow(), square or longer
    scale = longer / max(image.size)
    width, height = (max(round(edge * scale), 1) for edge in image.size)
    corner = tuple(
        (side - edge) // 2 if edge <= side else -int(at * (edge - side + 1))
        for edge, at in zip((width, height), u, strict=False)
    )
    canvas, labels = Image.new("RGB", (side, side)), Image.new("L", (side, side), void)
    canvas.paste(image.resize((width, height), Image.Resampling.BILINEAR), corner)
    labels.paste(mask.resize((width, height), Image.Resampling.NEAREST), corner)
    return canvas, labels


def to_bytes(image: Any) -> Tensor:
    """A Pillow image as bytes, ``(C, H, W)`` or, for one channel, ``(H, W)``."""
    pixels = torch.from_numpy(np.array(image))
    return pixels.permute(2, 0, 1).contiguous() if pixels.ndim == 3 else pixels


def needs_root(options_root: str | None, name: str, layout: str) -> str:
    """The root, or a message that says what to pass and what should be there."""
    if options_root is None:
        raise InputError(f"{name} needs its files: pass --root with {layout}")
    return options_root
