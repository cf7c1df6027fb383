"""PASCAL VOC 2012 segmentation (Everingham et al.): 20 classes and background, void 255.

Validation and test are both the official validation images, as in the protocol of Liu et al. (MbLS, CVPR 2022):
the same number selects the checkpoint and is reported. Say so when you report it, or pass ``halve``. With ``halve``,
images at even positions in the list are used for validation and the others for the test, so a calibrator is tested on
images that it has not seen.
"""

import torch

from acls.data import DataOptions
from acls.data.dataset import Data, Part
from acls.data.files import Files, needs_root
from acls.data.folder import masked_source
from acls.data.splits import divide
from acls.errors import InputError
from acls.vision import submodule

LAYOUT = (
    "VOCdevkit/VOC2012/ (or its inside, or a zip of it) with JPEGImages/, SegmentationClass/ and "
    "ImageSets/Segmentation/{list}.txt, which names one image, or the paths of one image and its mask, per line; the "
    "augmented masks in SegmentationClassAug/, if it exists"
)
NAMES = (
    "background", "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow",
    "diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor",
)  # fmt: skip
VOID = 255


def load(options: DataOptions, seed: int) -> Data:
    """Load the images of a list and their masks: with ``memory`` at one small size, else cropped by the protocol."""
    layout = LAYOUT.format(list=options.train_list)
    root = needs_root(options.root, "voc", layout)
    if options.download:
        submodule("datasets").VOCSegmentation(root, year="2012", image_set="train", download=True)
    files = Files(root, layout=layout)
    train, val = (_listed(files, name, layout) for name in (options.train_list, "val"))
    source, official = (masked_source(files, items, len(NAMES), VOID, options) for items in (train, val))
    every = torch.arange(len(val))
    held, test = (every[::2], every[1::2]) if options.halve else (every, every)
    own = {"val": Part(official, held), "test": Part(official, test)}
    return divide(source, None, options, seed, NAMES, own=own, void=VOID)


def _listed(files: Files, name: str, layout: str) -> list[tuple[str, str]]:
    for base in ("VOCdevkit/VOC2012/", "VOC2012/", ""):
        for place in (f"{base}ImageSets/Segmentation/{name}.txt", f"{base}{name}.txt"):
            if place not in files:
                continue
            own = name == "trainaug" and "SegmentationClassAug" in files.folders(base)
            masks = "SegmentationClassAug" if own else "SegmentationClass"
            rows = [line.split() for line in files.lines(place)]
            # A line names an image, or an image and its mask as paths.
            items = [
                (base + row[0].lstrip("/"), base + row[1].lstrip("/"))
                if "/" in row[0] and len(row) == 2
                else (f"{base}JPEGImages/{row[0]}.jpg", f"{base}{masks}/{row[0]}.png")
                for row in rows
            ]
            missing = [part for item in items for part in item if part not in files]
            if missing:
                raise InputError(f"{place} names {missing[0]}, which is not in {files.root}: expected {layout}")
            return items
    raise InputError(f"there is no list {name}.txt in {files.root}: expected {layout}")
