"""Data passed as Python objects: arrays, any torch ``Dataset``, or a Hugging Face data set."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from acls.data import DataOptions
from acls.data.augment import Augment
from acls.data.dataset import Data, InMemory, Part, SampleSource
from acls.data.keyed_random import seed_of
from acls.data.splits import divide
from acls.errors import InputError
from acls.shapes import IGNORE_INDEX

_INPUTS, _TARGETS = ("image", "img", "pixel_values", "x"), ("label", "labels", "target", "y", "fine_label")


def load(options: DataOptions, seed: int) -> Data:  # noqa: ARG001
    """Raise an error: objects of another process cannot be loaded by name."""
    raise InputError("the data of this run was passed in Python: pass it again to acls.compare or acls.fit")


@dataclass(frozen=True)
class Items:
    """A source that reads the samples of a data set by number, on demand.

    Random transforms of the data set use generators that are seeded by the seed of the run, the epoch and the index of
    the sample.
    """

    items: Any
    augment: Augment = field(default_factory=Augment)

    def __len__(self) -> int:
        return len(self.items)

    def take(self, numbers: Tensor, key: tuple[int, int] | None, index: Tensor) -> tuple[Tensor, Tensor]:
        samples = []
        for number, i in zip(numbers.tolist(), index.tolist(), strict=True):
            with _seeded(seed_of(*(key or (0, 0)), i)):
                samples.append(_pair(self.items[number]))
        xs, ys = zip(*samples, strict=True)
        return self.augment(torch.stack(xs), torch.stack(ys), key, index)


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed the generators that transforms use, and restore the states of the caller afterwards."""
    before, numpys = random.getstate(), np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        random.seed(seed)
        try:
            yield
        finally:
            random.setstate(before)
            np.random.set_state(numpys)  # noqa: NPY002


def gathered(
    train: Any,
    val: Any,
    test: Any,
    *,
    options: DataOptions,
    seed: int,
    classes: Sequence[str] | None = None,
    void: int = IGNORE_INDEX,
) -> Data:
    """Make three parts from arrays ``(x, y)`` or data sets; ``val=None`` is held out from ``train``, per class."""
    if train is None or test is None:
        raise InputError("expected train= and test=: arrays (x, y) or data sets")
    augment = Augment(options, void)
    source = _source(train, augment)
    own = {part: Part(_source(one, augment)) for part, one in (("val", val), ("test", test)) if one is not None}
    y = labels(source)
    if y.is_floating_point() or bool((y[y != void] < 0).any()):
        raise InputError(
            "expected labels that are class ids starting at 0; pass void= for the label of positions to ignore"
        )
    names = tuple(classes or _names(train) or (f"class {k}" for k in range(int(y[y != void].max()) + 1)))
    return divide(source, y if y.ndim == 1 else None, options, seed, names, own=own, void=void)


def fingerprint(*parts: Any) -> str:
    """Return a hash: of all inputs and labels for arrays, of the labels and the first input for data sets."""
    digest = hashlib.sha256()
    for source in (_source(one, Augment()) for one in parts if one is not None):
        x = source.x if isinstance(source, InMemory) else source.take(torch.tensor([0]), None, torch.tensor([0]))[0]
        for tensor in (labels(source), x):
            digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(tensor.contiguous().numpy().tobytes())
    return f"sha256:{digest.hexdigest()[:32]}"


def labels(source: SampleSource) -> Tensor:
    """Return all labels, from ``targets``, ``labels`` or a column if there is one, else by reading every sample."""
    if isinstance(source, InMemory):
        return source.y
    assert isinstance(source, Items)
    for name in ("targets", "labels"):
        if len(found := getattr(source.items, name, ())) == len(source):
            return torch.as_tensor(np.asarray(found))
    column = next((one for one in _TARGETS if one in getattr(source.items, "column_names", ())), None)
    if column is not None:
        return torch.as_tensor(np.asarray(source.items[column]))
    return torch.stack([_pair(source.items[number])[1] for number in range(len(source))])


def _source(given: Any, augment: Augment) -> InMemory | Items:
    if not isinstance(given, tuple):
        if isinstance(given, Mapping) or not hasattr(given, "__getitem__") or not hasattr(given, "__len__"):
            way_out = ": pass its parts, as in train=data['train']" if isinstance(given, Mapping) else ""
            raise InputError(f"expected arrays (x, y) or a data set with a length, got {type(given).__name__}{way_out}")
        return Items(given, augment)
    if len(given) != 2 or len(given[0]) != len(given[1]):
        raise InputError(f"expected arrays (x, y) of the same length, got {[np.shape(one) for one in given]}")
    x, y = (torch.as_tensor(np.asarray(one)) for one in given)
    return InMemory(x if x.dtype == torch.uint8 else x.float(), y, augment)


def _pair(item: Any) -> tuple[Tensor, Tensor]:
    if isinstance(item, Mapping):
        names = [next((one for one in wanted if one in item), None) for wanted in (_INPUTS, _TARGETS)]
        if None in names:
            raise InputError(f"expected columns such as image and label, got {', '.join(map(str, item))}")
        item = tuple(item[name] for name in names)
    x, y = item[0], item[1]
    if not isinstance(x, Tensor):
        pixels = torch.as_tensor(np.array(x))
        from_image = pixels.dtype == torch.uint8 and pixels.ndim >= 2 and hasattr(x, "convert")
        x = pixels.movedim(-1, 0) if from_image and pixels.ndim == 3 else pixels[None] if from_image else pixels
    if x.ndim == 3 and x.shape[-1] in (1, 3, 4) and x.shape[0] not in (1, 3, 4) and x.dtype == torch.uint8:
        raise InputError(f"expected images of shape (C, H, W), got {tuple(x.shape)}: move the channels to axis 0")
    return x if x.dtype == torch.uint8 else x.float(), torch.as_tensor(np.asarray(y))


def _names(given: Any) -> tuple[str, ...] | None:
    """Return the class names if the data set has them, as in torchvision or Hugging Face."""
    if getattr(given, "classes", None):
        return tuple(map(str, given.classes))
    features = getattr(given, "features", None) or {}
    return next((tuple(features[one].names) for one in _TARGETS if hasattr(features.get(one), "names")), None)
