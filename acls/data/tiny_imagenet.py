"""Tiny-ImageNet (Le and Yang, 2015): 200 classes, 64x64; the official validation images are the test part."""

from __future__ import annotations

import torch

from acls.data import DataOptions
from acls.data.augment import Augment, Normalise
from acls.data.files import Files, decode, needs_root
from acls.data.parts import Data, InMemory, Part
from acls.data.splits import hold_out, subset
from acls.errors import InputError

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
    wnids = files.folders(f"{base}train/")
    if not wnids:
        raise InputError(f"there is no train/<wnid>/ in {files.root}: expected {LAYOUT}")
    train = _labelled(files, f"{base}train", wnids)
    test = _annotated(files, base, wnids) or _labelled(files, f"{base}val", wnids)
    augment, normalise, size = Augment.of(options), Normalise(options.normalise), options.size or SIZE
    y, test_y = (torch.tensor([label for _, label in part]) for part in (train, test))
    kept, val = hold_out(y, options.val, rule=options.split, seed=options.split_seed)
    if f"{base}val_ind.txt" in files:
        val = torch.tensor(files.numbers(f"{base}val_ind.txt", len(y)))
        kept = torch.arange(len(y))[~torch.isin(torch.arange(len(y)), val)]
    kept = subset(y, kept, options.n_train, seed=options.split_seed)
    source = InMemory(decode(files, [name for name, _ in train], size), y, augment, normalise)
    test_source = InMemory(decode(files, [name for name, _ in test], size), test_y, augment, normalise)
    return Data(
        Part(source, kept, seed=seed),
        Part(source, val),
        Part(test_source, torch.arange(len(test_y))),
        _words(files, base, wnids),
    )


def _labelled(files: Files, part: str, wnids: list[str]) -> list[tuple[str, int]]:
    found = []
    for label, wnid in enumerate(wnids):
        images = files.images(f"{part}/{wnid}/")
        if not images:
            raise InputError(f"{part}/{wnid}/ of {files.root} holds no image: expected {LAYOUT}")
        found += [(name, label) for name in images]
    return found


def _annotated(files: Files, base: str, wnids: list[str]) -> list[tuple[str, int]]:
    """The validation images by the official list of names and wnids; none where they lie in folders by class."""
    listed = f"{base}val/val_annotations.txt"
    if listed not in files or not files.images(f"{base}val/images/"):
        return []
    label = {wnid: number for number, wnid in enumerate(wnids)}
    rows = (line.split("\t")[:2] for line in files.lines(listed))
    return [(f"{base}val/images/{name}", label[wnid]) for name, wnid in rows if wnid in label]


def _words(files: Files, base: str, wnids: list[str]) -> tuple[str, ...]:
    if f"{base}words.txt" not in files:
        return tuple(wnids)
    words = dict(line.split("\t", 1) for line in files.lines(f"{base}words.txt"))
    return tuple(words.get(wnid, wnid).split(",")[0] for wnid in wnids)
