"""The user's own images: a folder a class, or images with masks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import torch
from torch import Tensor

from acls.data import DataOptions
from acls.data.augment import MIDDLE, Augment, Normalise
from acls.data.files import Files, decode, letterbox, needs_root, to_bytes
from acls.data.parts import Data, InMemory, OnDisk, Part, Source
from acls.data.splits import hold_out, subset
from acls.data.transforms import Scene, Square
from acls.errors import InputError
from acls.vision import pillow

LAYOUT = "a folder per class: ROOT/CLASS/image, or ROOT/train/CLASS/image with ROOT/val/ and ROOT/test/ beside it"
SEGMENTATION_LAYOUT = (
    "ROOT/images/NAME.jpg and ROOT/masks/NAME.png (class ids as pixel values, 255 or --data.void for none) and, if you "
    "like, ROOT/classes.txt with a name per line; or the same under ROOT/train/, ROOT/val/, ROOT/test/"
)
TEST_SHARE = 0.2
VOID = 255
SIZE = 224


def load(options: DataOptions, seed: int) -> Data:
    """Load a folder a class, or images and masks; parts that have no folder of their own are drawn by the seed."""
    if options.name == "segmentation_folder":
        return _segmentation(options, seed)
    files = Files(needs_root(options.root, "folder", LAYOUT), layout=LAYOUT)
    size = options.size or SIZE

    def listed(under: str, classes: tuple[str, ...] | None = None) -> tuple[list[tuple[str, int]], tuple[str, ...]]:
        return labelled(files, under, LAYOUT, classes)

    parted = "train" in files.folders("")
    items, classes = listed("train/" if parted else "")
    y = torch.tensor([label for _, label in items])
    source = _classification_source(files, items, y, options, size)
    rest = torch.arange(len(y))
    own: dict[str, Part] = {}
    for part in ("val", "test"):
        if parted and part in files.folders(""):
            held, _ = listed(f"{part}/", classes)
            labels = torch.tensor([label for _, label in held])
            own[part] = Part(_classification_source(files, held, labels, options, size), torch.arange(len(held)))
    rest, parts = _drawn(rest, y, own, options, source)
    chosen = subset(y, rest, options.n_train, seed=options.split_seed)
    return Data(Part(source, chosen, seed=seed), parts["val"], parts["test"], classes)


def labelled(
    files: Files, under: str, layout: str, classes: tuple[str, ...] | None = None
) -> tuple[list[tuple[str, int]], tuple[str, ...]]:
    """The images below a folder with a folder a class, and the classes; a class without an image is an error."""
    found = tuple(files.folders(under))
    if not found:
        raise InputError(f"{files.root / under} holds no folder: expected {layout}")
    if classes is None:
        classes = found
        if len(classes) < 2:
            raise InputError(f"{files.root / under} holds one class, {classes[0]!r}: expected two or more")
    unknown = sorted(set(found) - set(classes))
    if unknown:
        raise InputError(f"{files.root / under} holds the class {unknown[0]!r}, which the training images do not have")
    items: list[tuple[str, int]] = []
    for label, name in enumerate(classes):
        images = files.images(f"{under}{name}/")
        if not images:
            raise InputError(f"{files.root / under / name} holds no image: add some, or remove the class")
        items += [(image, label) for image in images]
    return items, classes


@dataclass(frozen=True)
class _Labelled:
    """Read an image by number, with its class id."""

    files: Files
    items: Sequence[tuple[str, int]]

    def __call__(self, number: int) -> tuple[Any, int]:
        name, label = self.items[number]
        return self.files.image(name), label


def on_disk(files: Files, items: Sequence[tuple[str, int]], options: DataOptions, size: int) -> OnDisk:
    """Labelled images, read as they are needed."""
    return _cut(len(items), _Labelled(files, items), options, Square(size, options.scale))


@dataclass(frozen=True)
class _Decoded:
    """An image in memory by number, with its class id."""

    x: Tensor
    y: Tensor

    def __call__(self, number: int) -> tuple[Any, int]:
        return pillow().fromarray(self.x[number].permute(1, 2, 0).numpy()), int(self.y[number])


def _cut(count: int, read: Any, options: DataOptions, cut: Any, void: int = VOID) -> OnDisk:
    return OnDisk(count, read, cut, Augment.of(options), Normalise(options.normalise), void)


def _classification_source(
    files: Files, items: list[tuple[str, int]], y: Tensor, options: DataOptions, size: int
) -> Source:
    if not options.memory:
        return on_disk(files, items, options, size)
    names = [name for name, _ in items]
    if options.scale < 1:  # crops are cut from images that are larger than what evaluation sees of them
        larger = decode(files, names, round(size / MIDDLE))
        return _cut(len(items), _Decoded(larger, y), options, Square(size, options.scale))
    return InMemory(decode(files, names, size), y, Augment.of(options), Normalise(options.normalise))


@dataclass(frozen=True)
class Masked:
    """Read an image by number, with its label map."""

    files: Files
    items: Sequence[tuple[str, str]]
    n_classes: int
    void: int

    def __call__(self, number: int) -> tuple[Any, Any]:
        name, mask_name = self.items[number]
        image, mask = self.files.image(name), self.files.mask(mask_name, self.n_classes, self.void)
        if image.size != mask.size:
            raise InputError(f"{name} is {_show(image.size)}, but its mask {mask_name} is {_show(mask.size)}")
        return image, mask


def masked_source(read: Masked, options: DataOptions) -> Source:
    """Images with masks, in memory at one size or read as they are needed; sizes are compared before training."""
    for name, mask in read.items:
        sizes = read.files.size(name), read.files.size(mask)
        if sizes[0] != sizes[1]:
            raise InputError(f"{name} is {_show(sizes[0])}, but its mask {mask} is {_show(sizes[1])}")
    if not options.memory:
        return _cut(len(read.items), read, options, Scene(options.size or 512, read.void), read.void)
    size = options.size or 128
    pairs = [letterbox(*read(number), size, read.void) for number in range(len(read.items))]
    x, y = (torch.stack([to_bytes(pair[side]) for pair in pairs]) for side in (0, 1))
    return InMemory(x, y, Augment.of(options), Normalise(options.normalise), read.void)


def _segmentation(options: DataOptions, seed: int) -> Data:
    files = Files(needs_root(options.root, "segmentation_folder", SEGMENTATION_LAYOUT), layout=SEGMENTATION_LAYOUT)
    parted = "train" in files.folders("")
    items = _pairs(files, "train/" if parted else "")
    names = _class_names(files, items, options.void)
    source = masked_source(Masked(files, items, len(names), options.void), options)
    strata = torch.zeros(len(items))
    own: dict[str, Part] = {}
    for part in ("val", "test"):
        if parted and part in files.folders(""):
            held = _pairs(files, f"{part}/")
            own[part] = Part(
                masked_source(Masked(files, held, len(names), options.void), options), torch.arange(len(held))
            )
    rest, parts = _drawn(torch.arange(len(items)), strata, own, options, source)
    train = Part(source, rest[: options.n_train], seed=seed)
    return Data(train, parts["val"], parts["test"], names, void=options.void, segmentation=True)


def _drawn(
    rest: Tensor, strata: Tensor, own: dict[str, Part], options: DataOptions, source: Source
) -> tuple[Tensor, dict[str, Part]]:
    """Draw the parts that have no folder of their own from the training samples; return what remains of these."""
    parts = dict(own)
    for part, share, rule, seed in (
        ("test", TEST_SHARE, "stratified", 0),
        ("val", options.val, options.split, options.split_seed),
    ):
        if part not in parts:
            kept, held = hold_out(strata[rest], share, rule=rule, seed=seed)
            parts[part] = Part(source, rest[held])
            rest = rest[kept]
    return rest, parts


def _pairs(files: Files, under: str) -> list[tuple[str, str]]:
    images = files.images(f"{under}images/")
    if not images:
        raise InputError(f"{files.root / under / 'images'} holds no image: expected {SEGMENTATION_LAYOUT}")
    masks = {PurePosixPath(name).stem: name for name in files.images(f"{under}masks/")}
    missing = [name for name in images if PurePosixPath(name).stem not in masks]
    if missing:
        raise InputError(f"{missing[0]} has no mask of the same name in {under}masks/: expected {SEGMENTATION_LAYOUT}")
    return [(name, masks[PurePosixPath(name).stem]) for name in images]


def _class_names(files: Files, items: list[tuple[str, str]], void: int) -> tuple[str, ...]:
    if "classes.txt" in files:
        return tuple(line.strip() for line in files.lines("classes.txt"))
    highest = 0
    for _, mask in items:
        ids = to_bytes(files.mask(mask, 256, void))
        highest = max(highest, int(ids[ids != void].max()) if bool((ids != void).any()) else 0)
    return tuple(f"class {number}" for number in range(highest + 1))


def _show(size: tuple[int, int]) -> str:
    return f"{size[0]}x{size[1]}"
