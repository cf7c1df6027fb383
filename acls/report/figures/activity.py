"""Regulariser activity, the paper's Figure 3: how often a method's regulariser does anything at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from acls.errors import InputError
from acls.losses import Loss
from acls.report.figures.style import LEGEND, PALETTE, SMALL, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BINS = 20
LARGEST = 0.1
"""Values beyond are shown at it, as the paper does."""
NOTHING = 1e-12
"""A regulariser of at most this is inactive."""


@dataclass(frozen=True)
class Activity:
    """The histogram of a regulariser's values, as shares of the samples."""

    title: str
    edges: list[float]
    shares: list[float]
    inactive: float
    """Share of the samples whose regulariser is 0: it trains them no differently."""
    n: int


def prepare(values: Tensor, title: str = "", *, largest: float = LARGEST, bins: int = BINS) -> Activity:
    """Compute the histogram of the regulariser's values, one per sample; values beyond ``largest`` count as it."""
    values = values.detach().double().flatten()
    if values.numel() == 0 or not bool(torch.isfinite(values).all()):
        raise InputError(f"expected one finite value per sample, got {values.numel()} values that are not all finite")
    index = (values.clamp(0, largest) / largest * bins).long().clamp(max=bins - 1)
    shares = torch.bincount(index, minlength=bins).double() / values.numel()
    return Activity(
        title=title,
        edges=[largest * at / bins for at in range(bins + 1)],
        shares=shares.tolist(),
        inactive=float((values <= NOTHING).double().mean()),
        n=values.numel(),
    )


def penalties(loss: Loss, logits: Tensor, target: Tensor, index: Tensor | None = None) -> Tensor:
    """The regularisers of a loss with ``reduction="none"``, added up: one value a position ``(N, *D)``."""
    parts = loss.terms(logits, target, index)
    total = [value for name, value in parts.items() if name != loss.stack()[-1].data_name]
    if not total:
        raise InputError(f"{loss!r} has no regulariser")
    if any(value.ndim == 0 for value in total):
        raise InputError(
            f'{loss!r} gives no value per sample: pass reduction="none", which a loss of pairs does not have'
        )
    return torch.stack(total).sum(0)


def draw(data: Activity, ax: Axes) -> None:
    """Draw the histogram and say the share of inactive samples."""
    ax.stairs(data.shares, data.edges, fill=True, color=PALETTE[5])
    ax.stairs([data.inactive], data.edges[:2], fill=True, color=PALETTE[1], label=f"0 for {100 * data.inactive:.1f} %")
    ax.set(xlim=(0, data.edges[-1]), ylim=(0, 1), xlabel="regulariser", ylabel="share of samples", title=data.title)
    title = f"n = {data.n:,}"
    ax.legend(loc="upper right", fontsize=SMALL, title=title, title_fontsize=SMALL, alignment="left", **LEGEND)
    ticks = [data.edges[-1] * part / 4 for part in range(5)]
    ax.set_xticks(ticks, [*(f"{tick:g}" for tick in ticks[:-1]), f"≥ {ticks[-1]:g}"])
    tidy(ax)
