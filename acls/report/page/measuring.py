"""Temperature scaling of a file of predictions where no other data is at hand, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from acls.calibrators import Temperature
from acls.predictions import Predictions
from acls.shapes import IGNORE_INDEX

KEPT = 1 << 24
"""Scores that are held to fit a temperature."""

Map = Callable[[Predictions, int], Predictions]
"""Calibrates a slice, whose first row has that number in the data."""


def mapped(batches: Iterable[Predictions], after: Map) -> Iterator[Predictions]:
    """The slices of a data set after a map."""
    first = 0
    for p in batches:
        yield after(p, first)
        first += len(p)


def cross_fitted(batches: Iterable[Predictions], ignore_index: int = IGNORE_INDEX) -> tuple[Map, float]:
    """A map that scales each half by the temperature of the other half, and the temperature of all.

    The halves are the rows, or the images, of even and of odd number, so no row has a say in its own temperature. That
    of all is what `acls calibrate` finds.
    """
    logits, labels, half = _held(batches, ignore_index)

    def fitted(rows: Tensor) -> float:
        return float(Temperature(ignore_index=ignore_index).fit(logits[rows], labels[rows]).temperature)

    of_the_other = torch.tensor([fitted(half == 1), fitted(half == 0)])

    def after(p: Predictions, first: int) -> Predictions:
        t = of_the_other[_halves(p, first)]
        return replace(p, scores=(p.logits() / t[:, None]).log_softmax(1), kind="log_probs")

    return after, fitted(half >= 0)


def _held(batches: Iterable[Predictions], ignore_index: int) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, labels and half of the labelled rows, evenly thinned out where they are too many."""
    kept: list[tuple[Tensor, ...]] = []
    first, stride = 0, 1
    for p in batches:
        number, half = torch.arange(first, first + len(p)), _halves(p, first)
        chosen = (number % stride == 0) & (p.labels != ignore_index)
        # Indexing by a mask copies, so a slice that is a view does not keep a whole file.
        kept.append((p[chosen].logits(), p.labels[chosen], half[chosen], number[chosen]))
        first += len(p)
        while sum(part[0].numel() for part in kept) > KEPT:
            stride *= 3  # odd, so that both halves stay
            kept = [tuple(column[part[3] % stride == 0] for column in part) for part in kept]
    logits, labels, half, _ = (torch.cat(parts) for parts in zip(*kept, strict=True))
    return logits, labels, half


def _halves(p: Predictions, first: int) -> Tensor:
    """0 or 1 for each row."""
    return (torch.arange(first, first + len(p)) if p.image is None else p.image) % 2
