"""Files of a folder or of a zip alike, and images decoded from them with Pillow."""

import io
import os
import stat
import zipfile
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

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
        self.zipped = zipfile.is_zipfile(self.root)
        if not self.zipped and not self.root.is_dir():
            what = "is neither a folder nor a zip file" if self.root.exists() else "does not exist"
            raise InputError(f"{root} {what}: expected {layout}")

    def __contains__(self, name: str) -> bool:
        return name in self._zip().NameToInfo if self.zipped else (self.root / name).is_file()

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
            names = self._zip().namelist()
            return sorted(name for name in names if name.startswith(under) and name.lower().endswith(IMAGES))
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
        except Exception as error:  # the decoders of a zip raise many kinds for a damaged file
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
            raise InputError(f"{name} of {self.root}: expected image numbers from 0 to {count - 1}, got {wrong[0]!r}")
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
        """An image's width and height, without decoding it."""
        width, height = self._open(name, load=False).size
        return width, height

    def _open(self, name: str, *, load: bool = True) -> Any:
        Image, data = pillow(), self.read(name)
        try:
            image = Image.open(io.BytesIO(data))
            if load:
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


def needs_root(options_root: str | None, name: str, layout: str) -> str:
    """The root, or a message that says what to pass and what should be there."""
    if options_root is None:
        raise InputError(f"{name} needs its files: pass --root with {layout}")
    return options_root
