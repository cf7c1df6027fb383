"""ImageNet (ILSVRC 2012), a folder a class; the official validation images give both validation and test.

10 images of each class validate, 40 test, as Liu et al. (CALS, CVPR 2023) do and the paper's logs show.
"""

from __future__ import annotations

import torch

from acls.data import DataOptions
from acls.data.files import Files, needs_root
from acls.data.folder import labelled, on_disk
from acls.data.parts import Data, Part
from acls.data.splits import per_class, subset
from acls.errors import InputError

LAYOUT = "train/<wnid>/*.JPEG and val/<wnid>/*.JPEG, the official images sorted into folders by class"
VAL_PER_CLASS = 10
SIZE = 224


def load(options: DataOptions, seed: int) -> Data:
    """Files read as they are needed: set data.workers to the number of cores."""
    if options.memory:
        raise InputError("ImageNet does not fit in memory: pass --data.memory false")
    files = Files(needs_root(options.root, "imagenet", LAYOUT), layout=LAYOUT)
    train, wnids = labelled(files, "train/", LAYOUT)
    held, _ = labelled(files, "val/", LAYOUT, wnids)
    y, held_y = (torch.tensor([label for _, label in part]) for part in (train, held))
    chosen = subset(y, torch.arange(len(y)), options.n_train, seed=options.split_seed)
    test, val = per_class(held_y, VAL_PER_CLASS, seed=options.split_seed)
    size = options.size or SIZE
    source, held_source = (on_disk(files, part, options, size) for part in (train, held))
    return Data(Part(source, chosen, seed=seed), Part(held_source, val), Part(held_source, test), wnids)
