"""Isotonic regression, histogram binning and splines: maps of a probability that are stored as tables."""

from __future__ import annotations

from dataclasses import field, replace

import torch
from torch import Tensor

from acls.calibrators.base import Calibrator, Outcome
from acls.calibrators.calibration_set import CalibrationSet
from acls.calibrators.logistic import log_odds, one_vs_rest, with_top
from acls.calibrators.temperature import solve
from acls.metrics.bins import edges
from acls.options import option

TIE_BREAK = 1e-3
"""The weight of the probability itself in the map. It preserves the order of values on a flat part of the map."""


class Isotonic(Calibrator):
    """Replace probabilities by a non-decreasing function of them, found by pool-adjacent-violators, then normalise.

    ``kind="one-vs-rest"`` learns one function per class (Zadrozny and Elkan, KDD 2002). ``kind="pooled"`` learns one
    function for all classes, fitted to the pairs (p_k, y = k) of all classes. It preserves the order of the classes and
    therefore the accuracy (IRM of Zhang et al., ICML 2020). A function fitted to n pairs has values of at least
    1 / (n + 2), so a class that was never right at some probability does not become impossible.
    """

    paper = "Zadrozny and Elkan, KDD 2002"

    kind: str = option(default="one-vs-rest", choices=("one-vs-rest", "pooled"))

    x: Tensor = field(init=False)
    y: Tensor = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.keeps_ranking = self.kind == "pooled"
        self.per_class = "" if self.kind == "pooled" else "x"

    def _fit(self, data: CalibrationSet) -> Outcome:
        logits, labels, weight = data.all()
        probs, hits = logits.softmax(1), one_vs_rest(labels, logits.shape[1])
        if self.kind == "pooled":
            weight = weight.repeat_interleave(logits.shape[1])
            probs, hits = probs.reshape(-1, 1), hits.reshape(-1, 1)
        floor = 1 / (float(weight.sum(dtype=torch.float64)) + 2)
        tables = [pool_adjacent_violators(*one, weight) for one in zip(probs.T, hits.T, strict=True)]
        # Shorter tables are padded with their last knot.
        index = torch.arange(max(len(x) for x, _ in tables), device=logits.device)
        x, y = (torch.stack([one[index.clamp(max=len(one) - 1)] for one in part]) for part in zip(*tables, strict=True))
        self._learn(logits, x=x, y=y.clamp(floor, 1 - floor))
        return Outcome()

    def _transform(self, rows: Tensor) -> Tensor:
        probs = rows.softmax(1)
        mapped = interpolate(probs.reshape(-1, len(self.x)), self.x, self.y).reshape(probs.shape)
        log_probs = torch.lerp(mapped, probs, TIE_BREAK).clamp(min=torch.finfo(probs.dtype).tiny).log().log_softmax(1)
        return keep_top(log_probs, rows) if self.kind == "pooled" else log_probs

    def _reset(self, like: Tensor) -> None:
        line = torch.tensor([0.0, 1.0]).expand(like.shape[1] if self.kind == "one-vs-rest" else 1, 2)
        self._learn(like, x=line, y=line)

    def _values(self, n_classes: int) -> int:
        return self.x.shape[0]


class Histogram(Calibrator):
    """Replace a probability by how often its class was right in its bin, class by class, then normalise.

    Bins are (lo, hi], of equal ``width`` or of equal ``mass`` (edges at the quantiles of each class). The value of an
    empty bin is its middle. The value of a bin with n rows is at least 1 / (n + 2), so no class becomes impossible.
    (Zadrozny and Elkan, ICML 2001)
    """

    per_class = "value"
    paper = "Zadrozny and Elkan, ICML 2001"

    bins: int = option(default=15, within="[1, inf)")
    kind: str = option(default="width", choices=("width", "mass"))

    edges: Tensor = field(init=False)
    value: Tensor = field(init=False)
    as_is: Tensor = field(init=False)
    """1 if the guard keeps the probabilities unchanged, else 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.streams = self.kind == "width"

    def _fit(self, data: CalibrationSet) -> Outcome:
        some = data.first()[0]
        if self.kind == "width":
            inner = edges(self.bins, some)[1:-1].expand(some.shape[1], -1).contiguous()
        else:
            logits, _, weight = data.all()
            probs, order = logits.softmax(1).T.sort(dim=1)
            below = weight.double()[order].cumsum(1)
            wanted = torch.arange(1, self.bins, device=some.device) * below[:, -1:] / self.bins
            # An excess over a whole number within rounding error is ignored.
            index = torch.searchsorted(below, wanted * (1 - 1e-12)).clamp(max=probs.shape[1] - 1)
            inner = probs.gather(1, index)
        counts = torch.zeros((some.shape[1], self.bins), dtype=torch.float64, device=some.device)
        right = torch.zeros_like(counts)
        for logits, labels, weight in data:
            index = place(inner, logits.softmax(1).T.contiguous())
            each = weight.double().expand(index.shape)
            counts.scatter_add_(1, index, each)
            right.scatter_add_(1, index, each * one_vs_rest(labels, logits.shape[1]).T)
        ends = torch.zeros_like(counts[:, :1])
        middle = (torch.cat([ends, inner], 1) + torch.cat([inner, ends + 1], 1)) / 2
        floor = 1 / (counts + 2)
        value = torch.where(counts > 0, (right / counts).clamp(min=floor, max=1 - floor), middle)
        self._learn(some, edges=inner, value=value, as_is=0.0)
        return Outcome()

    def _transform(self, rows: Tensor) -> Tensor:
        probs = rows.softmax(1)
        index = place(self.edges, probs.T.contiguous())
        mapped = self.value.gather(1, index).T
        return torch.lerp(mapped, probs, self.as_is).clamp(min=torch.finfo(probs.dtype).tiny).log().log_softmax(1)

    def _reset(self, like: Tensor) -> None:
        self.as_is = torch.ones_like(self.as_is)


TABLE = 257
"""The number of points at which the fitted curve is stored."""
WIDEST = 100.0
"""Log-odds are clamped to this range."""


class Spline(Calibrator):
    """Calibrate the confidence of the top class by the slope of a spline, and rescale the other classes.

    The rows are sorted by confidence, and h(t) is the number of right answers among the first ``t n`` rows, divided by
    n. Its slope is the accuracy at that confidence. A natural cubic spline with a few knots is fitted to h by least
    squares, without bins. Confidences, and the proportions among the other classes, are those of the best temperature.
    (Gupta et al., ICLR 2021, who use no temperature and 6 knots)
    """

    paper = "Gupta et al., ICLR 2021"

    knots: int = option(default=12, within="[3, inf)")

    temperature: Tensor = field(init=False)
    x: Tensor = field(init=False)
    y: Tensor = field(init=False)

    def _fit(self, data: CalibrationSet) -> Outcome:
        logits, labels, weight = data.all()
        solved = solve(data)
        odds, predicted = log_odds((logits.double() * solved.beta).log_softmax(1)).max(1)
        odds, order = odds.sort()
        counts, hits = weight.double()[order], (predicted == labels)[order].double()
        end, n = counts.cumsum(0), float(counts.sum())
        # A row of weight w is a step of length w. We evaluate it at its middle.
        share = ((hits * counts).cumsum(0) - hits * counts / 2) / n
        basis, _ = _natural_basis((end - counts / 2) / n, self.knots)
        root = counts.sqrt()[:, None].cpu()
        # gelsd returns the solution of smallest norm if there are fewer rows than knots.
        solution = torch.linalg.lstsq(root * basis.cpu(), root * share.cpu()[:, None], driver="gelsd").solution
        grid = torch.linspace(0, 1, TABLE, dtype=torch.float64, device=odds.device)
        _, slopes = _natural_basis(grid, self.knots)
        floor = 1 / (n + 2)
        accuracy = (slopes @ solution.to(odds.device))[:, 0].clamp(floor, 1 - floor)
        # An excess over the end of a row within rounding error is ignored.
        place = torch.searchsorted(end, grid * n * (1 - 1e-12)).clamp(max=len(odds) - 1)
        x = odds[place].clamp(-WIDEST, WIDEST)
        self._learn(logits, temperature=solved.temperature, x=x[None], y=accuracy.logit()[None])
        return replace(solved, gap=None)

    def _transform(self, rows: Tensor) -> Tensor:
        log_probs = (rows / self.temperature).log_softmax(1)
        odds = log_odds(log_probs).amax(1, keepdim=True)
        return with_top(log_probs, interpolate(odds, self.x, self.y)[:, 0])

    def _reset(self, like: Tensor) -> None:
        line = torch.tensor([[-WIDEST, WIDEST]])
        self._learn(like, temperature=1.0, x=line, y=line)

    def _values(self, n_classes: int) -> int:
        return self.knots


def _natural_basis(t: Tensor, knots: int) -> tuple[Tensor, Tensor]:
    """Return the basis of natural cubic splines with equally spaced knots on [0, 1], and its derivative, at t."""
    knot = torch.linspace(0, 1, knots, dtype=t.dtype, device=t.device)
    above = (t[:, None] - knot).clamp(min=0)
    cubes = (above[:, :-1] ** 3 - above[:, -1:] ** 3) / (1 - knot[:-1])
    squares = 3 * (above[:, :-1] ** 2 - above[:, -1:] ** 2) / (1 - knot[:-1])
    one = torch.ones_like(t)[:, None]
    basis = torch.cat([one, t[:, None], cubes[:, :-1] - cubes[:, -1:]], dim=1)
    slope = torch.cat([torch.zeros_like(one), one, squares[:, :-1] - squares[:, -1:]], dim=1)
    return basis, slope


def pool_adjacent_violators(x: Tensor, hits: Tensor, weight: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return knots (x, y) of the non-decreasing function of x with the least (weighted) squared distance to hits.

    Equal values of x are one point. The knots are the two ends of each block of constant value. Use linear
    interpolation between knots. Each round pools every maximal run of decreasing blocks; the order of pooling does not
    change the result.

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


def place(edges: Tensor, values: Tensor) -> Tensor:
    """Return how many of the sorted edges (P, L) are below each of the values (P, M)."""
    if not torch.compiler.is_compiling():
        return torch.searchsorted(edges, values)
    # ONNX has no search. We add powers of two, from the largest down, as long as the edge at that index is below.
    length = edges.shape[1]
    found = torch.zeros_like(values, dtype=torch.int64)
    for step in (2**power for power in reversed(range(length.bit_length()))):
        further = found + step
        edge = edges.gather(1, (further - 1).clamp(max=length - 1))
        found = torch.where((further <= length) & (edge < values), further, found)
    return found


def interpolate(values: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Interpolate values (M, P) in P piecewise linear tables x, y (P, L). The map is constant beyond the ends."""
    columns = values.T.contiguous()
    right = place(x, columns).clamp(1, max(x.shape[1] - 1, 1)).clamp(max=x.shape[1] - 1)
    left = (right - 1).clamp(min=0)
    x_left, x_right = x.gather(1, left), x.gather(1, right)
    share = ((columns - x_left) / (x_right - x_left).clamp(min=torch.finfo(x.dtype).tiny)).clamp(0, 1)
    return torch.lerp(y.gather(1, left), y.gather(1, right), share).T


def keep_top(log_probs: Tensor, logits: Tensor) -> Tensor:
    """Make the class with the highest logit the unique top class if a table produced a tie."""
    top = logits.argmax(1, keepdim=True)
    best = log_probs.amax(1, keepdim=True)
    others = log_probs.scatter(1, top, -torch.inf).amax(1, keepdim=True)
    lifted = torch.where(log_probs.gather(1, top) > others, best, best * (1 - 1e-6))
    return log_probs.scatter(1, top, lifted)
