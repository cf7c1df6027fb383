"""Blocks: the sums kept apart for groups of samples, from which a bootstrap is one matrix product."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from acls.errors import InputError
from acls.metrics.batch import Batch
from acls.metrics.bins import BINS, bin_of, edges
from acls.metrics.cells import Cells, adaptive_ece, cell_edges, ks_error
from acls.metrics.classwise import binned_probabilities
from acls.metrics.smooth import smooth_ece
from acls.metrics.tally import Tally

BLOCKS = 1024
"""Blocks at most: a standard error estimated from them is itself off by about 1 / √(2 · 1024) = 2 %."""
_COARSE = 256
_SMOOTHED = 200
_CLASSWISE = 1 << 21  # sums that blocks of classwise bins may hold, 16 MB


@dataclass(frozen=True, eq=False)
class Blocks(Tally):
    """The sums of each block of samples; block b has the samples whose unit leaves remainder b.

    A unit is what was drawn independently: the sample, or the image whose pixels belong together. Samples of one unit
    share a block, so resampling blocks keeps what depends on each other together, and costs the same for any n.
    """

    cells: Tensor
    """``(blocks, G, 3)``: counts, confidences and hits in cells of confidence that refine the bins."""
    proper: Tensor | None
    """``(blocks, 3)``: sums of NLL, Brier score, labels among the first five."""
    classwise: Tensor | None
    """``(fewer blocks, K, B)``: probability minus events."""
    bins: int

    @classmethod
    def count(
        cls, batch: Batch, bins: int = BINS, *, unit: Tensor | None = None, first: int = 0, classwise: bool = False
    ) -> Blocks:
        """The sums of one batch; ``unit`` is a number a sample or pixel, by default their places from ``first`` on.

        A place is that of a sample or, when dense, of its map. Models are comparable if counted with the same units.
        """
        top = batch.top
        units = batch.spread(batch.places(first) if unit is None else unit)
        block = units % BLOCKS
        inner = _cell_edges(bins, top.confidence)
        size = inner.shape[0] + 1
        index = block * size + torch.bucketize(top.confidence, inner)
        ones = torch.ones_like(top.confidence)
        cells = torch.stack([_sums(index, part, BLOCKS * size) for part in (ones, top.confidence, top.right)], -1)
        proper = None
        if top.nll is not None and top.brier is not None and top.label_in_five is not None:
            proper = torch.stack([_sums(block, part, BLOCKS) for part in (top.nll, top.brier, top.label_in_five)], 1)
        by_class = _classwise(batch, units, bins) if classwise else None
        return cls(cells.view(BLOCKS, size, 3), proper, by_class, bins)

    def summary(self) -> dict[str, float]:
        """The metrics of all blocks together; those that depend on order from coarse cells, hence only nearly right."""
        return {name: float(value) for name, value in self.totals().metrics().items()} if self.n else {}

    @property
    def n(self) -> int:
        return int(self.cells[..., 0].sum())

    def lower(self) -> Tensor:
        """The least confidence that each cell may hold, in ascending order."""
        inner = _cell_edges(self.bins, self.cells)
        return torch.cat([inner.new_zeros(1), inner.nextafter(inner.new_tensor(2.0))])

    @property
    def used(self) -> int:
        """How many blocks hold samples."""
        return int((self.cells[..., 0].sum(1) > 0).sum())

    def bin_of_cell(self) -> Tensor:
        """The bin that each cell lies in."""
        return _bin_of_cells(self.bins, self.cells)

    def equal_mass_of_cell(self, bins: int) -> Tensor:
        """The bin of near equal mass that each cell goes to: the one that its middle is in."""
        count = self.cells[..., 0].sum(0)
        return ((count.cumsum(0) - count / 2) * (bins / max(self.n, 1))).long().clamp(max=bins - 1)

    def totals(self, weights: Tensor | None = None) -> Totals:
        """The sums with each block counted ``weights`` times, ``(R, blocks)``: R sets of sums, by default one."""
        if weights is None:
            weights = self.cells.new_ones(1, self.cells.shape[0])
        cells = (weights @ self.cells.flatten(1)).view(-1, *self.cells.shape[1:])
        proper = None if self.proper is None else weights @ self.proper
        classwise = None
        if self.classwise is not None:
            # There are fewer of these blocks, each made of every so-manyeth of the others; one weight for all of it.
            fewer = self.classwise.shape[0]
            n = self.cells[..., 0].sum(1).view(-1, fewer).sum(0)
            scale = weights[:, :fewer] @ n
            residual = (weights[:, :fewer] @ self.classwise.flatten(1)).view(-1, *self.classwise.shape[1:])
            classwise = residual * (cells[..., 0].sum(1) / scale.clamp(min=1))[:, None, None]
        return Totals(cells, proper, classwise, self.bins)


@dataclass(frozen=True, eq=False)
class Totals:
    """R sets of sums over blocks; the tensors are those of `Blocks` with R in the blocks' place."""

    cells: Tensor
    proper: Tensor | None
    classwise: Tensor | None
    bins: int

    def metrics(self, *, smooth: bool = True) -> dict[str, Tensor]:
        """The metrics by name, ``(R,)`` each; without SmoothECE, which takes longer than all others, if not wanted."""
        count, confidence, right = self.cells.unbind(-1)
        cells = Cells(count, confidence, right)
        found = cell_metrics(cells, _bin_of_cells(self.bins, count), self.bins, smooth=smooth)
        n = count.sum(-1)
        if self.proper is not None:
            nll, brier, in_five = self.proper.unbind(-1)
            found |= {"nll": nll / n, "brier": brier / n, "top5": in_five / n}
        if self.classwise is not None:
            found["classwise_ece"] = self.classwise.abs().sum((1, 2)) / n / self.classwise.shape[1]
        return found


def cell_metrics(cells: Cells, bin_of_cell: Tensor, bins: int, *, smooth: bool = True) -> dict[str, Tensor]:
    """The metrics of the top label from cells ``(R, G)`` that each lie within one bin.

    SmoothECE, by far the costliest, is there for the first 200 rows only, and only if it is wanted.
    """
    rows = cells.count.shape[0]
    n = cells.n
    index = bin_of_cell.expand_as(cells.count)
    samples, residual = (
        values.new_zeros(rows, bins).scatter_add_(1, index, values) for values in (cells.count, cells.residual)
    )
    gap = residual / samples.clamp(min=1)
    found = {
        "accuracy": cells.right.sum(-1) / n,
        "ece": residual.abs().sum(-1) / n,
        "overconfidence": residual.clamp(min=0).sum(-1) / n,
        "underconfidence": (-residual).clamp(min=0).sum(-1) / n,
        "mce": gap.abs().amax(-1),
        "rmsce": ((samples * gap**2).sum(-1) / n).sqrt(),
        "aece": adaptive_ece(cells, bins)[0],
        "ks": ks_error(cells)[0],
    }
    if smooth:
        few = Cells(*(part[:_SMOOTHED] for part in (cells.count, cells.confidence, cells.right)))
        found["smece"] = smooth_ece(few)[0]
    return found


def _cell_edges(bins: int, like: Tensor) -> Tensor:
    """Inner edges that hold those of the bins, and finer ones towards 0 and 1."""
    coarse = cell_edges(_COARSE, like.device)[0][1:]
    return torch.cat([edges(bins, like)[1:-1], coarse.to(like.dtype)]).sort().values


def _bin_of_cells(bins: int, like: Tensor) -> Tensor:
    inner = _cell_edges(bins, like)
    return bin_of(torch.cat([inner, inner.new_ones(1)]), bins)


def _sums(index: Tensor, values: Tensor, size: int) -> Tensor:
    return torch.bincount(index, weights=values.double(), minlength=size)


def _classwise(batch: Batch, units: Tensor, bins: int) -> Tensor:
    n_classes = batch.scores.shape[1]
    blocks = BLOCKS
    while blocks > 64 and blocks * n_classes * bins > _CLASSWISE:
        blocks //= 2
    size = n_classes * bins
    table = torch.zeros(blocks * size, dtype=torch.float64, device=units.device)
    start = 0
    for part in binned_probabilities(batch, bins):
        block = units[start : start + part.p.shape[0]] % blocks
        start += part.p.shape[0]
        table.view(blocks, size)[:, ::bins].index_add_(0, block, part.p.double())
        # All went to their first bins; those above are moved on.
        place = block[part.row] * size
        table.index_add_(0, place + part.index // bins * bins, -part.above)
        table.index_add_(0, place + part.index, part.above)
        table.index_add_(0, block * size + part.own, -torch.ones_like(part.own, dtype=torch.float64))
    return table.view(blocks, n_classes, bins)


def check_same_units(one: Blocks, other: Blocks) -> None:
    """Raise unless both hold the same number of samples in every block, as they do when the samples are the same."""
    if not torch.equal(one.cells[..., 0].sum(1), other.cells[..., 0].sum(1)):
        raise InputError(
            f"the two models were not counted on the same samples: {one.n} and {other.n}, or other units; "
            "count both over the same rows in the same order"
        )
