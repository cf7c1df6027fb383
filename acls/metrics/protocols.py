"""Protocols: the conventions under which published calibration errors were computed, to reproduce them exactly.

Several conventions change a calibration error: the closed side of bins, the treatment of the least confident sample,
the averaging over batches, and the treatment of the background. A `Protocol` records all of them. Two numbers are
comparable if their protocols are equal.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from acls.arrays import ScoreKind
from acls.errors import InputError, suggest
from acls.metrics.batch import Batch
from acls.metrics.bins import BINS, Bins, edges
from acls.metrics.ordered import adaptive_ece
from acls.metrics.proper import Proper
from acls.metrics.suite import Suite
from acls.predictions import to_logits
from acls.shapes import IGNORE_INDEX

GRID = list(itertools.accumulate([0.1] * 100))
"""The temperatures 0.1, 0.2, ..., 10, as repeated sums like the code of the papers: 2.8 is 2.800000000000001."""


@dataclass(frozen=True)
class Protocol:
    """The conventions under which metrics are computed. It is hashable, so it can be stored with a number."""

    name: str
    why: str
    """One sentence that states how it differs from the others."""
    bins: int = BINS
    closed: Literal["right", "left"] = "right"
    """Bins are (lo, hi], or [lo, hi) with 1.0 in a bin of its own."""
    adaptive: Literal["exact", "interpolated"] = "exact"
    """Equal-mass bins by splitting the sorted samples, or by `interpolated_aece`."""
    classes: Literal["all", "up to the largest label"] = "all"
    """The classes that the classwise error is averaged over."""
    images: int = 0
    """Images per batch. Each batch is measured separately, and the results are averaged. 0 pools all samples."""
    weighted: bool = True
    """Whether batches are weighted by their number of samples, or equally."""
    without: int | None = None
    """A class whose samples are left out: the background."""
    temperature: Literal["none", "grid"] = "none"
    """Whether all scores are first divided by the temperature of the grid that gives the least ECE."""

    def meter(self) -> Meter:
        """Return a meter that takes batches and computes the metrics."""
        return _GridMeter(self) if self.temperature == "grid" else Meter(self)

    def measure(
        self,
        scores: Tensor,
        target: Tensor,
        *,
        kind: ScoreKind = "logits",
        image: Tensor | None = None,
        ignore_index: int = IGNORE_INDEX,
    ) -> dict[str, float]:
        """Return the metrics of scores ``(N, K, *D)``. If rows are pixels, ``image`` is the image of each row."""
        meter = self.meter()
        meter.add(Batch.of(scores, target, kind=kind, ignore_index=ignore_index), image)
        return meter.result()


PROTOCOLS: dict[str, Protocol] = {
    one["name"]: Protocol(**one) for one in json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
}


def protocol(name: str) -> Protocol:
    """Return the protocol with this name."""
    if name not in PROTOCOLS:
        raise InputError(f"there is no protocol {name!r}{suggest(name, PROTOCOLS)}")
    return PROTOCOLS[name]


class Meter:
    """Compute the metrics of one protocol from batches in order."""

    def __init__(self, protocol: Protocol) -> None:
        self.protocol = protocol
        self._groups: dict[int, _Group] = {}
        self._images = 0
        self._maps = 0
        self._last_image: int | None = None

    def add(self, batch: Batch, image: Tensor | None = None) -> None:
        """Add a batch. ``image`` is the image number of each row. The rows of one image must be consecutive."""
        for number, rows in self._segments(batch, image):
            part = batch[rows]
            if self.protocol.without is not None:
                part = part[part.target != self.protocol.without]
            if len(part):
                counted = _Group.count(part, self.protocol)
                self._groups[number] = self._groups[number] + counted if number in self._groups else counted

    def result(self) -> dict[str, float]:
        """Return the metrics of all batches so far; empty if there was no valid sample."""
        measured = self.batches()
        if not measured:
            return {}
        total = sum(int(numbers["n"]) for numbers in measured)
        weights = [numbers["n"] / total if self.protocol.weighted else 1 / len(measured) for numbers in measured]
        pairs = list(zip(weights, measured, strict=True))
        means = {name: math.fsum(weight * numbers[name] for weight, numbers in pairs) for name in measured[0]}
        return means | {"n": total}

    def batches(self) -> list[dict[str, float]]:
        """Return the metrics of each batch that is measured separately."""
        return [group.numbers(self.protocol) for group in self._groups.values()]

    def _segments(self, batch: Batch, image: Tensor | None) -> Iterator[tuple[int, slice]]:
        """Yield the rows of each image, with the number of the group that the image is measured in."""
        if not self.protocol.images:
            yield 0, slice(None)
            return
        if image is None:
            if not batch.dense:
                raise InputError(
                    f"protocol {self.protocol.name!r} measures images separately: pass image=, the image of each row"
                )
            image = batch.places(self._maps)
            self._maps += image.shape[0]
        numbers, sizes = torch.unique_consecutive(batch.spread(image).long(), return_counts=True)
        ends = sizes.cumsum(0)
        for number, start, end in torch.stack([numbers, ends - sizes, ends], 1).tolist():
            if number != self._last_image:
                self._last_image = number
                self._images += 1
            yield (self._images - 1) // self.protocol.images, slice(start, end)


class _GridMeter(Meter):
    """Measure at every temperature of the grid, and return the metrics at the temperature with the least ECE."""

    def __init__(self, protocol: Protocol) -> None:
        super().__init__(protocol)
        self._at: list[tuple[Bins, Proper]] = []

    def add(self, batch: Batch, image: Tensor | None = None) -> None:
        logits = to_logits(batch.scores, batch.kind)
        scaled = (Batch(logits / temperature, batch.target, "logits") for temperature in GRID)
        counted = [(Bins.count(each, self.protocol.bins), Proper.count(each)) for each in scaled]
        if self._at:
            both = zip(self._at, counted, strict=True)
            counted = [(before[0] + now[0], before[1] + now[1]) for before, now in both]
        self._at = counted

    def result(self) -> dict[str, float]:
        """Return the metrics at the chosen temperature (the lowest one if several are equally good)."""
        if not self._at or self._at[0][0].n == 0:
            return {}
        errors = [bins.ece for bins, _ in self._at]
        best = errors.index(min(errors))
        return {**_numbers(*self._at[best]), "temperature": GRID[best]}


@dataclass(frozen=True, eq=False)
class _Group:
    """Samples that are measured together."""

    suite: Suite
    pairs: tuple[tuple[Tensor, Tensor], ...]
    """Confidences with hits one by one, where the protocol interpolates between them."""

    @classmethod
    def count(cls, batch: Batch, protocol: Protocol) -> _Group:
        top = batch.top
        suite = Suite.count(batch, protocol.bins, classwise=batch.n_classes is not None)
        if protocol.closed == "left":
            index = torch.bucketize(top.confidence, edges(protocol.bins, top.confidence), right=True) - 1
            suite = replace(suite, bins=Bins.sums(index, protocol.bins + 1, top.confidence, top.right))
        return cls(suite, ((top.confidence, top.right),) if protocol.adaptive == "interpolated" else ())

    def __add__(self, other: _Group) -> _Group:
        return _Group(self.suite + other.suite, self.pairs + other.pairs)

    def numbers(self, protocol: Protocol) -> dict[str, float]:
        """The group's numbers by name."""
        suite = self.suite
        found = _numbers(suite.bins, suite.proper)
        if self.pairs:
            confidence, right = (torch.cat(column) for column in zip(*self.pairs, strict=True))
            found["aece"] = interpolated_aece(confidence, right, protocol.bins)
        else:
            found["aece"] = float(adaptive_ece(suite.confidences.cells(), protocol.bins)[0])
        if suite.classwise is not None:
            by_class = suite.classwise.ece_by_class()
            if protocol.classes != "all":
                by_class = by_class[: int(suite.classwise.events.sum(1).nonzero().max()) + 1]
            found["classwise_ece"] = float(by_class.mean())
        return found


def _numbers(bins: Bins, proper: Proper | None) -> dict[str, float]:
    scores = {} if proper is None else {"nll": proper.nll, "brier": proper.brier}
    accuracy = bins.summary()["accuracy"]
    return {"n": bins.n, "accuracy": accuracy, **scores, "ece": bins.ece, "mce": bins.mce, "rmsce": bins.rmsce}


def interpolated_aece(confidence: Tensor, right: Tensor, bins: int) -> float:
    """Return the adaptive ECE of its reference code: edges at interpolated ranks k n / B of the sorted confidences.

    Bins are (lo, hi] with the least confidence as the lowest edge. Samples with the least confidence are therefore in
    no bin, but count in n. All samples with the same confidence share a bin (Mukhoti et al., NeurIPS 2020).
    """
    n = confidence.shape[0]
    ordered = confidence.sort().values.double()
    place = torch.linspace(0, n, bins + 1, dtype=torch.float64, device=confidence.device).clamp(max=n - 1)
    below = place.long().clamp(max=max(n - 2, 0))
    edge = torch.lerp(ordered[below], ordered[(below + 1).clamp(max=n - 1)], place - below).to(confidence.dtype)
    index = torch.bucketize(confidence, edge)
    residual = torch.bincount(index, weights=confidence.double() - right.double(), minlength=bins + 1)
    return float(residual[1:].abs().sum()) / n
