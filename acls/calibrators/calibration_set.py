"""The calibration data as rows: checked, flattened, without ignored positions, read in chunks once per pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from acls.errors import InputError
from acls.hashing import STEP, mix64
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
        self._batches: Batches = ()
        if isinstance(logits, np.ndarray):
            raise InputError("expected logits as a tensor, got a NumPy array: pass torch.from_numpy(logits)")
        if isinstance(logits, Tensor):
            if target is None:
                raise InputError("target is missing: pass fit(logits, target), or an iterable of (logits, target)")
            self._held = self._compact(logits, target, weight, group)
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
        logits, labels, _, group = self._in_order()
        group = torch.unique(group, return_inverse=True)[1]
        return _dealt(logits, labels, group, n)[group]

    def group_folds(self, n: int) -> Tensor:
        """Assign each of the groups 0, 1, ... a fold 0..n-1, by its content."""
        logits, labels, _, group = self._in_order()
        return _dealt(logits, labels, group, n)

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
        given = torch.arange(samples, device=rows.device) if group is None else _per_sample("group", group, samples)
        spread = given.repeat_interleave(per_sample)
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


def _dealt(logits: Tensor, labels: Tensor, group: Tensor, n: int) -> Tensor:
    """Return a fold for each group: dealt out in the order of the content's code, so that folds have equal sizes."""
    totals = torch.zeros(int(group.max()) + 1, dtype=torch.int64, device=group.device)
    totals.scatter_add_(0, group, codes(logits, labels))
    return totals.argsort(stable=True).argsort(stable=True) % n


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
