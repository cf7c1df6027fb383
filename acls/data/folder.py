"""Images of the user: one folder per class, or images with masks."""

from collections.abc import Sequence
from functools import partial
from pathlib import PurePosixPath
from typing import Any

import torch
from torch import Tensor

from acls.data import DataOptions
from acls.data.augment import Augment
from acls.data.dataset import Data, InMemory, OnDisk, Part, SampleSource
from acls.data.files import Files, needs_root
from acls.data.images import MIDDLE, cut_scene, cut_square, decode, letterbox, to_bytes
from acls.data.splits import divide
from acls.errors import InputError
from acls.shapes import IGNORE_INDEX
from acls.vision import pillow

LAYOUT = "one folder per class: ROOT/CLASS/image, or ROOT/train/CLASS/image with ROOT/val/ and ROOT/test/ beside it"
SEGMENTATION_LAYOUT = (
    "ROOT/images/NAME.jpg and ROOT/masks/NAME.png (class ids as pixel values, 255 or --data.void for ignored pixels) "
    "and, optionally, ROOT/classes.txt with one name per line; or the same under ROOT/train/, ROOT/val/, ROOT/test/"
)
TEST_SHARE = 0.2
SIZE = 224


def load(options: DataOptions, seed: int) -> Data:
    """Load one folder per class, or images and masks; parts without their own folder are drawn with the seed."""
    maps = options.name == "segmentation_folder"
    layout = SEGMENTATION_LAYOUT if maps else LAYOUT
    files = Files(needs_root(options.root, options.name, layout), layout=layout)
    folders = files.folders("")
    places = {part: f"{part}/" for part in ("train", "val", "test") if {"train", part} <= {*folders}}
    under, y, void = places.pop("train", ""), None, options.void
    if maps:
        pairs = {part: _pairs(files, place) for part, place in {"train": under, **places}.items()}
        names = _class_names(files, pairs["train"], void)
        sources = {part: masked_source(files, found, len(names), void, options) for part, found in pairs.items()}
    else:
        items, names = labelled(files, under, layout)
        y, void = classes_of(items), IGNORE_INDEX
        listed = {part: labelled(files, place, layout, names)[0] for part, place in places.items()}
        sources = {part: image_source(files, one, options, SIZE) for part, one in {"train": items, **listed}.items()}
    own = {part: Part(sources[part]) for part in places}
    return divide(sources["train"], y, options, seed, names, own=own, test_share=TEST_SHARE, void=void)


def labelled(
    files: Files, under: str, layout: str, classes: tuple[str, ...] | None = None
) -> tuple[list[tuple[str, int]], tuple[str, ...]]:
    """Return the images and classes of a folder with one subfolder per class; each class must have an image."""
    found = tuple(files.folders(under))
    if not found:
        raise InputError(f"{files.root / under} contains no folder: expected {layout}")
    if classes is None:
        classes = found
        if len(classes) < 2:
            raise InputError(f"{files.root / under} contains one class, {classes[0]!r}: expected two or more")
    unknown = [name for name in found if name not in classes and files.images(f"{under}{name}/")]
    if unknown:
        raise InputError(
            f"{files.root / under} contains the class {unknown[0]!r}, which the training images do not have"
        )
    items: list[tuple[str, int]] = []
    for label, name in enumerate(classes):
        images = files.images(f"{under}{name}/")
        if not images:
            raise InputError(f"{files.root / under / name} contains no image: add some, or remove the class")
        items += [(image, label) for image in images]
    return items, classes


def _read_image(files: Files, item: tuple[str, int]) -> tuple[Any, int]:
    name, label = item
    return files.image(name), label


def _read_decoded(x: Tensor, y: Tensor, number: int) -> tuple[Any, int]:
    return pillow().fromarray(x[number].permute(1, 2, 0).numpy()), int(y[number])


def _read_masked(files: Files, n_classes: int, void: int, item: tuple[str, str]) -> tuple[Any, Any]:
    name, mask = item
    return files.image(name), files.mask(mask, n_classes, void)


def classes_of(items: Sequence[tuple[str, int]]) -> Tensor:
    """Return the class ids of labelled images."""
    return torch.tensor([label for _, label in items])


def image_source(files: Files, items: Sequence[tuple[str, int]], options: DataOptions, size: int) -> SampleSource:
    """Return a source of labelled images, in memory or read on demand; ``size`` is used if the options have none."""
    size, augment = options.size or size, Augment(options)
    cut = partial(cut_square, size, options.scale)
    if not options.memory:
        return OnDisk(items, partial(_read_image, files), cut, augment)
    names = [name for name, _ in items]
    if options.scale < 1:  # random crops are taken from images that are larger than the crop of the evaluation
        larger = decode(files, names, round(size / MIDDLE))
        return OnDisk(range(len(items)), partial(_read_decoded, larger, classes_of(items)), cut, augment)
    return InMemory(decode(files, names, size), classes_of(items), augment)


def masked_source(
    files: Files, items: Sequence[tuple[str, str]], n_classes: int, void: int, options: DataOptions
) -> SampleSource:
    """Return a source of images with masks, in memory or read on demand; sizes are compared before training."""
    for name, mask in items:
        sizes = ["{}x{}".format(*files.size(one)) for one in (name, mask)]
        if sizes[0] != sizes[1]:
            raise InputError(f"{name} has size {sizes[0]}, but its mask {mask} has size {sizes[1]}")
    augment, read = Augment(options, void), partial(_read_masked, files, n_classes, void)
    if not options.memory:
        return OnDisk(items, read, partial(cut_scene, options.size or 512, void), augment)
    xs, ys = zip(*(letterbox(*read(item), options.size or 128, void) for item in items), strict=True)
    return InMemory(torch.stack(xs), torch.stack(ys), augment)


def _pairs(files: Files, under: str) -> list[tuple[str, str]]:
    images = files.images(f"{under}images/")
    if not images:
        raise InputError(f"{files.root / under / 'images'} contains no image: expected {SEGMENTATION_LAYOUT}")
    masks = {PurePosixPath(name).stem: name for name in files.images(f"{under}masks/")}
    missing = [name for name in images if PurePosixPath(name).stem not in masks]
    if missing:
        raise InputError(f"{missing[0]} has no mask of the same name in {under}masks/: expected {SEGMENTATION_LAYOUT}")
    return [(name, masks[PurePosixPath(name).stem]) for name in images]


def _class_names(files: Files, items: list[tuple[str, str]], void: int) -> tuple[str, ...]:
    if "classes.txt" in files:
        return tuple(line.strip() for line in files.lines("classes.txt"))
    maps = (to_bytes(files.mask(mask, 256, void)) for _, mask in items)
    highest = max(int(ids.masked_fill(ids == void, 0).max()) for ids in maps)
    return tuple(f"class {number}" for number in range(highest + 1))
