"""Metrics that depend on the order of confidences: adaptive ECE, KS, AUROC and AURC, each with its error bound.

The bound is 0 if samples are stored individually. For a histogram it is the largest distance from the exact value.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from acls.metrics.cells import Cells


def equal_mass_sums(cells: Cells, bins: int, columns: Sequence[Tensor]) -> tuple[list[Tensor], Tensor, Tensor, Tensor]:
    """Return the sums of columns over bins of equal mass, and how cells are split between neighbouring bins.

    The sums have shape ``(..., bins)``. The other three values describe each split: the index of the cell that is
    split, the number of its samples in the left bin, and the fraction of its samples in the left bin. The sizes of the
    bins differ by at most one, and larger bins come first. With fractional weights all bins have the same size.
    """
    n = cells.n
    step = torch.arange(1, bins, device=n.device)
    size = n // bins if cells.integral else n / bins
    split = step * size[..., None] + torch.minimum(step, (n - bins * size)[..., None])
    held = cells.count.cumsum(-1)
    index = torch.searchsorted(held, split).clamp(max=held.shape[-1] - 1)
    count = cells.count.gather(-1, index)
    taken = (split - (held.gather(-1, index) - count)).clamp(min=0)
    share = taken / count.clamp(min=1e-300)
    sums = []
    for column in columns:
        reached = cells.reached if column is cells.residual else column.cumsum(-1)
        left = reached.gather(-1, index) - column.gather(-1, index) * (1 - share)
        sums.append(torch.cat([torch.zeros_like(n)[..., None], left, reached[..., -1:]], -1).diff(dim=-1))
    return sums, index, taken, share


def adaptive_ece(cells: Cells, bins: int) -> tuple[Tensor, Tensor]:
    """Return the calibration error over bins of equal mass, Σ_b |Σ confidence - Σ hits| / n, and its error bound.

    The sorted samples are split into B bins whose sizes differ by at most one, with larger bins first. If samples on
    both sides of a split have the same confidence, they share their hits equally, so their order does not matter.

    If a split falls inside a cell of the histogram, the residual of the cell is split in proportion. The exact left bin
    has the t samples with the lowest confidence among the m samples of the cell. They have between max(0, t - wrong)
    and min(t, right) hits. The edges of the cell and its sum limit their confidence. The largest deviation e affects
    the two bins next to the split, so the error is at most 2 Σ e / n.
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
    # If all samples of a cell are tied, as in the cell that contains only 1.0, the split in proportion is exact.
    error = torch.where((taken > 0) & (taken < count) & (cells.upper > cells.lower)[index], error, 0.0)
    return value, 2 * error.sum(-1) / n


def ks_error(cells: Cells) -> tuple[Tensor, Tensor]:
    """Return the largest |Σ (confidence - hit)| / n over all samples up to any confidence, and its error bound.

    Ties count together (Gupta et al., ICLR 2021). Inside a cell of the histogram, the sum can rise by at most the
    confidence of its misses, and fall by at most the sum of 1 - confidence of its hits.
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


def auroc(cells: Cells) -> tuple[Tensor, Tensor]:
    """Return the probability that a hit has more confidence than a miss (ties count half), and its error bound.

    It is NaN without hits or without misses. Inside a cell of the histogram every pair counts half, so the error of
    a pair is at most half.
    """
    wrong = cells.count - cells.right
    below = wrong.cumsum(-1) - wrong
    pairs = cells.right.sum(-1) * wrong.sum(-1)
    value = (cells.right * (below + wrong / 2)).sum(-1) / pairs
    if cells.lower is None or cells.upper is None:
        return value, torch.zeros_like(value)
    unsure = (cells.right * wrong / 2).where(cells.upper > cells.lower, 0.0)
    return value, unsure.sum(-1) / pairs


def aurc(cells: Cells) -> tuple[Tensor, Tensor]:
    """Return the area under the risk-coverage curve and its error bound.

    The area is the mean over k of the error rate of the k most confident samples (Geifman et al., ICLR 2019). For ties,
    and for the samples of one cell of the histogram, it is the expectation over all their orders. If the k more
    confident samples have E errors, a cell of m samples with w errors adds
    Σ_{j<=m} (E + j w/m) / (k + j) = (E - k w/m) (H(k+m) - H(k)) + w, where H are the harmonic numbers. With fractional
    weights an integral replaces the sum, and logarithms replace H. The bound compares this with the two extreme orders:
    all errors of the cell first, and all errors last.
    """
    count, wrong = cells.count.flip(-1), (cells.count - cells.right).flip(-1)
    held, errors = count.cumsum(-1), wrong.cumsum(-1)
    before, errors_before = held - count, errors - wrong
    n = held[..., -1]
    if cells.integral and float(count.max()) <= 1:  # H(k+1) - H(k) = 1 / (k+1)
        value = (errors * count / held.clamp(min=1)).sum(-1) / n
        return value, torch.zeros_like(value)

    def number(k: Tensor) -> Tensor:
        return torch.digamma(k + 1) if cells.integral else k.clamp(min=1e-300).log()

    harmonic, harmonic_before = number(held), number(before)
    mean = (errors_before - before * wrong / count.clamp(min=1e-300)) * (harmonic - harmonic_before) + wrong
    if cells.lower is None or cells.upper is None:
        return mean.sum(-1) / n, torch.zeros_like(n)
    after_wrong, after_right = number(before + wrong), number(held - wrong)
    first = wrong + (errors_before - before) * (after_wrong - harmonic_before) + errors * (harmonic - after_wrong)
    last = errors_before * (after_right - harmonic_before) + wrong
    last += (errors_before - held + wrong) * (harmonic - after_right)
    spread = torch.maximum(first - mean, mean - last).where((cells.upper > cells.lower).flip(-1), 0.0)
    return mean.sum(-1) / n, spread.clamp(min=0).sum(-1) / n
