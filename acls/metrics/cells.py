"""Samples in ascending order of confidence, as cells, and what is computed from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Cells:
    """Samples in ascending order of confidence, those of one cell taken together; ``(..., G)``, batches first."""

    count: Tensor
    confidence: Tensor
    """The sum over the cell."""
    right: Tensor
    """The hits of the cell."""
    lower: Tensor | None = None
    """The confidences of a cell lie between `lower` and `upper`; both None where all samples of a cell are tied."""
    upper: Tensor | None = None

    @cached_property
    def residual(self) -> Tensor:
        return self.confidence - self.right

    @cached_property
    def reached(self) -> Tensor:
        """The residual of each cell and all below it."""
        return self.residual.cumsum(-1)

    def to(self, device: torch.device | str) -> Cells:
        """The same on another device, without the edges of the cells."""
        return Cells(*(part.to(device) for part in (self.count, self.confidence, self.right)))

    @cached_property
    def n(self) -> Tensor:
        return self.count.sum(-1)


def cell_of(probability: Tensor, cells: int) -> Tensor:
    """The number of the cell of each probability, ascending, by the fourth root of the distance to the nearer end.

    Many cells leave the last one to 1.0 alone, as the next double is 2^-53 below it.
    """
    wide = probability.double()
    half = cells // 2
    index = torch.minimum(wide, 1 - wide).mul_(2).sqrt_().sqrt_().mul_(half).long().clamp_(max=half - 1)
    return torch.where(wide > 0.5, cells - 1 - index, index)


def cell_edges(cells: int, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
    """The least and the largest probability that each cell may hold; they are equal where it is 1.0 alone."""
    half = cells // 2
    rising = (torch.arange(half + 1, dtype=torch.float64, device=device) / half) ** 4 / 2
    edges = torch.cat([rising, 1 - rising[:-1].flip(0)])
    return edges[:-1], edges[1:]


def equal_mass_sums(cells: Cells, bins: int, columns: Sequence[Tensor]) -> tuple[list[Tensor], Tensor, Tensor, Tensor]:
    """Sums of columns over bins of equal mass, ``(..., bins)`` each; then which cells are split, how many of a split
    cell's samples go left, and which share of them.

    Bins' sizes differ by at most one, larger ones first.
    """
    n = cells.n
    step = torch.arange(1, bins, device=n.device)
    size, rest = n // bins, n % bins
    split = step * size[..., None] + torch.minimum(step, rest[..., None])
    held = cells.count.cumsum(-1)
    index = torch.searchsorted(held, split).clamp(max=held.shape[-1] - 1)
    count = cells.count.gather(-1, index)
    taken = (split - (held.gather(-1, index) - count)).clamp(min=0)
    share = taken / count.clamp(min=1)
    sums = []
    for column in columns:
        reached = cells.reached if column is cells.residual else column.cumsum(-1)
        left = reached.gather(-1, index) - column.gather(-1, index) * (1 - share)
        sums.append(torch.cat([torch.zeros_like(n)[..., None], left, reached[..., -1:]], -1).diff(dim=-1))
    return sums, index, taken, share


def adaptive_ece(cells: Cells, bins: int) -> tuple[Tensor, Tensor]:
    """Calibration error over bins of equal mass, Σ_b |Σ confidence - Σ hits| / n, and its error bound.

    The sorted samples are split into B bins whose sizes differ by at most one, larger ones first. Samples with the same
    confidence on both sides of a split share their hits equally between them, so that order does not matter.

    Where a split falls inside a cell of the histogram, the cell's residual is split in proportion. Of its m samples the
    t with the lowest confidence go left; how many hits they have lies between max(0, t - wrong) and min(t, right),
    their confidence between what the cell's edges and its sum allow. The largest deviation e enters the two bins beside
    the split, so the error is at most 2 Σ e / n.
    """
    (gaps,), index, taken, share = equal_mass_sums(cells, bins, (cells.residual,))
    n, count = cells.n, cells.count.gather(-1, index)
    value = gaps.abs().sum(-1) / n
    if cells.lower is None or cells.upper is None:
        return value, torch.zeros_like(value)
    right, confidence = cells.right.gather(-1, index), cells.confidence.gather(-1, index)
    hits = share * right
    most_hits, fewest_hits = torch.minimum(taken, right), (taken - (count - right)).clamp(min=0)
    least = torch.maximum(taken * cells.lower[index], confidence - (count - taken) * cells.upper[index])
    error = torch.maximum(most_hits - hits, hits - fewest_hits) + (share * confidence - least).clamp(min=0)
    # A cell that holds nothing but 1.0, say, is a tie, and sharing it out is exact.
    error = torch.where((taken > 0) & (taken < count) & (cells.upper > cells.lower)[index], error, 0.0)
    return value, 2 * error.sum(-1) / n


def ks_error(cells: Cells) -> tuple[Tensor, Tensor]:
    """The largest |Σ (confidence - hit)| / n over all samples up to some confidence, and its error bound.

    Ties count together (Gupta et al., ICLR 2021). Inside a cell of the histogram the sum can rise by at most the
    confidence of its misses and fall by at most the doubt of its hits.
    """
    n = cells.n
    reached = cells.reached
    value = reached.abs().amax(-1)
    if cells.lower is None or cells.upper is None:
        return value / n, torch.zeros_like(value)
    before = reached - cells.residual
    highest = before + (cells.count - cells.right) * cells.upper
    lowest = before - cells.right * (1 - cells.lower)
    within = torch.maximum(highest.abs(), lowest.abs()).where(cells.upper > cells.lower, 0.0).amax(-1)
    return value / n, (within - value).clamp(min=0) / n
