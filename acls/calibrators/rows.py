"""The calibration data as rows: checked, flattened, without what is ignored, read in chunks as often as needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from acls.errors import InputError
from acls.hashing import STEP, mix64
from acls.shapes import ONE_CLASS, flatten

CHUNK = 2**18
"""Elements of logits worked on at a time: about a megabyte, so that what one pass makes of them stays in the cache."""
SMALL_CHUNK = 2**15
"""The same where one chunk would be all: so few are worked on by one thread, and nothing waits for another."""

SMALLEST = -103.2789
"""The log of the smallest positive float32."""

Batches = Iterable[tuple[Tensor, ...]]


class Rows:
    """Re-iterable chunks ``(logits (m, K), labels (m,))`` of tensors, or of an iterable of such batches.

    An iterable is read anew in every pass and never held: `hold` gathers it where a method needs all rows at once.
    """

    def __init__(self, logits: Tensor | Batches, target: Tensor | None, *, group: Tensor | None, ignore_index: int):
        self._ignore_index = ignore_index
        self._held: tuple[Tensor, Tensor, Tensor] | None = None
        self._batches: Batches | None = None
        if isinstance(logits, np.ndarray):
            raise InputError("logits came as a NumPy array, but tensors are called for: pass torch.from_numpy(logits)")
        if isinstance(logits, Tensor):
            if target is None:
                raise InputError("target is missing: pass fit(logits, target), or an iterable of (logits, target)")
            self._held = _compact(logits, target, group, ignore_index)
        else:
            if target is not None or group is not None:
                raise InputError(
                    "with an iterable of batches, each batch is (logits, target): pass no target beside it"
                )
            self._batches = logits

    @property
    def held(self) -> bool:
        """Whether all rows are in memory."""
        return self._held is not None

    def check_rereadable(self, name: str) -> None:
        """Raise for a generator, which is spent after the one pass that would not be enough."""
        if self._batches is not None and iter(self._batches) is self._batches:
            raise InputError(
                f"{name} reads its batches several times, but a generator can be read once: "
                "pass a list, a DataLoader, or any other iterable that starts anew"
            )

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        if self._held is not None:
            logits, labels, _ = self._held
            yield from chunks(logits, labels)
            return
        assert self._batches is not None
        for batch in self._batches:
            logits, labels, _ = _compact(batch[0], batch[1], None, self._ignore_index)
            yield from chunks(logits, labels)

    def first(self) -> tuple[Tensor, Tensor]:
        """Return some rows to start from: all that are held, else the first batch that has any."""
        if self._held is not None and len(self._held[1]):
            return self._held[:2]
        for logits, labels in self:
            return logits, labels
        raise InputError(NOTHING_LEFT)

    def hold(self) -> None:
        """Gather the batches of an iterable, where the method needs all rows at once."""
        if self._held is not None:
            return
        assert self._batches is not None
        parts, start = [], 0
        for batch in self._batches:
            logits, labels, group = _compact(batch[0], batch[1], None, self._ignore_index)
            parts.append((logits, labels, group + start))
            start += batch[0].shape[0]
        if not parts:
            raise InputError(NOTHING_LEFT)
        self._held = tuple(torch.cat(column) for column in zip(*parts, strict=True))  # type: ignore[assignment]

    def all(self) -> tuple[Tensor, Tensor]:
        """Return all rows, in an order that depends on their content alone.

        So whatever draws or splits them, draws or splits them the same for any order they came in.
        """
        return self._in_order()[:2]

    def folds(self, n: int) -> Tensor:
        """Assign each row of `all` a fold 0..n-1; the positions of one map, or of one group, stay together."""
        logits, labels, group = self._in_order()
        row_codes = codes(logits, labels)
        _, group = torch.unique(group, return_inverse=True)
        totals = row_codes.new_zeros(int(group.max()) + 1).scatter_add_(0, group, row_codes)
        # Groups are dealt out in the order of their content's code, so that folds have equal sizes.
        rank = totals.argsort(stable=True).argsort(stable=True)
        return (rank % n)[group]

    def sample_folds(self, n: int) -> Tensor:
        """Assign each sample or map, in the order they came, a fold 0..n-1, by its content."""
        assert self._held is not None
        logits, labels, group = self._held
        totals = torch.zeros(int(group.max()) + 1, dtype=torch.int64, device=group.device)
        totals.scatter_add_(0, group, codes(logits, labels))
        return totals.argsort(stable=True).argsort(stable=True) % n

    def _in_order(self) -> tuple[Tensor, Tensor, Tensor]:
        self.hold()
        assert self._held is not None
        logits, labels, group = self._held
        if not len(labels):
            raise InputError(NOTHING_LEFT)
        order = codes(logits, labels).argsort(stable=True)
        return logits[order], labels[order], group[order]


NOTHING_LEFT = "there is nothing to fit to: no batch, or every position of the target is ignore_index"


def sum_over(rows: Iterable[tuple[Tensor, Tensor]], term: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Add up a term of each chunk in float64."""
    total: Any = 0.0
    for logits, labels in rows:
        total = total + term(logits, labels).double()
    return torch.as_tensor(total)


def _compact(logits: Tensor, target: Tensor, group: Tensor | None, ignore_index: int) -> tuple[Tensor, Tensor, Tensor]:
    positions = flatten(logits, target, ignore_index=ignore_index)
    if positions.soft:
        raise InputError("calibrators are fitted to class ids, but the target holds soft labels: pass integers")
    if positions.n_classes < 2:
        raise InputError(ONE_CLASS.format(positions.n_classes))
    if group is None:
        group = torch.arange(logits.shape[0], device=logits.device)
    elif group.shape[:1] != logits.shape[:1] or group.ndim != 1:
        raise InputError(
            f"group has shape {tuple(group.shape)}, but one number a sample is called for: ({len(logits)},)"
        )
    per_sample = positions.shape.numel() // max(logits.shape[0], 1)
    spread = group if per_sample == 1 else group.repeat_interleave(per_sample)
    if positions.valid is not None:
        spread = spread[positions.valid]
        positions = positions.compact()
    return _checked(positions.logits.detach()), positions.target, spread


def _checked(logits: Tensor) -> Tensor:
    if not logits.numel():
        return logits
    low, high = torch.aminmax(logits)
    if not torch.isfinite(high):  # NaN wins every comparison
        raise InputError("logits hold NaN or infinity: look at the model's outputs before calibrating them")
    return logits if torch.isfinite(low) else finite(logits)


def finite(logits: Tensor) -> Tensor:
    """Replace -inf, the log of a probability that float32 could not hold, by the log of the smallest it could."""
    return torch.where(logits == -torch.inf, logits.amax(1, keepdim=True) + SMALLEST, logits)


def chunks(logits: Tensor, labels: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Cut rows into parts that fit the cache."""
    size = max(1, (CHUNK if logits.numel() > CHUNK else SMALL_CHUNK) // logits.shape[1])
    for start in range(0, len(labels), size):
        yield logits[start : start + size], labels[start : start + size]


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
