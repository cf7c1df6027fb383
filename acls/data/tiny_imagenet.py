"""Tiny-ImageNet (Le and Yang, 2015): 200 classes, 64x64; the official validation images are the test part."""

from __future__ import annotations

import torch

from acls.data import DataOptions
from acls.data.dataset import Data, Part
from acls.data.files import Files, needs_root
from acls.data.folder import classes_of, image_source, labelled
from acls.data.splits import divide

LAYOUT = (
    "tiny-imagenet-200 as it comes (train/<wnid>/images/*.JPEG, val/images/*.JPEG, val/val_annotations.txt), "
    "or with val/<wnid>/*.JPEG; its folder, the one above, or a zip; beside train/, val_ind.txt may list by number the "
    "training images that validate"
)
SIZE = 64


def load(options: DataOptions, seed: int) -> Data:
    """All images decoded into memory (1.4 GB); class ids are those of the sorted wnids; gray images become RGB."""
    files = Files(needs_root(options.root, "tiny_imagenet", LAYOUT), layout=LAYOUT)
    base = files.base("", "tiny-imagenet-200/")
    train, wnids = labelled(files, f"{base}train/", LAYOUT)
    test = _annotated(files, base, wnids) or labelled(files, f"{base}val/", LAYOUT, wnids)[0]
    source, official = (image_source(files, items, options, SIZE) for items in (train, test))
    own, rest, y = {"test": Part(official)}, torch.arange(len(train)), classes_of(train)
    if f"{base}val_ind.txt" in files:
        val = torch.tensor(files.numbers(f"{base}val_ind.txt", len(train)))
        own, rest = {**own, "val": Part(source, val)}, rest[~torch.isin(rest, val)]
    return divide(source, y, options, seed, _words(files, base, wnids), own=own, rest=rest)


def _annotated(files: Files, base: str, wnids: tuple[str, ...]) -> list[tuple[str, int]]:
    """The validation images by the official list of names and wnids; none where they lie in folders by class."""
    listed = f"{base}val/val_annotations.txt"
    if listed not in files or not files.images(f"{base}val/images/"):
        return []
    label = {wnid: number for number, wnid in enumerate(wnids)}
    rows = (line.split("\t")[:2] for line in files.lines(listed))
    return [(f"{base}val/images/{name}", label[wnid]) for name, wnid in rows if wnid in label]


def _words(files: Files, base: str, wnids: tuple[str, ...]) -> tuple[str, ...]:
    if f"{base}words.txt" not in files:
        return wnids
    words = dict(line.split("\t", 1) for line in files.lines(f"{base}words.txt"))
    return tuple(words.get(wnid, wnid).split(",")[0] for wnid in wnids)
