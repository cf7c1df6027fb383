"""What happens to one image read from a file, by torchvision's transforms; they draw from torch's global generator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from acls.data import DataOptions
from acls.data.augment import STATISTICS
from acls.vision import submodule


@dataclass(frozen=True)
class Item:
    """A torchvision transform of a Pillow image and its class id or label map; a picklable callable."""

    transform: Callable[..., Any]

    def __call__(self, image: Any, target: Any) -> tuple[Tensor, Tensor]:
        if isinstance(target, int):
            return self.transform(image).as_subclass(Tensor), torch.tensor(target)
        mask = submodule("tv_tensors").Mask(target)
        x, y = self.transform(image, mask)
        return x.as_subclass(Tensor), y.as_subclass(Tensor).squeeze(0).long()


def classification(options: DataOptions, size: int) -> tuple[Item, Item]:
    """For training: random resized crop (bicubic), flip, colour jitter, erasing; else the middle 224/256, resized."""
    v2 = submodule("transforms.v2")
    bicubic = v2.InterpolationMode.BICUBIC
    shorter = round(size * 256 / 224)
    middle = [v2.Resize(shorter, interpolation=bicubic, antialias=True), v2.CenterCrop(size)]
    cropped = [v2.RandomResizedCrop(size, scale=(options.scale, 1.0), interpolation=bicubic, antialias=True)]
    train = [
        *(cropped if options.scale < 1 else middle),
        *([v2.RandomHorizontalFlip()] if options.flip else []),
        *([v2.ColorJitter(options.jitter, options.jitter, options.jitter)] if options.jitter else []),
        *_normalised(options.normalise),
        *([v2.RandomErasing(options.erase, value="random")] if options.erase else []),
    ]
    return Item(v2.Compose(train)), Item(v2.Compose([*middle, *_normalised(options.normalise)]))


def segmentation(options: DataOptions, void: int) -> tuple[Item, Item]:
    """For training: longest side 640, a random crop of 512, flip, colour; else longest side 480, padded to a square.

    Padding is black in the image and void in the mask. Other sizes scale the three numbers alike.
    """
    v2, tv_tensors = submodule("transforms.v2"), submodule("tv_tensors")
    fill = {tv_tensors.Image: 0, tv_tensors.Mask: void, "others": 0}
    size = options.size or 512
    colour = [
        v2.RandomApply([v2.ColorJitter(brightness=options.jitter, contrast=options.jitter)], p=0.5),
        # The protocol shifts hue by up to 20 of 180 and saturation by up to 30 of 255, each in half of the images.
        v2.RandomApply([v2.ColorJitter(hue=20 / 180, saturation=30 / 255)], p=0.5),
    ]
    train = [
        v2.ToImage(),
        v2.Resize(None, max_size=size * 640 // 512, antialias=True),
        v2.RandomCrop(size, pad_if_needed=True, fill=fill),
        *([v2.RandomHorizontalFlip()] if options.flip else []),
        *(colour if options.jitter else []),
        *_normalised(options.normalise),
    ]
    longest = size * 480 // 512
    plain = [
        v2.ToImage(),
        v2.Resize(None, max_size=longest, antialias=True),
        v2.CenterCrop(longest),
        *_normalised(options.normalise),
    ]
    return Item(v2.Compose(train)), Item(_PadThen(v2.Compose(plain[:2]), longest, void, v2.Compose(plain[3:])))


@dataclass(frozen=True)
class _PadThen:
    """Pad to a square with black and void between two transforms: torchvision's centre crop pads labels with 0."""

    before: Callable[..., Any]
    side: int
    void: int
    after: Callable[..., Any]

    def __call__(self, image: Any, mask: Any) -> tuple[Any, Any]:
        functional = submodule("transforms.v2.functional")
        image, mask = self.before(image, mask)
        height, width = image.shape[-2:]
        left, top = (self.side - width) // 2, (self.side - height) // 2
        around = [left, top, self.side - width - left, self.side - height - top]
        image, mask = functional.pad(image, around, fill=0), functional.pad(mask, around, fill=self.void)
        return self.after(image, mask)  # type: ignore[no-any-return]


def _normalised(name: str) -> list[Any]:
    v2 = submodule("transforms.v2")
    mean, deviation = STATISTICS[name]
    steps = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
    return steps if name == "none" else [*steps, v2.Normalize(mean, deviation)]
