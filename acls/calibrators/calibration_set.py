"""The calibration data as rows: checked, flattened, without ignored positions, and read in chunks once per pass.

This module also computes NLL and ECE before and after calibration, chunk by chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import reduce
from operator import add

import torch
from torch import Tensor

from acls.arrays import refuse, weight_faults
from acls.errors import InputError
from acls.hashing import codes
from acls.metrics.bins import BINS, bin_of
from acls.metrics.tally import Tally
from acls.shapes import check_tensor, flatten

CHUNK = 2**18
"""Number of elements of logits per chunk: about a megabyte, so that intermediate results stay in the cache."""
SMALL_CHUNK = 2**15
"""Chunk size if all data would fit in one chunk. One thread processes such a chunk without waiting for others."""

SMALLEST = -103.2789
"""The log of the smallest positive float32."""

Batches = Iterable[tuple[Tensor, ...]]
Chunk = tuple[Tensor, Tensor, Tensor]
"""Logits ``(m, K)``, labels ``(m,)`` and weights ``(m,)`` in the dtype of the logits."""
Chunks = Iterable[Chunk]
Rows = tuple[Tensor, Tensor, Tensor, Tensor]
"""Logits, labels and weights of all rows, and the group number of each row ``(m,)``."""

NOTHING_LEFT = "nothing to fit: there is no batch, or every position has weight 0 or the label ignore_index"


@dataclass(frozen=True)
class Passes:
    """Chunks that are computed again in each pass."""

    make: Callable[[], Iterator[Chunk]]

    def __iter__(self) -> Iterator[Chunk]:
        return self.make()


class CalibrationSet:
    """Re-iterable chunks of tensors, or of an iterable of batches ``(logits, target)`` or ``(logits, target, weight)``.

    An iterable is read once per pass and not kept in memory. If a method needs all rows at once, `hold` collects them.
    A row of weight w counts as w equal rows. Without weights each row has weight 1. Rows of weight 0 are left out.
    """

    held: Rows | None = None
    """All rows, if they are in memory."""

    def __init__(
        self,
        logits: Tensor | Batches,
        target: Tensor | None = None,
        weight: Tensor | None = None,
        *,
        group: Tensor | None = None,
        ignore_index: int,
    ):
        self._ignore_index = ignore_index
        self._groups = torch.zeros(1, dtype=torch.int64)
        self._batches: Batches = () if isinstance(logits, Tensor) else logits
        if hasattr(logits, "shape"):
            check_tensor(logits)
        if isinstance(logits, Tensor):
            if target is None:
                raise InputError("target is missing: pass fit(logits, target), or an iterable of (logits, target)")
            if group is None:
                self._groups = torch.arange(len(logits), device=logits.device)
            else:
                self._groups = torch.unique(_per_sample("group", group, len(logits)), return_inverse=True)[1]
            self.held = self._compact(logits, target, weight, self._groups)
        elif any(given is not None for given in (target, weight, group)):
            raise InputError(
                "expected an iterable of batches (logits, target) or (logits, target, sample_weight) as the only "
                "data, got target, sample_weight or groups as well"
            )

    def check_rereadable(self, name: str) -> None:
        """Raise an error for a generator, which can be read only once."""
        if self.held is None and iter(self._batches) is self._batches:
            raise InputError(
                f"{name} reads its batches several times, but a generator can be read only once: "
                "pass a list, a DataLoader, or any other iterable that can be read again"
            )

    def __iter__(self) -> Iterator[Chunk]:
        for part in (self._compact(*batch) for batch in self._batches) if self.held is None else [self.held]:
            yield from chunks(*part[:3])

    def first(self) -> Chunk:
        """Return some rows to start from: all rows if they are in memory, else the first chunk."""
        found = next(iter(self), None) if self.held is None else self.held[:3]
        if found is None or not len(found[1]):
            raise InputError(NOTHING_LEFT)
        return found

    def total(self) -> float:
        """Return the sum of the weights. Without weights it is the number of rows."""
        return float(sum_over(self, lambda _logits, _labels, weight: weight.sum(dtype=torch.float64)))

    def hold(self) -> Rows:
        """Return all rows in their original order. The rows of an iterable are collected first."""
        if self.held is None:
            parts, start = [], 0
            for batch in self._batches:
                *columns, group = self._compact(*batch)
                parts.append((*columns, group + start))
                start += batch[0].shape[0]
            if parts:
                self.held = tuple(torch.cat(column) for column in zip(*parts, strict=True))  # type: ignore[assignment]
        if self.held is None or not len(self.held[1]):
            raise InputError(NOTHING_LEFT)
        return self.held

    def all(self) -> Chunk:
        """Return all rows in an order that depends only on their content.

        Random draws and folds therefore do not depend on the order of the input.
        """
        return self._in_order()[:3]

    def folds(self, n: int) -> Tensor:
        """Return a fold 0..n-1 for each row of `all`. The positions of one map, or of one group, stay together."""
        return self._group_folds(n)[self._in_order()[3]]

    def sample_folds(self, n: int) -> Tensor:
        """Return a fold 0..n-1 for each sample, in the input order. Samples of one group stay together."""
        return self._group_folds(n)[self._groups]

    def _group_folds(self, n: int) -> Tensor:
        """Return a fold for each group, by a hash of its content. Folds have equal sizes, and empty groups are last."""
        logits, labels, _, group = self.hold()
        totals = torch.full((int(max(group.max(), self._groups.max())) + 1,), 2**63 - 1, device=group.device)
        totals[group] = 0
        totals.scatter_add_(0, group, codes(logits, labels))
        return totals.argsort(stable=True).argsort(stable=True) % n

    def _in_order(self) -> Rows:
        logits, labels, weight, group = self.hold()
        order = codes(logits, labels).argsort(stable=True)
        return logits[order], labels[order], weight[order], group[order]

    def _compact(
        self, logits: Tensor, target: Tensor, weight: Tensor | None = None, group: Tensor | None = None
    ) -> Rows:
        """Return logits, labels, weights and groups of the rows that are not ignored."""
        positions = flatten(logits, target, ignore_index=self._ignore_index)
        if positions.soft:
            raise InputError("expected class ids, got soft labels: calibrators need integer labels")
        rows, labels, valid = positions.logits.detach(), positions.target, positions.valid
        samples = positions.shape[0]
        per_sample = positions.shape.numel() // max(samples, 1)
        spread = (torch.arange(samples, device=rows.device) if group is None else group).repeat_interleave(per_sample)
        if weight is None:
            counts = rows.new_ones(len(rows))
        else:
            refuse(weight_faults(_per_sample("sample_weight", weight, samples)), "sample_weight")
            counts = weight.to(rows).repeat_interleave(per_sample)
            valid = counts > 0 if valid is None else valid & (counts > 0)
        if valid is not None:
            rows, labels, counts, spread = rows[valid], labels[valid], counts[valid], spread[valid]
        if rows.numel():
            low, high = torch.aminmax(rows)
            if not high.isfinite():  # aminmax returns NaN if there is any
                raise InputError("expected finite logits, got NaN or infinity: check the outputs of the model first")
            rows = rows if low.isfinite() else finite(rows)
        return rows, labels, counts, spread


def _per_sample(name: str, values: Tensor, samples: int) -> Tensor:
    if values.shape != (samples,):
        raise InputError(f"expected {name} of shape ({samples},), one number per sample, got {tuple(values.shape)}")
    return values


def sum_over(data: Chunks, term: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Tensor:
    """Return the sum of a term over all chunks, in float64."""
    return torch.as_tensor(sum(term(*chunk).double() for chunk in data))


def finite(logits: Tensor) -> Tensor:
    """Replace -inf (the log of a probability that underflowed) by the log of the smallest positive float32."""
    return torch.where(logits == -torch.inf, logits.amax(1, keepdim=True) + SMALLEST, logits)


def chunks(logits: Tensor, labels: Tensor, weight: Tensor) -> Iterator[Chunk]:
    """Split rows into chunks that fit in the cache."""
    size = max(1, (CHUNK if logits.numel() > CHUNK else SMALL_CHUNK) // logits.shape[1])
    if len(labels):
        yield from zip(*(torch.split(part, size) for part in (logits, labels, weight)), strict=True)


@dataclass(frozen=True)
class Score:
    """How well log-probabilities fit labels: mean NLL, and top-label ECE over 15 equal-width bins ``(lo, hi]``."""

    nll: float
    ece: float


@dataclass(frozen=True, eq=False)
class ScoreTally(Tally):
    """The sums behind a `Score`, and the number of rows of each class."""

    counts: Tensor
    weight: Tensor
    nll: Tensor
    residuals: Tensor
    """The weighted sum of confidence minus hit in each bin."""

    @classmethod
    def of_rows(
        cls, nll: Tensor, confidence: Tensor, hit: Tensor, labels: Tensor, weight: Tensor, n_classes: int
    ) -> ScoreTally:
        """Count rows from one value each per row: the NLL, the confidence, and whether the top class is right."""
        residual = (confidence.double() - hit.double()) * weight
        return cls(
            counts=labels.bincount(minlength=n_classes).cpu(),
            weight=weight.sum(dtype=torch.float64).cpu(),
            nll=(nll * weight).sum(dtype=torch.float64).cpu(),
            residuals=torch.bincount(bin_of(confidence, BINS), residual, minlength=BINS).cpu(),
        )

    @classmethod
    def of_log_probs(cls, log_probs: Tensor, labels: Tensor, weight: Tensor, *, stated: bool = False) -> ScoreTally:
        """Count the predictions of some rows. With ``stated``, class 1 is always the predicted class."""
        top, predicted = (log_probs[:, 1], torch.ones_like(labels)) if stated else log_probs.max(1)
        nll = -log_probs.gather(1, labels[:, None])[:, 0]
        return cls.of_rows(nll, top.exp(), predicted == labels, labels, weight, log_probs.shape[1])

    def score(self) -> Score:
        """Return the means."""
        return Score(float(self.nll / self.weight), float(self.residuals.abs().sum() / self.weight))


def uncalibrated(logits: Tensor) -> Tensor:
    """Return the log-probabilities of the model without calibration."""
    return logits.log_softmax(1)


def tally_scores(
    data: CalibrationSet, transform: Callable[[Tensor], Tensor] = uncalibrated, *, stated: bool
) -> ScoreTally:
    """Measure log-probabilities ``transform(logits)`` chunk by chunk; ``stated`` as in `ScoreTally.of_log_probs`."""
    data.first()  # raises an error if there is no data
    return reduce(add, (ScoreTally.of_log_probs(transform(z), y, weight, stated=stated) for z, y, weight in data))
