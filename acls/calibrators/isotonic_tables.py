"""Maps of a probability given by tables: pool-adjacent-violators, piecewise linear and constant lookup."""

from __future__ import annotations

import torch
from torch import Tensor


def pool_adjacent_violators(x: Tensor, hits: Tensor, weight: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return knots (x, y) of the non-decreasing function of x with the least (weighted) squared distance to hits.

    Equal x are one point. The knots are the two ends of each block of constant value, so that between knots one
    interpolates. Every round pools each maximal run of falling blocks, whose mean no order of pooling could avoid.

    >>> x, y = pool_adjacent_violators(torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.tensor([0.0, 1.0, 0.0, 1.0]))
    >>> y.tolist()
    [0.0, 0.5, 0.5, 1.0]
    """
    points, index = torch.unique(x, return_inverse=True)
    counts = torch.ones_like(x, dtype=torch.float64) if weight is None else weight.double()
    weight = torch.zeros(len(points), dtype=torch.float64, device=x.device).index_add_(0, index, counts)
    total = torch.zeros_like(weight).index_add_(0, index, hits.double() * counts)
    first = last = torch.arange(len(points), device=x.device)
    while True:
        mean = total / weight
        starts = torch.cat([torch.ones(1, dtype=torch.bool, device=x.device), mean[1:] > mean[:-1]])
        if starts.all():
            break
        block = starts.cumsum(0) - 1
        n = int(block[-1]) + 1
        weight = torch.zeros(n, dtype=torch.float64, device=x.device).index_add_(0, block, weight)
        total = torch.zeros_like(weight).index_add_(0, block, total)
        ends = torch.cat([starts[1:], torch.ones(1, dtype=torch.bool, device=x.device)])
        first, last = first[starts], last[ends]
    x_knots = torch.stack([points[first], points[last]], dim=1).flatten()
    y_knots = mean.repeat_interleave(2)
    keep = torch.cat([torch.ones(1, dtype=torch.bool, device=x.device), x_knots[1:] > x_knots[:-1]])
    return x_knots[keep], y_knots[keep]


def stack_tables(tables: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Stack tables (x, y) of different lengths; the shorter are filled up with their last knot."""
    longest = max(len(x) for x, _ in tables)

    def fill(values: Tensor) -> Tensor:
        return torch.cat([values, values[-1:].expand(longest - len(values))])

    return torch.stack([fill(x) for x, _ in tables]), torch.stack([fill(y) for _, y in tables])


def place(edges: Tensor, values: Tensor) -> Tensor:
    """Return how many of the sorted edges (P, L) are below each of the values (P, M)."""
    if not torch.compiler.is_compiling():
        return torch.searchsorted(edges, values)
    # ONNX has no search: add the powers of two from the largest down, as long as the edge there is below.
    length = edges.shape[1]
    found = torch.zeros_like(values, dtype=torch.int64)
    for step in (2**power for power in reversed(range(length.bit_length()))):
        further = found + step
        edge = edges.gather(1, (further - 1).clamp(max=length - 1))
        found = torch.where((further <= length) & (edge < values), further, found)
    return found


def interpolate(values: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Look values (M, P) up in P piecewise linear tables x, y (P, L); beyond the ends the map is constant."""
    columns = values.T.contiguous()
    right = place(x, columns).clamp(1, max(x.shape[1] - 1, 1)).clamp(max=x.shape[1] - 1)
    left = (right - 1).clamp(min=0)
    x_left, x_right = x.gather(1, left), x.gather(1, right)
    share = ((columns - x_left) / (x_right - x_left).clamp(min=torch.finfo(x.dtype).tiny)).clamp(0, 1)
    return torch.lerp(y.gather(1, left), y.gather(1, right), share).T


def keep_top(log_probs: Tensor, logits: Tensor) -> Tensor:
    """Make the class with the highest logit the strict winner where a table tied it with another."""
    top = logits.argmax(1, keepdim=True)
    best = log_probs.amax(1, keepdim=True)
    others = log_probs.scatter(1, top, -torch.inf).amax(1, keepdim=True)
    lifted = torch.where(log_probs.gather(1, top) > others, best, best * (1 - 1e-6))
    return log_probs.scatter(1, top, lifted)
