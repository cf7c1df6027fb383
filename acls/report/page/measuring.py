"""Measuring outputs for a page: numbers, sums for diagrams, the most confident mistakes; in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from acls.calibrators import Calibrator, Temperature
from acls.evaluation import Evaluation
from acls.predictions import Predictions
from acls.report.page.subjects import AS_IS, Mistake, State, numbers_of
from acls.shapes import IGNORE_INDEX

MISTAKES = 24
"""Wrong predictions shown of a network."""
KEPT = 1 << 24
"""Scores that are held to fit a temperature where there are no others to fit it on."""

Map = Callable[[Predictions, int], Predictions]
"""Calibrates a slice, whose first row has that number in the data."""


def measure(
    batches: Iterable[Predictions],
    name: str = AS_IS,
    *,
    replicates: int,
    ignore_index: int = IGNORE_INDEX,
    after: Map | None = None,
    temperature: float | None = None,
    note: str = "",
) -> tuple[State, tuple[Mistake, ...]]:
    """Count a data set, as it is or after a map; rows with an image are resampled by images."""
    evaluation = Evaluation(resample=replicates > 0, ignore_index=ignore_index)
    worst: list[Mistake] = []
    for p in batches:
        first = evaluation.rows
        if first == 0 and p.image is not None:
            evaluation.by_image = True
        if after is not None:
            p = after(p, first)
        evaluation.add(p)
        worst = _worst([*worst, *_mistakes(p, first, ignore_index)])
    worth = evaluation.worth(replicates)
    return State(name, numbers_of(worth), worth.n, evaluation.suite, temperature, note), tuple(worst)


def calibrated(calibrator: Calibrator) -> Map:
    """The map of a fitted calibrator."""

    def after(p: Predictions, first: int) -> Predictions:  # noqa: ARG001
        return replace(p, scores=calibrator(logits_of(p)), kind="log_probs")

    return after


def cross_fitted(batches: Iterable[Predictions], ignore_index: int = IGNORE_INDEX) -> tuple[Map, float]:
    """Temperature scaling where no other data is at hand, and its T: each half is scaled by the T of the other half.

    The halves are the rows, or the images, of even and of odd number, so no row has a say in its own temperature.
    """
    halves = [
        Temperature(ignore_index=ignore_index).fit(*held) for held in _held(batches, ignore_index)
    ]  # the rows of even numbers, those of odd ones
    ts = [float(half.temperature) for half in halves]

    def after(p: Predictions, first: int) -> Predictions:
        t = torch.tensor([ts[1], ts[0]])[_halves(p, first)]
        return replace(p, scores=(logits_of(p) / t[:, None]).log_softmax(1), kind="log_probs")

    return after, (ts[0] * ts[1]) ** 0.5


def _held(batches: Iterable[Predictions], ignore_index: int) -> list[tuple[Tensor, Tensor]]:
    """Logits and labels of the rows of even and of odd numbers, evenly thinned out where they are too many."""
    kept: list[tuple[Tensor, Tensor, Tensor]] = []
    first, stride, held = 0, 1, 0
    for p in batches:
        number = torch.arange(first, first + len(p))
        first += len(p)
        chosen = (number % stride == 0) & (p.labels != ignore_index)
        logits = logits_of(p[chosen]).float()
        # Copies, as a slice may be a view of the whole file.
        kept.append((logits.clone(), p.labels[chosen].clone(), _halves(p, first - len(p))[chosen] + 2 * number[chosen]))
        held += logits.numel()
        while held > KEPT:
            # An odd stride, so that both halves stay.
            stride *= 3
            kept = [_every(part, stride) for part in kept]
            held = sum(part[0].numel() for part in kept)
    logits, labels, code = (torch.cat(parts) for parts in zip(*kept, strict=True))
    return [(logits[code % 2 == half], labels[code % 2 == half]) for half in (0, 1)]


def _every(part: tuple[Tensor, Tensor, Tensor], stride: int) -> tuple[Tensor, Tensor, Tensor]:
    stay = (part[2] // 2) % stride == 0
    return part[0][stay], part[1][stay], part[2][stay]


def _halves(p: Predictions, first: int) -> Tensor:
    """0 or 1 for each row."""
    return (torch.arange(first, first + len(p)) if p.image is None else p.image) % 2


def logits_of(p: Predictions) -> Tensor:
    """Scores that a softmax turns into the probabilities."""
    return p.log_probs() if p.kind != "logits" or p.scores is None else p.scores.float()


def _mistakes(p: Predictions, first: int, ignore_index: int) -> Iterator[Mistake]:
    confidence, predicted = p.top()
    wrong = (predicted != p.labels) & (p.labels != ignore_index)
    sure = torch.where(wrong, confidence, -1.0)
    # Many pixels of one image are one mistake: more are looked at than shown.
    for row in sure.topk(min(len(p), MISTAKES * (1 if p.image is None else 50))).indices.tolist():
        if bool(wrong[row]):
            image = None if p.image is None else int(p.image[row])
            yield Mistake(first + row, int(p.labels[row]), int(predicted[row]), float(confidence[row]), image)


def _worst(mistakes: list[Mistake]) -> list[Mistake]:
    """The most confident ones, of an image one."""
    by_unit: dict[tuple[str, int], Mistake] = {}
    for mistake in sorted(mistakes, key=lambda one: (-one.confidence, one.row)):
        by_unit.setdefault(("row", mistake.row) if mistake.image is None else ("image", mistake.image), mistake)
    return list(by_unit.values())[:MISTAKES]
