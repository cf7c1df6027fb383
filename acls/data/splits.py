"""Choose held-out samples, per class or from all samples; the same seed always gives the same split."""

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from acls.data import DataOptions
from acls.data.dataset import Data, Part, SampleSource
from acls.errors import InputError
from acls.shapes import IGNORE_INDEX


def hold_out(labels: Tensor, share: float, *, rule: str = "stratified", seed: int = 1) -> tuple[Tensor, Tensor]:
    """Split the numbers ``0..N-1`` into kept and held-out numbers, each in ascending order.

    ``shuffled`` puts all numbers in random order and holds out the first ones, as in the protocol of CIFAR-10.
    ``stratified`` holds out the last ones of each class, as in the protocol of Tiny-ImageNet. Each class keeps at least
    one sample, and a class with two or more samples has at least one held out.
    """
    if not 0 <= share < 1:
        raise InputError(f"data.val: expected a held-out share in [0, 1), got {share}")
    random = np.random.RandomState(seed)  # NumPy guarantees that the numbers of this generator never change
    if share == 0:
        held = np.zeros(0, dtype=np.int64)
    elif rule == "shuffled":
        held = random.permutation(len(labels))[: round(share * len(labels))]
    else:
        parts = []
        for members in _by_class(labels):
            random.shuffle(members)
            count = min(max(round(share * len(members)), 1), len(members) - 1)
            parts.append(members[len(members) - count :])
        held = np.concatenate(parts)
    return _apart(len(labels), held)


def per_class(labels: Tensor, count: int, *, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Hold out ``count`` samples per class, as for ImageNet: 10 for validation and 40 for the test."""
    random = np.random.RandomState(seed)
    parts = []
    for number, members in enumerate(_by_class(labels)):
        if len(members) <= count:
            raise InputError(
                f"class {number} has {len(members)} samples: cannot hold out {count} and keep some for training"
            )
        random.shuffle(members)
        parts.append(members[:count])
    return _apart(len(labels), np.concatenate(parts))


def subset(labels: Tensor, chosen: Tensor, count: int | None, *, seed: int = 1) -> Tensor:
    """Return at most ``count`` of the chosen numbers, sorted, in proportion to the classes; all if it is None."""
    if count is None or count >= len(chosen):
        return chosen
    if count < 1:
        raise InputError(f"data.n_train: expected 1 or more, got {count}")
    random = np.random.RandomState(seed)
    # The members of each class get evenly spaced ranks, so the lowest ranks keep the class proportions.
    ranks = np.empty(len(chosen))
    for members in _by_class(labels[chosen]):
        random.shuffle(members)
        ranks[members] = (np.arange(len(members)) + random.uniform()) / len(members)
    lowest = np.argsort(ranks, kind="stable")[:count]
    return chosen[torch.from_numpy(np.sort(lowest))]


def _apart(total: int, held: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(np.setdiff1d(np.arange(total), held)), torch.from_numpy(np.sort(held))


def _by_class(labels: Tensor) -> list[NDArray[np.int64]]:
    ids = labels.numpy()
    return [np.flatnonzero(ids == number) for number in np.unique(ids)]


def divide(
    source: SampleSource,
    labels: Tensor | None,
    options: DataOptions,
    seed: int,
    names: tuple[str, ...],
    *,
    own: Mapping[str, Part] | None = None,
    rest: Tensor | None = None,
    test_share: float = 0.0,
    void: int = IGNORE_INDEX,
) -> Data:
    """Divide one source into three parts: draw the test and validation parts that are not in ``own``, then train.

    ``labels`` are the class ids. For label maps it is None, and the first ``n_train`` samples are used for training.
    ``rest`` are the samples to draw from (default: all).
    """
    strata = torch.zeros(len(source)) if labels is None else labels
    rest, parts = torch.arange(len(source)) if rest is None else rest, dict(own or {})
    drawn = {"test": (test_share, "stratified", 0), "val": (options.val, options.split, options.split_seed)}
    for part, (share, rule, number) in drawn.items():
        if part not in parts:
            kept, held = hold_out(strata[rest], share, rule=rule, seed=number)
            parts[part], rest = Part(source, rest[held]), rest[kept]
    n_train = options.n_train
    rest = rest[:n_train] if labels is None else subset(labels, rest, n_train, seed=options.split_seed)
    train = Part(source, rest, seed=seed)
    return Data(train, parts["val"], parts["test"], names, void=void, segmentation=labels is None)
