"""Samples in ascending order of confidence, grouped into cells."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Cells:
    """Samples in ascending order of confidence, grouped into G cells. Sums per cell have the shape ``(..., G)``."""

    count: Tensor
    confidence: Tensor
    """The sum of the confidences in each cell."""
    right: Tensor
    """The number of hits in each cell."""
    lower: Tensor | None = None
    """The confidences of a cell lie between `lower` and `upper`. Both are None if all samples of a cell are tied."""
    upper: Tensor | None = None

    @cached_property
    def residual(self) -> Tensor:
        return self.confidence - self.right

    @cached_property
    def mean(self) -> Tensor:
        """The mean confidence of each cell; 0 if the cell is empty."""
        return (self.confidence / self.count.clamp(min=1e-300)).clamp(0, 1)

    @cached_property
    def integral(self) -> bool:
        """Whether the counts are whole numbers of samples. If not, they are sums of weights."""
        return bool((self.count == self.count.round()).all())

    def equal_mass(self, bins: int) -> Tensor:
        """Return the bin of nearly equal mass for each cell. The middle of a cell determines the bin of the cell."""
        middle = (self.count.cumsum(-1) - self.count / 2) / self.n[..., None].clamp(min=1e-300)
        return (middle * bins).long().clamp(max=bins - 1)

    @cached_property
    def reached(self) -> Tensor:
        """The sum of the residuals of each cell and all cells below it."""
        return self.residual.cumsum(-1)

    def map(self, function: Callable[[Tensor], Tensor]) -> Cells:
        """Return cells with a function applied to counts, confidences and hits, without the edges."""
        return Cells(*(function(part) for part in (self.count, self.confidence, self.right)))

    def __getitem__(self, index: Any) -> Cells:
        """Return some sets or some cells, indexed like a tensor ``(..., G)``, without the edges."""
        return self.map(lambda part: part[index])

    def binned(self, index: Tensor, bins: int) -> Cells:
        """Return the sums over bins, where ``index`` ``(G,)`` is the bin of each cell."""
        return self.map(lambda part: part.new_zeros(*part.shape[:-1], bins).index_add_(-1, index, part))

    @cached_property
    def n(self) -> Tensor:
        return self.count.sum(-1)


def cell_of(probability: Tensor, cells: int) -> Tensor:
    """Return the index of the cell that contains each probability. Cells are in ascending order.

    They have equal width in the fourth root of the distance to the nearer end of [0, 1]. If there are many cells, the
    last one contains only 1.0, because the next double is 2^-53 below it.
    """
    wide = probability.double()
    half = cells // 2
    index = torch.minimum(wide, 1 - wide).mul_(2).sqrt_().sqrt_().mul_(half).long().clamp_(max=half - 1)
    return torch.where(wide > 0.5, cells - 1 - index, index)


def cell_edges(cells: int, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
    """Return the smallest and the largest probability of each cell. They are equal if it can only contain 1.0."""
    half = cells // 2
    rising = (torch.arange(half + 1, dtype=torch.float64, device=device) / half) ** 4 / 2
    edges = torch.cat([rising, 1 - rising[:-1].flip(0)])
    return edges[:-1], edges[1:]
