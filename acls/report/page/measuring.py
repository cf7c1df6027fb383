"""Measuring outputs for a page: numbers, sums for diagrams, the most confident mistakes; in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from acls.calibrators import Calibrator, Temperature
from acls.errors import InputError
from acls.evaluation import Evaluation
from acls.metrics import Blocks
from acls.predictions import Predictions
from acls.report.page.subjects import Mistake
from acls.shapes import IGNORE_INDEX

MISTAKES = 24
"""Wrong predictions shown of a network."""
KEPT = 1 << 24
"""Scores that are held to fit a temperature where there are no others to fit it on."""

Map = Callable[[Predictions, int], Predictions]
"""Calibrates a slice, whose first row has that number in the data."""


def evaluated(
    batches: Iterable[Predictions],
    after: Map | None = None,
    *,
    ignore_index: int = IGNORE_INDEX,
    resample: bool = True,
) -> Evaluation:
    """Count a data set, as it is or after a map; rows with an image are resampled by images."""
    evaluation = Evaluation(resample=resample, ignore_index=ignore_index)
    for p in batches:
        if evaluation.rows == 0:
            evaluation.by_image = p.image is not None
        evaluation.add(p if after is None else after(p, evaluation.rows))
    return evaluation


def blocks_of(batches: Iterable[Predictions], after: Map | None = None, *, ignore_index: int = IGNORE_INDEX) -> Blocks:
    """The blocks of a data set, for comparing."""
    found = evaluated(batches, after, ignore_index=ignore_index).blocks
    if found is None:
        raise InputError("there are no labelled rows to evaluate")
    return found


def calibrated(calibrator: Calibrator) -> Map:
    """The map of a fitted calibrator."""

    def after(p: Predictions, first: int) -> Predictions:  # noqa: ARG001
        return replace(p, scores=calibrator(p.logits()), kind="log_probs")

    return after


def cross_fitted(batches: Iterable[Predictions], ignore_index: int = IGNORE_INDEX) -> tuple[Map, float]:
    """Temperature scaling where no other data is at hand, and its T: each half is scaled by the T of the other half.

    The halves are the rows, or the images, of even and of odd number, so no row has a say in its own temperature.
    """
    even, odd = (
        float(Temperature(ignore_index=ignore_index).fit(*held).temperature) for held in _held(batches, ignore_index)
    )
    of_the_other = torch.tensor([odd, even])

    def after(p: Predictions, first: int) -> Predictions:
        t = of_the_other[_halves(p, first)]
        return replace(p, scores=(p.logits() / t[:, None]).log_softmax(1), kind="log_probs")

    return after, (even * odd) ** 0.5


def worst_mistakes(batches: Iterable[Predictions], ignore_index: int = IGNORE_INDEX) -> tuple[Mistake, ...]:
    """The wrong predictions of most confidence, of an image one."""
    worst: list[Mistake] = []
    first = 0
    for p in batches:
        by_unit: dict[tuple[str, int], Mistake] = {}
        for mistake in sorted([*worst, *_mistakes(p, first, ignore_index)], key=lambda one: (-one.confidence, one.row)):
            unit = ("row", mistake.row) if mistake.image is None else ("image", mistake.image)
            by_unit.setdefault(unit, mistake)
        worst = list(by_unit.values())[:MISTAKES]
        first += len(p)
    return tuple(worst)


def _mistakes(p: Predictions, first: int, ignore_index: int) -> Iterator[Mistake]:
    confidence, predicted = p.top()
    wrong = (predicted != p.labels) & (p.labels != ignore_index)
    sure = torch.where(wrong, confidence, -1.0)
    # Many pixels of one image are one mistake: more are looked at than shown.
    looked_at = MISTAKES * (1 if p.image is None else 50)
    for row in sure.topk(min(len(p), looked_at)).indices.tolist():
        if bool(wrong[row]):
            image = None if p.image is None else int(p.image[row])
            yield Mistake(first + row, int(p.labels[row]), int(predicted[row]), float(confidence[row]), image)


def _held(batches: Iterable[Predictions], ignore_index: int) -> list[tuple[Tensor, Tensor]]:
    """Logits and labels of both halves, evenly thinned out where they are too many."""
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
    return [(logits[half == which], labels[half == which]) for which in (0, 1)]


def _halves(p: Predictions, first: int) -> Tensor:
    """0 or 1 for each row."""
    return (torch.arange(first, first + len(p)) if p.image is None else p.image) % 2
