"""Read files from a folder or a zip file through one interface, and decode images with Pillow."""

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
"""Limits for a zip member: its largest size in bytes, the size below which any ratio is fine, and the ratio."""
IMAGES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")


class Files:
    """The files in a folder or a zip file (the root). Names are relative to the root and use forward slashes."""

    def __init__(self, root: str | os.PathLike[str], *, layout: str) -> None:
        """Open the root; ``layout`` describes the expected files in error messages."""
        self.root = Path(root)
        self._archive: tuple[int, zipfile.ZipFile] | None = None
        self.zipped = zipfile.is_zipfile(self.root)
        if not self.zipped and not self.root.is_dir():
            what = "is neither a folder nor a zip file" if self.root.exists() else "does not exist"
            raise InputError(f"{root} {what}: expected {layout}")

    def __contains__(self, name: str) -> bool:
        return name in self._zip().NameToInfo if self.zipped else (self.root / name).is_file()

    def folders(self, under: str) -> list[str]:
        """Return the sorted names of the direct subfolders of a folder, including empty ones."""
        if not self.zipped:
            place = self.root / under
            return sorted(entry.name for entry in place.iterdir() if entry.is_dir()) if place.is_dir() else []
        inside = [name for name in self._zip().namelist() if name.startswith(under)]
        return sorted({name[len(under) :].split("/")[0] for name in inside if "/" in name[len(under) :]})

    def images(self, under: str) -> list[str]:
        """Return the sorted names of the images in a folder and its subfolders."""
        if self.zipped:
            names = self._zip().namelist()
            return sorted(name for name in names if name.startswith(under) and name.lower().endswith(IMAGES))
        found = (Path(folder, name) for folder, _, names in os.walk(self.root / under) for name in names)
        return sorted(path.relative_to(self.root).as_posix() for path in found if path.suffix.lower() in IMAGES)

    def base(self, *places: str) -> str:
        """Return the first folder that contains train/ (with a final slash; "" is the root), or "" if none does."""
        return next((place for place in places if "train" in self.folders(place)), "")

    def read(self, name: str) -> bytes:
        """Return the bytes of a file."""
        if self.zipped and name in self:
            member = self._zip().getinfo(name)
            if member.file_size > LARGEST or member.file_size > max(HARMLESS, RATIO * member.compress_size):
                raise InputError(
                    f"{name} of {self.root} would unpack from {member.compress_size:,} to {member.file_size:,} bytes: "
                    "expected images and lists; unpack it yourself if you trust it"
                )
        try:
            return self._zip().read(name) if self.zipped else (self.root / name).read_bytes()
        except Exception as error:  # the zip decoders raise many types of errors for a damaged file
            raise InputError(f"cannot read {name} of {self.root}: {error}") from error

    def lines(self, name: str) -> list[str]:
        """Return the non-empty lines of a text file."""
        try:
            return [line for line in self.read(name).decode().splitlines() if line.strip()]
        except UnicodeDecodeError as error:
            raise InputError(f"{name} of {self.root} is not text in UTF-8: {error}") from error

    def numbers(self, name: str, count: int) -> list[int]:
        """Read a text file with one integer in 0..``count`` - 1 per line."""
        lines = [line.strip() for line in self.lines(name)]
        wrong = [line for line in lines if not line.isdecimal() or int(line) >= count]
        if wrong:
            raise InputError(f"{name} of {self.root}: expected image numbers from 0 to {count - 1}, got {wrong[0]!r}")
        return sorted({int(line) for line in lines})

    def image(self, name: str, mode: str = "RGB") -> Any:
        """Return a decoded image in the given mode; the channel of a gray image is repeated for RGB."""
        return self._open(name).convert(mode)

    def mask(self, name: str, n_classes: int, void: int) -> Any:
        """Return a label map: an image whose pixel values or palette indices are class ids or void."""
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
                f"the mask {name} contains the class id {int(wrong[0])}, outside 0..{n_classes - 1}; "
                f"only {void} marks pixels to ignore"
            )
        return pillow().fromarray(ids.astype(np.uint8))

    def size(self, name: str) -> tuple[int, int]:
        """Return the width and height of an image without decoding it."""
        width, height = self._open(name, load=False).size
        return width, height

    def _open(self, name: str, *, load: bool = True) -> Any:
        Image, data = pillow(), self.read(name)
        try:
            image = Image.open(io.BytesIO(data))
            if load:
                image.load()
        except Exception as error:  # the decoders of Pillow raise many types of errors for a damaged file
            raise InputError(f"{name} of {self.root} cannot be decoded ({error}): replace or remove it") from error
        return image

    def _zip(self) -> zipfile.ZipFile:
        # Processes that share an open file also share its read position, so each process opens the file itself.
        if self._archive is None or self._archive[0] != os.getpid():
            try:
                archive = zipfile.ZipFile(self.root)
            except (OSError, zipfile.BadZipFile) as error:
                raise InputError(f"cannot read {self.root}: {error}") from error
            for member in archive.infolist():
                path = PurePosixPath(member.filename.replace("\\", "/"))
                if path.is_absolute() or ".." in path.parts or stat.S_ISLNK(member.external_attr >> 16):
                    raise InputError(
                        f"{self.root} contains {member.filename!r}, a link or a path outside it: expected files"
                    )
            self._archive = (os.getpid(), archive)
        return self._archive[1]

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_archive": None}


def needs_root(options_root: str | None, name: str, layout: str) -> str:
    """Return the root; if it is None, raise an error that says what to pass and which files are expected."""
    if options_root is None:
        raise InputError(f"{name} needs its files: pass --root with {layout}")
    return options_root
