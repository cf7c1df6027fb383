"""The calibration data as rows: checked, flattened, without ignored positions, read in chunks once per pass.

And NLL and ECE before and after a calibrator, added up chunk by chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from acls.errors import InputError
from acls.hashing import STEP, mix64
from acls.metrics.bins import BINS, bin_of
from acls.shapes import flatten

CHUNK = 2**18
"""Elements of logits worked on at a time: about a megabyte, so that what one pass makes of them stays in the cache."""
SMALL_CHUNK = 2**15
"""The same where one chunk would be all: so few are worked on by one thread, and nothing waits for another."""

SMALLEST = -103.2789
"""The log of the smallest positive float32."""

Batches = Iterable[tuple[Tensor, ...]]
Chunk = tuple[Tensor, Tensor, Tensor]
"""Logits ``(m, K)``, labels ``(m,)`` and weights ``(m,)`` in the dtype of the logits."""
Chunks = Iterable[Chunk]


@dataclass(frozen=True)
class Passes:
    """Chunks that are made anew in each pass."""

    make: Callable[[], Iterator[Chunk]]

    def __iter__(self) -> Iterator[Chunk]:
        return self.make()


class CalibrationSet:
    """Re-iterable chunks of tensors, or of an iterable of batches ``(logits, target)`` or ``(logits, target, weight)``.

    An iterable is read once per pass and never held: `hold` gathers it where a method needs all rows at once. A
    row of weight w counts as w equal rows; without weights each is 1, and rows of weight 0 are left out.
    """

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
        self._held: tuple[Tensor, Tensor, Tensor, Tensor] | None = None
        self._groups = torch.zeros(1, dtype=torch.int64)
        self._batches: Batches = ()
        if isinstance(logits, np.ndarray):
            raise InputError("expected logits as a tensor, got a NumPy array: pass torch.from_numpy(logits)")
        if isinstance(logits, Tensor):
            if target is None:
                raise InputError("target is missing: pass fit(logits, target), or an iterable of (logits, target)")
            if group is None:
                self._groups = torch.arange(len(logits), device=logits.device)
            else:
                self._groups = torch.unique(_per_sample("group", group, len(logits)), return_inverse=True)[1]
            self._held = self._compact(logits, target, weight, self._groups)
        elif any(given is not None for given in (target, weight, group)):
            raise InputError(
                "expected an iterable of batches (logits, target) or (logits, target, sample_weight) alone, got a "
                "target, weights or groups beside it"
            )
        else:
            self._batches = logits

    @property
    def held(self) -> bool:
        """Whether all rows are in memory."""
        return self._held is not None

    def check_rereadable(self, name: str) -> None:
        """Raise for a generator, which can be read only once."""
        if self._held is None and iter(self._batches) is self._batches:
            raise InputError(
                f"{name} reads its batches several times, but a generator can be read once: "
                "pass a list, a DataLoader, or any other iterable that can be read again"
            )

    def __iter__(self) -> Iterator[Chunk]:
        for part in (self._compact(*batch) for batch in self._batches) if self._held is None else [self._held]:
            yield from chunks(*part[:3])

    def first(self) -> Chunk:
        """Return some rows to start from: all that are held, else the first chunk."""
        found = self._held[:3] if self._held is not None else next(iter(self), None)
        if found is None or not len(found[1]):
            raise InputError(NOTHING_LEFT)
        return found

    def total(self) -> float:
        """Return the sum of the weights: without weights, the number of rows."""
        return float(sum_over(self, lambda _logits, _labels, weight: weight.sum(dtype=torch.float64)))

    def hold(self) -> None:
        """Gather the batches of an iterable, where the method needs all rows at once."""
        if self._held is not None:
            return
        parts, start = [], 0
        for batch in self._batches:
            *columns, group = self._compact(*batch)
            parts.append((*columns, group + start))
            start += batch[0].shape[0]
        if not parts:
            raise InputError(NOTHING_LEFT)
        self._held = tuple(torch.cat(column) for column in zip(*parts, strict=True))  # type: ignore[assignment]

    def all(self) -> Chunk:
        """Return all rows, in an order that depends on their content alone.

        Random draws and folds of them therefore do not depend on the order in which they were given.
        """
        return self._in_order()[:3]

    def folds(self, n: int) -> Tensor:
        """Assign each row of `all` a fold 0..n-1; the positions of one map, or of one group, stay together."""
        return self._group_folds(n)[self._in_order()[3]]

    def sample_folds(self, n: int) -> Tensor:
        """Assign each sample, as it was given, a fold 0..n-1; samples of one group stay together."""
        return self._group_folds(n)[self._groups]

    def _group_folds(self, n: int) -> Tensor:
        """Deal folds out to groups by the code of their content, so that they have equal sizes; empty groups last."""
        self.hold()
        self.first()
        assert self._held is not None
        logits, labels, _, group = self._held
        totals = torch.full((int(max(group.max(), self._groups.max())) + 1,), 2**63 - 1, device=group.device)
        totals[group] = 0
        totals.scatter_add_(0, group, codes(logits, labels))
        return totals.argsort(stable=True).argsort(stable=True) % n

    def _in_order(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        self.hold()
        assert self._held is not None
        logits, labels, weight, group = self._held
        if not len(labels):
            raise InputError(NOTHING_LEFT)
        order = codes(logits, labels).argsort(stable=True)
        return logits[order], labels[order], weight[order], group[order]

    def _compact(
        self, logits: Tensor, target: Tensor, weight: Tensor | None = None, group: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return logits, labels, weights and groups of the rows that count."""
        positions = flatten(logits, target, ignore_index=self._ignore_index)
        if positions.soft:
            raise InputError("expected class ids, got soft labels: calibrators are fitted to integers")
        rows, labels, valid = positions.logits.detach(), positions.target, positions.valid
        samples = positions.shape[0]
        per_sample = positions.shape.numel() // max(samples, 1)
        spread = (torch.arange(samples, device=rows.device) if group is None else group).repeat_interleave(per_sample)
        if weight is None:
            counts = rows.new_ones(len(rows))
        else:
            checked = _checked_weight(_per_sample("sample_weight", weight, samples))
            counts = checked.to(rows).repeat_interleave(per_sample)
            valid = counts > 0 if valid is None else valid & (counts > 0)
        if valid is not None:
            rows, labels, counts, spread = rows[valid], labels[valid], counts[valid], spread[valid]
        return _checked(rows), labels, counts, spread


NOTHING_LEFT = "there is nothing to fit to: no batch, or every position has weight 0 or the label ignore_index"


def sum_over(data: Chunks, term: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Tensor:
    """Add up a term of each chunk in float64."""
    total: Any = 0.0
    for chunk in data:
        total = total + term(*chunk).double()
    return torch.as_tensor(total)


def _per_sample(name: str, values: Tensor, samples: int) -> Tensor:
    if values.shape != (samples,):
        raise InputError(f"expected {name} of shape ({samples},), a number per sample, got {tuple(values.shape)}")
    return values


def _checked_weight(weight: Tensor) -> Tensor:
    if not bool(((weight >= 0) & weight.isfinite()).all()):
        wrong = weight[~((weight >= 0) & weight.isfinite())]
        raise InputError(f"expected sample_weight of finite numbers, 0 or more, got {float(wrong[0]):g}")
    return weight


def _checked(logits: Tensor) -> Tensor:
    if not logits.numel():
        return logits
    low, high = torch.aminmax(logits)
    if not torch.isfinite(high):  # NaN wins every comparison
        raise InputError("expected finite logits, got NaN or infinity: check the outputs of the model first")
    return logits if torch.isfinite(low) else finite(logits)


def finite(logits: Tensor) -> Tensor:
    """Replace -inf, the log of a probability that float32 could not hold, by the log of the smallest it could."""
    return torch.where(logits == -torch.inf, logits.amax(1, keepdim=True) + SMALLEST, logits)


def chunks(logits: Tensor, labels: Tensor, weight: Tensor) -> Iterator[Chunk]:
    """Cut rows into parts that fit the cache."""
    size = max(1, (CHUNK if logits.numel() > CHUNK else SMALL_CHUNK) // logits.shape[1])
    for start in range(0, len(labels), size):
        own = slice(start, start + size)
        yield logits[own], labels[own], weight[own]


def codes(logits: Tensor, labels: Tensor) -> Tensor:
    """Return an int64 for each row that depends on its bits alone; integer sums are exact, whatever their order."""
    bits = logits.contiguous().view(torch.int64 if logits.dtype == torch.float64 else torch.int32)
    columns = torch.arange(1, logits.shape[1] + 1, device=logits.device) * STEP | 1
    mixed = labels * STEP
    size = max(1, CHUNK // logits.shape[1])
    for start in range(0, len(labels), size):
        part = bits[start : start + size].long() * columns
        mixed[start : start + size] += (part ^ (part >> 29)).sum(1)
    return mix64(mixed)


@dataclass(frozen=True)
class Score:
    """How well log-probabilities fit labels: mean NLL, and top-label ECE over 15 equal-width bins ``(lo, hi]``."""

    nll: float
    ece: float


class ScoreTally:
    """The sums behind a `Score`, and the number of rows of each class."""

    def __init__(self, n_classes: int) -> None:
        self.counts = torch.zeros(n_classes, dtype=torch.int64)
        self._weight = self._nll = 0.0
        self._residuals = torch.zeros(BINS, dtype=torch.float64)
        """Of each bin, the weighted sum of confidence minus hit."""

    def add(self, nll: Tensor, confidence: Tensor, hit: Tensor, labels: Tensor, weight: Tensor) -> None:
        """Add some rows: the NLL, the confidence and whether the top class is right, one of each per row."""
        residual = (confidence.double() - hit.double()) * weight
        self.counts += labels.bincount(minlength=len(self.counts)).cpu()
        self._weight += float(weight.sum(dtype=torch.float64))
        self._nll += float((nll * weight).sum(dtype=torch.float64))
        self._residuals += torch.bincount(bin_of(confidence, BINS), residual, minlength=BINS).cpu()

    def add_log_probs(self, log_probs: Tensor, labels: Tensor, weight: Tensor, *, stated: bool = False) -> None:
        """Add the predictions of some rows; ``stated``: class 1 is always predicted."""
        top, predicted = (log_probs[:, 1], torch.ones_like(labels)) if stated else log_probs.max(1)
        self.add(-log_probs.gather(1, labels[:, None])[:, 0], top.exp(), predicted == labels, labels, weight)

    def __add__(self, other: ScoreTally) -> ScoreTally:
        both = ScoreTally(len(self.counts))
        for name, own in vars(self).items():
            setattr(both, name, own + getattr(other, name))
        return both

    def score(self) -> Score:
        """Return the means."""
        return Score(self._nll / self._weight, float(self._residuals.abs().sum()) / self._weight)


def uncalibrated(logits: Tensor) -> Tensor:
    """Return the log-probabilities of the model as it is."""
    return logits.log_softmax(1)


def tally_scores(data: Chunks, transform: Callable[[Tensor], Tensor], *, stated: bool = False) -> ScoreTally:
    """Measure log-probabilities ``transform(logits)`` chunk by chunk; ``stated`` as in `ScoreTally.add_log_probs`."""
    tally: ScoreTally | None = None
    for logits, labels, weight in data:
        tally = tally or ScoreTally(logits.shape[1])
        tally.add_log_probs(transform(logits), labels, weight, stated=stated)
    if tally is None:
        raise InputError(NOTHING_LEFT)
    return tally
