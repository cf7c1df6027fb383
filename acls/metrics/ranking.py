"""Does confidence rank hits above misses: AUROC and AURC."""

from __future__ import annotations

import torch
from torch import Tensor

from acls.metrics.cells import Cells


def auroc(cells: Cells) -> tuple[Tensor, Tensor]:
    """The probability that a hit has more confidence than a miss, ties counting half, and its error bound.

    NaN without hits or without misses. Inside a cell of the histogram every pair counts half, hence is off by at most
    half.
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
    """Area under the risk-coverage curve, mean over k of the error rate of the k most confident, and its error bound.

    Ties, and in the histogram cells, are taken in expectation over their orders (Geifman et al., ICLR 2019). With E
    errors among the k more confident samples, a cell of m samples with w errors adds
    Σ_{j<=m} (E + j w/m) / (k + j) = (E - k w/m) (H(k+m) - H(k)) + w, with harmonic numbers H. The bound compares with
    the cell's errors all first and all last.
    """
    count, wrong = cells.count.flip(-1), (cells.count - cells.right).flip(-1)
    held, errors = count.cumsum(-1), wrong.cumsum(-1)
    before, errors_before = held - count, errors - wrong
    n = held[..., -1]
    if float(count.max()) <= 1:  # H(k+1) - H(k) = 1 / (k+1)
        value = (errors * count / held.clamp(min=1)).sum(-1) / n
        return value, torch.zeros_like(value)
    harmonic, harmonic_before = torch.digamma(held + 1), torch.digamma(before + 1)
    mean = (errors_before - before * wrong / count.clamp(min=1)) * (harmonic - harmonic_before) + wrong
    if cells.lower is None or cells.upper is None:
        return mean.sum(-1) / n, torch.zeros_like(n)
    after_wrong, after_right = torch.digamma(before + wrong + 1), torch.digamma(held - wrong + 1)
    first = wrong + (errors_before - before) * (after_wrong - harmonic_before) + errors * (harmonic - after_wrong)
    last = (
        errors_before * (after_right - harmonic_before)
        + wrong
        + (errors_before - held + wrong) * (harmonic - after_right)
    )
    spread = torch.maximum(first - mean, mean - last).where((cells.upper > cells.lower).flip(-1), 0.0)
    return mean.sum(-1) / n, spread.clamp(min=0).sum(-1) / n
