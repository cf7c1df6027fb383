"""Data for metrics that depend on the order of confidences: exact for small sets, a histogram for larger sets.

`Confidences` stores up to `EXACT` pairs (confidence, hit). Beyond that it stores a histogram of `CELLS` cells with
exact counts and exact sums per cell. The cells have equal width in the fourth root of the distance to the nearer end of
[0, 1], so they are finest near 1, where most confidences are. Only the number of samples determines which of the two is
used, so the result does not depend on the split into batches or processes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn.functional import pad

from acls.distributed import all_gather, all_reduce, world
from acls.metrics.batch import Batch
from acls.metrics.bins import BINS, Reliability
from acls.metrics.cells import Cells, cell_edges, cell_of
from acls.metrics.ordered import adaptive_ece, aurc, auroc, ks_error
from acls.metrics.smooth import smooth_ece
from acls.metrics.tally import Tally

EXACT = 1 << 20
"""The largest number of values that are stored individually, at 4 or 8 bytes each."""
CELLS = 1 << 17
"""The number of cells of the histogram, at 24 bytes each, divided among the columns."""
_AT_ONCE = 1 << 16


@dataclass(frozen=True, eq=False)
class PairTally(Tally):
    """Columns of (probability, event) pairs: stored individually up to `EXACT`, as a histogram beyond."""

    parts: tuple[Tensor, ...]
    """``(n, columns)`` each. A probability has a minus sign if its event did not happen (so -0.0 exists). With weights
    there is one more column, the weight of the row."""
    columns: int
    weighted: bool = False
    table: Tensor | None = None
    """``(3, columns, cells)`` float64: counts (exact up to 2^53), sums of probabilities, events."""
    in_table: int = 0
    """The number of rows in the table, without those in `parts`."""

    @classmethod
    def keep(cls, signed: Tensor, weight: Tensor | None = None, **settings: Any) -> Self:
        """Return the pairs of one batch."""
        columns = signed.shape[1]
        if weight is not None:
            signed = torch.cat([signed.double(), weight.double()[:, None]], 1)
        return cls((signed,), columns, weight is not None, **settings)._settle()

    @property
    def rows(self) -> int:
        return self.in_table + sum(part.shape[0] for part in self.parts)

    @property
    def cells_per_column(self) -> int:
        return max(2, CELLS // self.columns // 2 * 2)

    def __add__(self, other: Tally) -> Self:
        if type(other) is not type(self):
            return NotImplemented
        self._agree(other, except_for=("parts", "table", "in_table"))
        both = dataclasses.replace(self, parts=_join(self.parts + other.parts), in_table=self.in_table + other.in_table)
        if other.table is not None:
            both = dataclasses.replace(both, table=other.table if self.table is None else self.table + other.table)
        return both._settle()

    def all_reduce(self) -> Self:
        if world() == 1:
            return self
        mine = torch.tensor([self.rows, self.table is not None], device=self._device())
        total, tables = all_reduce(mine).tolist()
        if tables == 0 and total * self.columns <= EXACT:
            return dataclasses.replace(self, parts=(all_gather(self._pairs().double()),))
        return dataclasses.replace(self, parts=(), table=all_reduce(self.histogram()), in_table=total)

    def to(self, device: torch.device | str) -> Self:
        table = None if self.table is None else self.table.to(device)
        return dataclasses.replace(self, parts=tuple(part.to(device) for part in self.parts), table=table)

    def tensors(self) -> dict[str, Tensor]:
        if self.table is None:
            return {"parts": self._pairs()}
        table = self.histogram()
        filled = table[0].flatten().nonzero()[:, 0]
        return {"cells": filled, "sums": table.flatten(1)[:, filled]}

    def settings(self) -> dict[str, Any]:
        own = {name: value for name, value in self._values().items() if name not in ("parts", "table", "in_table")}
        return {**own, "in_table": 0 if self.table is None else self.rows, "cells": self.cells_per_column}

    @classmethod
    def restore(cls, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Self:
        own = dict(settings)
        columns, cells = own["columns"], own.pop("cells")
        if "parts" in tensors:
            return cls(parts=(tensors["parts"],), **own)
        table = tensors["sums"].new_zeros(3, columns * cells)
        table[:, tensors["cells"]] = tensors["sums"]
        return cls(parts=(), table=table.view(3, columns, cells), **own)

    def histogram(self) -> Tensor:
        """Return all data as an additive table ``(3, columns, cells)``: counts, sums of probabilities, events."""
        table = self._folded().table
        assert table is not None
        return table

    @classmethod
    def of_histogram(cls, table: Tensor) -> Self:
        """Build from the output of `histogram`. Pairs that were stored individually are then in cells."""
        return cls((), table.shape[1], table=table, in_table=int(table[0, 0].sum()))

    def cells(self) -> Cells:
        """Return the samples in order. Pairs that are stored individually get one cell each; ties share hits equally.

        Fractional weights are scaled to a mean of 1, so that only their ratios matter.
        """
        if self.table is None:
            pairs = self._pairs()
            signed, weight = pairs[:, : self.columns].T.contiguous(), pairs[:, self.columns :].T
            cells = _sorted_cells(signed, weight if self.weighted else None)
        else:
            table = self.histogram()
            used = (table[0] > 0).any(0)  # skip the cells that no column uses, to save time
            count, probability, event = table[..., used]
            lower, upper = (edge[used] for edge in cell_edges(self.cells_per_column, table.device))
            cells = Cells(count, probability, event, lower, upper)
        if not self.weighted or cells.integral:
            return cells
        scale = self.rows / float(cells.n[0])
        return dataclasses.replace(cells.map(lambda part: scale * part), lower=cells.lower, upper=cells.upper)

    def _pairs(self) -> Tensor:
        if len(self.parts) == 1:
            return self.parts[0]
        return torch.cat(self.parts) if self.parts else torch.empty(0, self.columns + self.weighted).to(self._device())

    def _device(self) -> torch.device:
        holders = (*self.parts, self.table)
        return next((tensor.device for tensor in holders if tensor is not None), torch.device("cpu"))

    def _settle(self) -> Self:
        """Move pairs to the histogram if there are too many. Moves are few and large: each one touches every cell."""
        waiting = (self.rows - self.in_table) * self.columns
        return self._folded() if waiting > EXACT else self

    def _folded(self) -> Self:
        """Return the same data with all pairs in the histogram."""
        if not self.parts and self.table is not None:
            return self
        table = _histogram(self._pairs(), self.columns, self.cells_per_column)
        if self.table is not None:
            table += self.table
        return dataclasses.replace(self, parts=(), table=table, in_table=self.rows)


@dataclass(frozen=True, eq=False)
class Confidences(PairTally):
    """The confidence of every sample and whether it was right, for equal-mass bins, KS, SmoothECE and AURC."""

    @classmethod
    def count(cls, batch: Batch) -> Confidences:
        top = batch.top
        return cls.keep(torch.where(top.right, top.confidence, -top.confidence)[:, None], batch.weight)

    @property
    def n(self) -> float:
        """The number of samples (an int), or the sum of their weights."""
        return float(self.cells().n[0]) if self.weighted else self.rows

    def reliability(self, bins: int = BINS) -> Reliability:
        """Return the rows of a reliability diagram with bins of equal mass. The middle of a cell determines its bin."""
        cells = self.cells()
        index, mean = cells.equal_mass(bins)[0], cells.mean[0]
        sums = cells[0].binned(index, bins)
        held = sums.count.long() if cells.integral else sums.count
        upper = torch.zeros_like(sums.count).scatter_reduce(0, index, mean, "amax").cummax(0).values
        lower = torch.cat([mean[:1], upper[:-1]])
        return Reliability(lower, upper, held, sums.confidence / sums.count, sums.right / sums.count)

    def summary(self, bins: int = BINS) -> dict[str, float]:
        """Return adaptive ECE, KS, SmoothECE, AUROC and AURC, each followed by its error bound."""
        if self.rows == 0:
            return {}
        cells = self.cells()
        smooth, _, smooth_bound = smooth_ece(cells)
        found = {
            "aece": adaptive_ece(cells, bins),
            "ks": ks_error(cells),
            "smece": (smooth, smooth_bound),
            "auroc": auroc(cells),
            "aurc": aurc(cells),
        }
        result: dict[str, float] = {}
        for name, (value, bound) in found.items():
            result[name], result[f"{name}_bound"] = float(value), float(bound)
        return result


def _sorted_cells(signed: Tensor, weight: Tensor | None) -> Cells:
    """Return one cell per pair, in ascending order. Ties share their hits equally."""
    happened = ~torch.signbit(signed)
    if weight is not None or signed.device.type != "cpu":
        probability, order = signed.abs().double().sort(-1)
        right = happened.double().gather(-1, order)
        count = torch.ones_like(right) if weight is None else weight.expand_as(signed).gather(-1, order)
    else:
        # Positive floats have the same order as their bits, and the two highest bits of floats up to 1 are free. One of
        # them makes room for the event, so a single sort of integers also moves the events. numpy sorts integers many
        # times faster than torch.
        keys = signed.abs().double().view(torch.int64) * 2 + happened
        keys.numpy().sort(-1)
        probability, right = (keys >> 1).view(torch.float64), (keys & 1).double()
        count = torch.ones_like(right)
    tied = probability[..., 1:] == probability[..., :-1]
    if bool(tied.any()):
        fresh = pad(~tied, (1, 0), value=True)
        group = fresh.flatten().cumsum(0) - 1
        hits, held = (torch.bincount(group, weights=part.flatten()) for part in (count * right, count))
        right = (hits / held.clamp(min=1e-300))[group].view_as(right)
    return Cells(count, count * probability, count * right)


def _histogram(pairs: Tensor, columns: int, cells: int) -> Tensor:
    """Return counts, sums of probabilities and events per column and cell, computed in pieces that fit in the cache."""
    table = torch.zeros(3, columns * cells, dtype=torch.float64, device=pairs.device)
    first = torch.arange(columns, device=pairs.device) * cells
    step = max(1, _AT_ONCE // columns) if pairs.device.type == "cpu" else max(1, pairs.shape[0])
    for part in torch.split(pairs, step):
        signed, weight = part[:, :columns], part[:, columns:]
        probability = signed.abs().double()
        index = (cell_of(probability, cells) + first).flatten()
        values = (torch.ones_like(probability), probability, ~torch.signbit(signed))
        for total, value in zip(table, values, strict=True):
            value = value * weight if weight.shape[1] else value.double()
            total.index_add_(0, index, value.flatten())
    return table.view(3, columns, cells)


def _join(parts: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Concatenate the last parts while they have similar sizes, so that n small parts cost n log n copies, not n²."""
    kept = list(parts)
    while len(kept) > 1 and kept[-2].shape[0] <= 2 * kept[-1].shape[0]:
        last = kept.pop()
        kept[-1] = torch.cat([kept[-1], last])
    return tuple(kept)
