"""Reliability diagrams of one method, of several methods and of each class, and histograms of confidence."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from acls.errors import InputError
from acls.metrics.bins import Reliability, bin_of, edges
from acls.metrics.cells import Cells
from acls.metrics.classwise import ClasswiseBins
from acls.metrics.distributions import wilson
from acls.report.figures.style import ABOVE, GREY, LEGEND, PALETTE, SMALL, canvas, colour, marker, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_ACCURACY, _BAR, _GAP = PALETTE[0], PALETTE[5], PALETTE[1]
_BARS = 40


@dataclass(frozen=True)
class DiagramBin:
    """A bin with at least one sample, and the 95 % interval of its accuracy."""

    lower: float
    upper: float
    count: float
    confidence: float
    accuracy: float
    low: float
    high: float


@dataclass(frozen=True)
class ReliabilityDiagram:
    """The bins that have samples, and the ECE, mean confidence and accuracy of all samples."""

    rows: tuple[DiagramBin, ...]
    n: float
    ece: float
    confidence: float
    accuracy: float
    histogram: tuple[tuple[float, float, float], ...]
    """A histogram of the confidences as (lower, upper, count). Finer than the bins if `prepare` got cells."""
    curve: Curve | None = None
    """Accuracy as a smooth function of confidence, if `prepare` got cells."""


def prepare(found: Reliability, cells: Cells | None = None) -> ReliabilityDiagram:
    """Compute the reliability diagram. Empty bins are left out.

    ``cells``, such as ``suite.confidences.cells()``, adds the smooth curve with its band and a fine histogram of the
    confidences.
    """
    columns = (found.lower, found.upper, found.count, found.confidence, found.accuracy)
    rows = []
    for lower, upper, count, confidence, accuracy in zip(*(column.tolist() for column in columns), strict=True):
        if count:
            accuracy = min(accuracy, 1.0)  # rounding can make it larger if ties share hits
            rows.append(DiagramBin(lower, upper, count, confidence, accuracy, *wilson(accuracy, count)))
    n = sum(row.count for row in rows)
    error = math.fsum(row.count * abs(row.confidence - row.accuracy) for row in rows)
    confidence = math.fsum(row.count * row.confidence for row in rows)
    right = math.fsum(row.count * row.accuracy for row in rows)
    whole = n or 1
    histogram = tuple((row.lower, row.upper, row.count) for row in rows)
    curve = None
    if cells is not None and n:
        bars, curve = prepare_histogram(cells, _BARS), smooth_curve(cells)
        counts = [right + wrong for right, wrong in zip(bars.right, bars.wrong, strict=True)]
        histogram = tuple(part for part in zip(bars.edges, bars.edges[1:], counts, strict=False) if part[2])
    return ReliabilityDiagram(tuple(rows), n, error / whole, confidence / whole, right / whole, histogram, curve)


def draw(data: ReliabilityDiagram, ax: Axes, strip: Axes | None = None) -> None:
    """Draw accuracy by confidence on ``ax`` and, if given, the histogram of confidences on ``strip``."""
    left, width = [row.lower for row in data.rows], [row.upper - row.lower for row in data.rows]
    accuracy = [row.accuracy for row in data.rows]
    gap = [row.confidence - row.accuracy for row in data.rows]
    diagonal(ax)
    ax.bar(left, accuracy, width, align="edge", color=_BAR, edgecolor="white", linewidth=0.5, label="accuracy")
    ax.bar(
        left, gap, width, bottom=accuracy, align="edge", color=f"{_GAP}30", edgecolor=_GAP, hatch="/////",
        linewidth=0.7, label="gap to confidence", zorder=2,
    )  # fmt: skip
    _whiskers(data.rows, ax, fmt="none", ecolor="0.1", elinewidth=0.8, capsize=1.5)
    if data.curve is not None:
        ax.fill_between(data.curve.confidence, data.curve.low, data.curve.high, color=PALETTE[4], alpha=0.35, zorder=3)
        ax.plot(data.curve.confidence, data.curve.accuracy, color=PALETTE[4], linewidth=1.4, label="smooth", zorder=5)
    ax.set(xlim=(0, 1), ylim=(0, 1), ylabel="accuracy", aspect="equal")
    title = f"ECE {100 * data.ece:.2f} %,  n = {data.n:,.10g}"
    ax.legend(title=title, title_fontsize=SMALL, alignment="left", ncols=3, **ABOVE)
    tidy(ax)
    if strip is None:
        ax.set_xlabel("confidence")
        return
    ax.tick_params(labelbottom=False)
    low, high, count = zip(*data.histogram, strict=True) if data.histogram else ((), (), ())
    wide = [end - start for start, end in zip(low, high, strict=True)]
    strip.bar(low, count, wide, align="edge", color=GREY, edgecolor="white", linewidth=0.4)
    strip.axvline(data.confidence, color=_GAP, linewidth=1.2, label="mean confidence")
    strip.axvline(data.accuracy, color=_ACCURACY, linewidth=1.2, linestyle="--", label="accuracy")
    strip.set(xlabel="confidence", ylabel="n", xlim=(0, 1), yscale="log", ylim=(0.7, 3 * max(count, default=1)))
    strip.legend(loc="upper left", fontsize=SMALL, **LEGEND)
    tidy(strip)


def _whiskers(rows: Sequence[DiagramBin], ax: Axes, **style: Any) -> None:
    """Draw accuracy by confidence, with the 95 % interval of each bin."""
    x, y = [row.confidence for row in rows], [row.accuracy for row in rows]
    ends = [[row.accuracy - row.low for row in rows], [row.high - row.accuracy for row in rows]]
    ax.errorbar(x, y, yerr=ends, zorder=4, **style)


def diagonal(ax: Axes) -> None:
    """Draw the diagonal, on which confidence equals accuracy."""
    ax.plot([0, 1], [0, 1], color="0.35", linestyle="--", linewidth=0.9, zorder=3)


def plot(found: Reliability, ax: Axes | None = None, *, cells: Cells | None = None) -> tuple[Figure, Axes]:
    """Draw the reliability diagram on ``ax``, or on a new figure with a strip of counts. Return figure and axes."""
    strip = None
    if ax is None:
        _, (ax, strip) = canvas(2, 1, height=4.7, height_ratios=(4, 1))
    draw(prepare(found, cells), ax, strip)
    return cast("Figure", ax.get_figure()), ax


ENOUGH = 10.0
"""The effective number of samples that a point of the curve needs."""
_FARTHEST = 12.0  # log-odds are clamped to this: a confidence of 1 - 6e-6
_PLACES = 1201


@dataclass(frozen=True)
class Curve:
    """Points of the smooth curve with a pointwise 95 % band, by confidence."""

    confidence: list[float]
    accuracy: list[float]
    low: list[float]
    high: list[float]


def smooth_curve(cells: Cells, *, points: int = 201) -> Curve:
    """Estimate accuracy as a smooth function of confidence by kernel regression.

    accuracy(t) = t - Σ (conf_i - hit_i) K(t, conf_i) / Σ K(t, conf_i), with a Gaussian kernel K of the log-odds of
    confidence, because most confidences of networks are close to 1. Residuals are smoothed instead of hits, so that the
    curve of a calibrated model is the diagonal. The bandwidth is the rule of Silverman (1986),
    0.9 min(σ, IQR / 1.34) n^(-1/5). The band uses (Σ K)² / Σ K² as the effective number of samples at t.
    """
    mean = cells.mean.double().flatten()
    place = (_odds(mean) / _FARTHEST + 1) / 2 * (_PLACES - 1)
    index = place.round().long()  # a fixed grid, so that the cost does not grow with n
    count, residual = (
        torch.bincount(index, weights=part.flatten().double(), minlength=_PLACES)
        for part in (cells.count, cells.residual)
    )
    x = torch.linspace(-_FARTHEST, _FARTHEST, _PLACES, dtype=torch.float64)
    t = torch.linspace(float(mean.min()), float(mean.max()), points, dtype=torch.float64)
    kernel = torch.exp(-(((_odds(t)[:, None] - x) / _bandwidth(x, count)) ** 2) / 2)
    mass = kernel @ count
    near = mass**2 / (kernel**2 @ count).clamp(min=1e-300)
    seen = near >= ENOUGH
    t, accuracy = t[seen], (t - kernel @ residual / mass.clamp(min=1e-300)).clamp(0, 1)[seen]
    ends = [wilson(share, n) for share, n in zip(accuracy.tolist(), near[seen].tolist(), strict=True)]
    return Curve(t.tolist(), accuracy.tolist(), [low for low, _ in ends], [high for _, high in ends])


def _odds(confidence: Tensor) -> Tensor:
    return torch.logit(confidence.clamp(0, 1)).clamp(-_FARTHEST, _FARTHEST)


def _bandwidth(x: Tensor, count: Tensor) -> float:
    n = float(count.sum())
    held = count.cumsum(0) / n
    middle = float((x * count).sum()) / n
    deviation = float((count * (x - middle) ** 2).sum() / n) ** 0.5
    quarters = [float(x[int(torch.searchsorted(held, share))]) for share in (0.25, 0.75)]
    # If half of all confidences are equal, the IQR is 0: use the standard deviation alone.
    middle_half = (quarters[1] - quarters[0]) / 1.34 or deviation
    rule: float = 0.9 * min(deviation, middle_half) * n**-0.2
    return max(rule, 2 * float(x[1] - x[0]))


FEWEST = 10
"""Bins with fewer samples are not drawn: their accuracy is too uncertain."""


def prepare_overlay(methods: Mapping[str, Reliability]) -> dict[str, ReliabilityDiagram]:
    """Compute one reliability diagram per method."""
    return {name: prepare(found) for name, found in methods.items()}


def draw_overlay(data: Mapping[str, ReliabilityDiagram], ax: Axes) -> None:
    """Draw accuracy by confidence, one line per method, with the 95 % interval of each bin as an error bar."""
    diagonal(ax)
    for number, (name, one) in enumerate(data.items()):
        _whiskers(
            [row for row in one.rows if row.count >= FEWEST], ax, color=colour(number), marker=marker(number),
            markersize=3.5, linewidth=1.2, elinewidth=0.5, capsize=1, label=f"{name}: ECE {100 * one.ece:.2f} %",
        )  # fmt: skip
    ax.set(xlim=(0, 1), ylim=(0, 1), xlabel="confidence", ylabel="accuracy", aspect="equal")
    ax.legend(**ABOVE)
    tidy(ax)


@dataclass(frozen=True)
class ConfidenceHistogram:
    """The number of right and wrong predictions per bin, and the mean confidence and accuracy of all samples."""

    edges: Sequence[float]
    right: Sequence[float]
    wrong: Sequence[float]
    confidence: float
    accuracy: float


def prepare_histogram(cells: Cells, bins: int = 30) -> ConfidenceHistogram:
    """Count right and wrong predictions per bin of confidence, from ``suite.confidences.cells()``."""
    index = bin_of(cells.mean.double().flatten(), bins)
    sums = [part.flatten().double() for part in (cells.count, cells.confidence, cells.right)]
    count, _, right = (torch.bincount(index, weights=part, minlength=bins) for part in sums)
    n, confidence, hits = (float(part.sum()) for part in sums)
    return ConfidenceHistogram(
        edges=[k / bins for k in range(bins + 1)],
        right=right.tolist(),
        wrong=(count - right).tolist(),
        confidence=confidence / (n or 1),
        accuracy=hits / (n or 1),
    )


def draw_histogram(data: ConfidenceHistogram, ax: Axes) -> None:
    """Draw the histograms of right and wrong predictions, with counts on a logarithmic axis."""
    ax.stairs(data.right, data.edges, fill=True, color=PALETTE[5], label="right")
    ax.stairs(data.wrong, data.edges, color=PALETTE[1], linewidth=1.3, hatch="////", label="wrong")
    ax.axvline(data.confidence, color=PALETTE[1], linewidth=1.2, label=f"mean confidence {100 * data.confidence:.1f} %")
    ax.axvline(
        data.accuracy, color=PALETTE[0], linewidth=1.2, linestyle="--", label=f"accuracy {100 * data.accuracy:.1f} %"
    )
    most = max(*data.right, *data.wrong, 1)
    ax.set(xlim=(0, 1), yscale="log", ylim=(0.7, 20 * most), xlabel="confidence", ylabel="n")
    ax.legend(loc="upper left", fontsize=SMALL, ncols=2, **LEGEND)
    tidy(ax)


COLUMNS = 5
_MOST = 25


def prepare_classes(
    found: ClasswiseBins, names: Sequence[str] = (), *, most: int = _MOST
) -> list[tuple[str, ReliabilityDiagram]]:
    """Compute one reliability diagram per class. Of more than ``most`` classes, take those with the highest ECE."""
    by_class = found.ece_by_class()
    n_classes = by_class.numel()
    if names and len(names) != n_classes:
        raise InputError(f"there are {len(names)} names for {n_classes} classes")
    order = range(n_classes) if n_classes <= most else by_class.argsort(descending=True)[:most].tolist()
    edge, count = edges(found.samples.shape[1], found.probability), found.samples
    means = found.probability / count, found.events / count
    return [
        (names[k] if names else str(k), prepare(Reliability(edge[:-1], edge[1:], count[k], means[0][k], means[1][k])))
        for k in order
    ]


def draw_class(data: tuple[str, ReliabilityDiagram], ax: Axes) -> None:
    """Draw the frequency of one class by its probability, with 95 % intervals."""
    diagonal(ax)
    style = {"color": PALETTE[0], "ecolor": GREY, "marker": "o", "markersize": 2.2, "linewidth": 1, "elinewidth": 0.7}
    _whiskers(data[1].rows, ax, **style)
    ax.set(xlim=(0, 1), ylim=(0, 1), aspect="equal", xticks=[0, 0.5, 1], yticks=[0, 0.5, 1])
    tidy(ax)
    name = data[0] if len(data[0]) <= 14 else f"{data[0][:13]}…"
    ax.set_title(f"{name}, {100 * data[1].ece:.2f} %", fontsize=SMALL)


def class_figure(found: ClasswiseBins, names: Sequence[str] = ()) -> Figure:
    """Return a figure with one panel per class. The number next to the name is the ECE of the class."""
    data = prepare_classes(found, names)
    columns = min(COLUMNS, max(len(data), 1))
    rows = -(-len(data) // columns)
    drawn, axes = canvas(rows, columns, width=7.2, height=1.62 * rows + 0.2)
    for ax, one in zip(axes, data, strict=False):
        draw_class(one, ax)
    for ax in axes[len(data) :]:
        ax.remove()
    drawn.supxlabel("probability of the class", fontsize=SMALL + 1)
    drawn.supylabel("frequency of the class", fontsize=SMALL + 1)
    return drawn
