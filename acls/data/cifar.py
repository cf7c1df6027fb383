"""CIFAR-10 and CIFAR-100 (Krizhevsky, 2009), read from any of their file formats."""

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from acls.data import DataOptions
from acls.data.augment import Augment
from acls.data.dataset import Data, InMemory, Part
from acls.data.files import Files, needs_root
from acls.data.images import to_bytes
from acls.data.splits import divide
from acls.errors import InputError
from acls.vision import submodule

LAYOUT = (
    "a folder that holds {binary}/ (the binary version), {python}/ (the Python version), or {name}_train.zip and "
    "{name}_test.zip (sheets of images); or pass --download as well to fetch it there"
)
_FOLDERS = {
    "cifar10": {"binary": "cifar-10-batches-bin", "python": "cifar-10-batches-py"},
    "cifar100": {"binary": "cifar-100-binary", "python": "cifar-100-python"},
}
_BINARY = {
    # files of each part, names of the classes, and number of label bytes before an image; the last of them is used
    "cifar10": (([f"data_batch_{i}.bin" for i in range(1, 6)], ["test_batch.bin"]), "batches.meta.txt", 1),
    "cifar100": ((["train.bin"], ["test.bin"]), "fine_label_names.txt", 2),
}


def load(options: DataOptions, seed: int) -> Data:
    """Load the official 50,000 training and 10,000 test images; validation is held out from the training images.

    With ``halve``, the test images at even positions are used for validation and the others for the test. This is meant
    for weights that were trained on all 50,000 images. The held-out training images are then not used.
    """
    layout = LAYOUT.format(name=options.name, **_FOLDERS[options.name])
    root = Path(needs_root(options.root, options.name, layout))
    (x, y), (test_x, test_y), names = _read(options.name, root, options.download, layout)
    augment = Augment(options)
    official, every = InMemory(test_x, test_y, augment), torch.arange(len(test_y))
    data = divide(InMemory(x, y, augment), y, options, seed, names, own={"test": Part(official)})
    if options.halve:
        return replace(data, val=Part(official, every[::2]), test=Part(official, every[1::2]))
    return data


_Images = tuple[Tensor, Tensor]


def _read(name: str, root: Path, download: bool, layout: str) -> tuple[_Images, _Images, tuple[str, ...]]:
    train = root if root.suffix == ".zip" else root / f"{name}_train.zip"
    test = train.with_name(train.name.replace("train", "test"))
    if train == root or (train.is_file() and test.is_file()):
        return _sheets(train, test)
    for folder in (root / _FOLDERS[name]["binary"], root):
        if (folder / _BINARY[name][0][1][0]).is_file():
            return _binary(name, folder)
    if download or (root / _FOLDERS[name]["python"]).is_dir():
        return _torchvision(name, root, download)
    raise InputError(f"there is no {name} in {root}: expected {layout}")


def _sheets(train: Path, test: Path) -> tuple[_Images, _Images, tuple[str, ...]]:
    """Read lossless sheets of 25 x 40 images, numbered row by row, and ``labels.npz``."""
    parts = []
    for part, path in (("train", train), ("test", test)):
        files = Files(path, layout=f"{part}_00.webp and so on, and labels.npz, beside the other part's zip")
        labels = np.load(io.BytesIO(files.read("labels.npz")), allow_pickle=False)
        y = torch.from_numpy(labels[part].astype(np.int64))
        sheets = [to_bytes(files.image(name)) for name in files.images(f"{part}_")]
        if not sheets:
            raise InputError(f"{path} contains no sheet named {part}_00.webp")
        tiles = [sheet.unfold(1, 32, 32).unfold(2, 32, 32).movedim(0, 2).reshape(-1, 3, 32, 32) for sheet in sheets]
        parts.append((torch.cat(tiles)[: len(y)], y))
    return parts[0], parts[1], tuple(str(name) for name in labels["names"])


def _binary(name: str, folder: Path) -> tuple[_Images, _Images, tuple[str, ...]]:
    files, names, n_labels = _BINARY[name]
    parts = []
    for part in files:
        raw = np.concatenate([np.fromfile(folder / file, dtype=np.uint8) for file in part])
        rows = torch.from_numpy(raw.reshape(-1, n_labels + 3072))
        parts.append((rows[:, n_labels:].reshape(-1, 3, 32, 32), rows[:, n_labels - 1].long()))
    return parts[0], parts[1], tuple((folder / names).read_text().split())


def _torchvision(name: str, root: Path, download: bool) -> tuple[_Images, _Images, tuple[str, ...]]:
    # torchvision compares the MD5 checksums of the files with the published ones before it opens them.
    kind = getattr(submodule("datasets"), name.upper())
    try:
        train, test = (kind(str(root), train=part, download=download) for part in (True, False))
    except RuntimeError as error:
        raise InputError(
            f"{name} in {root} is incomplete or damaged ({error}): pass --download to fetch it again"
        ) from error
    images = [torch.from_numpy(part.data).permute(0, 3, 1, 2).contiguous() for part in (train, test)]
    return (images[0], torch.tensor(train.targets)), (images[1], torch.tensor(test.targets)), tuple(train.classes)
