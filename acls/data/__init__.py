"""Data sets with three parts and numbered samples: ``load(DataOptions(name="digits"))``.

This module imports only the options. The module of a data set is imported when the data set is loaded.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from acls.errors import InputError, suggest
from acls.options import SEED, option

if TYPE_CHECKING:
    from acls.data.dataset import Data

_ALWAYS = ("name", "val", "split", "split_seed", "n_train", "mix", "mix_alpha", "mix_prob")
_BATCHED = ("pad", "flip", "jitter", "colour", "erase")
_NORMALISED = ("normalise", *_BATCHED)
_CIFAR = ("root", "download", "halve", *_NORMALISED)
_FILES = ("root", "size", "memory", "workers", *_NORMALISED)


class Known(NamedTuple):
    """A data set of the package."""

    module: str
    about: str
    takes: tuple[str, ...]
    """The options that this data set supports, in addition to those that all data sets support."""


CATALOGUE = {
    "digits": Known("digits", "1,797 handwritten digits, 8x8, embedded in scikit-learn: the default", _BATCHED),
    "synthetic": Known("synthetic", "points whose labels are drawn from known probabilities", ("n_samples",)),
    "synthetic_segmentation": Known(
        "synthetic", "images whose pixels' labels are drawn from known probabilities", ("n_samples", "size", *_BATCHED)
    ),
    "cifar10": Known("cifar", "60,000 images of 10 classes, 32x32", _CIFAR),
    "cifar100": Known("cifar", "60,000 images of 100 classes, 32x32", _CIFAR),
    "tiny_imagenet": Known("imagenet", "110,000 images of 200 classes, 64x64", ("root", "size", *_NORMALISED)),
    "imagenet": Known("imagenet", "1.3 million images of 1,000 classes", (*_FILES, "scale")),
    "voc": Known("voc", "PASCAL VOC 2012 segmentation, 21 classes", (*_FILES, "download", "train_list", "halve")),
    "folder": Known("folder", "your images, one folder per class", (*_FILES, "scale")),
    "given": Known("given", "data passed to acls.compare or acls.fit in Python", ("root", "workers", *_NORMALISED)),
    "segmentation_folder": Known("folder", "your images and masks", (*_FILES, "void")),
}


@dataclass(frozen=True)
class DataOptions:
    """Options for a data set: its name, its split, and the preprocessing and augmentation of its images."""

    name: str = option("digits", "data set", choices=tuple(CATALOGUE))
    root: str | None = option(None, "folder, or zip file, that holds the data set")
    download: bool = option(False, "fetch the data set into root if it is not there")
    val: float = option(0.1, "fraction of the training samples held out for validation", within="[0, 1)")
    split: str = option("stratified", "draw held-out samples per class or from all", choices=("stratified", "shuffled"))
    split_seed: int = option(1, "seed of the split; it does not change with the run's seed", within=SEED)
    n_train: int | None = option(None, "training samples to use, in class proportion; none: all", within="[1, inf)")
    n_samples: int = option(2000, "number of samples of the synthetic data sets", within="[20, inf)")
    train_list: str = option("train", "VOC's list of training images: train, or trainaug for the augmented 10,582")
    halve: bool = option(False, "VOC, CIFAR: validate on half of the official held-out images, test on the other half")
    void: int = option(255, "label of ignored pixels in the masks of segmentation_folder", within="[0, 255]")
    size: int | None = option(None, "side of the square input images; none: the data set's default", within="[1, inf)")
    memory: bool = option(True, "keep decoded images in memory and augment per batch; false: read files on demand")
    pad: int = option(0, "take random crops after padding each side by this many pixels", within="[0, inf)")
    flip: bool = option(False, "flip half of the images horizontally")
    jitter: float = option(0.0, "strength of the random colour change, as a fraction; 0: none", within="[0, 1]")
    colour: str = option(
        "factors",
        "what jitter changes: brightness, contrast and saturation of every image by factors (timm's way), or "
        "brightness and contrast of half of the images and hue, saturation and value of another half (VOC's protocol)",
        choices=("factors", "hsv"),
    )
    erase: float = option(0.0, "probability that a random box of the image is replaced by noise", within="[0, 1]")
    scale: float = option(1.0, "smallest area of a random resized crop, as a fraction; 1: no crop", within="(0, 1]")
    normalise: str = option(
        "none",
        "data set whose mean and deviation normalise the pixels; EfficientNet-Lite expects lite, (x - 127) / 128",
        choices=("none", "cifar10", "cifar100", "imagenet", "lite"),
    )
    mix: str = option("none", "mix the images of a batch, and their labels", choices=("none", "cutmix", "mixup"))
    mix_alpha: float = option(1.0, "both parameters of the Beta distribution of the mixing ratio", within="(0, inf)")
    mix_prob: float = option(0.5, "fraction of the batches that are mixed", within="[0, 1]")
    workers: int = option(0, "processes that read files; images in memory need none", within="[0, inf)")


def load(options: DataOptions, *, seed: int = 1) -> Data:
    """Load a data set and split it; ``seed`` is the seed of the augmentation."""
    if options.name not in CATALOGUE:
        raise InputError(f"there is no data set {options.name!r}{suggest(options.name, CATALOGUE)}")
    known = CATALOGUE[options.name]
    for name, value in vars(options).items():
        if value != getattr(DataOptions(), name) and name not in (*_ALWAYS, *known.takes):
            raise InputError(f"data.{name} is {value}, but {options.name} does not use it")
    data: Data = importlib.import_module(f"acls.data.{known.module}").load(options, seed)
    return data
