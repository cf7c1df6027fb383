"""Reliability diagram: how often the model was right, by how sure it was."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, cast

import torch

from acls.metrics.bins import Reliability, bin_of
from acls.metrics.cells import Cells
from acls.report.figures.smooth import Curve, smooth_curve
from acls.report.figures.style import GREY, INK, LEGEND, PALETTE, SMALL, strip_under, tidy
from acls.report.shares import wilson

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ACCURACY, _BAR, _GAP = PALETTE[0], PALETTE[5], PALETTE[1]
_BARS = 40


@dataclass(frozen=True)
class Row:
    """A bin that holds samples, with the 95 % interval of its accuracy."""

    lower: float
    upper: float
    count: int
    confidence: float
    accuracy: float
    low: float
    high: float


@dataclass(frozen=True)
class ReliabilityDiagram:
    """What the diagram shows: the bins that hold samples, and the whole."""

    rows: tuple[Row, ...]
    n: int
    ece: float
    confidence: float
    accuracy: float
    histogram: tuple[tuple[float, float, int], ...]
    """Where the confidences are: (lower, upper, count), finer than the bins where the single ones were given."""
    curve: Curve | None = None
    """Accuracy as a smooth function of confidence, where the single confidences were given."""

    def table(self) -> list[dict[str, float]]:
        """A plain row a bin, for CSV or JSON."""
        return [asdict(row) for row in self.rows]


def prepare(found: Reliability, cells: Cells | None = None) -> ReliabilityDiagram:
    """Compute the diagram of bins; empty ones are left out, as nothing is known of them.

    ``cells``, as of ``suite.confidences.cells()``, adds what knows of no bins: the smooth curve with its band, and a
    histogram of the confidences.
    """
    columns = (found.lower, found.upper, found.count, found.confidence, found.accuracy)
    rows = []
    for lower, upper, count, confidence, accuracy in zip(*(column.tolist() for column in columns), strict=True):
        if count:
            accuracy = min(accuracy, 1.0)  # of hits shared among ties, by rounding
            rows.append(Row(lower, upper, count, confidence, accuracy, *wilson(accuracy, count)))
    n = sum(row.count for row in rows)
    error = math.fsum(row.count * abs(row.confidence - row.accuracy) for row in rows)
    confidence = math.fsum(row.count * row.confidence for row in rows)
    right = math.fsum(row.count * row.accuracy for row in rows)
    whole = max(n, 1)
    histogram = tuple((row.lower, row.upper, row.count) for row in rows)
    curve = None
    if cells is not None and n:
        histogram, curve = _histogram(cells), smooth_curve(cells)
    return ReliabilityDiagram(tuple(rows), n, error / whole, confidence / whole, right / whole, histogram, curve)


def _histogram(cells: Cells) -> tuple[tuple[float, float, int], ...]:
    where = bin_of((cells.confidence / cells.count.clamp(min=1)).flatten(), _BARS)
    counts = torch.bincount(where, weights=cells.count.flatten().double(), minlength=_BARS).tolist()
    return tuple((at / _BARS, (at + 1) / _BARS, round(count)) for at, count in enumerate(counts) if count)


def draw(data: ReliabilityDiagram, ax: Axes, strip: Axes | None = None) -> None:
    """Draw accuracy against confidence on ``ax`` and, on ``strip`` if given, where the samples are."""
    left, width = [row.lower for row in data.rows], [row.upper - row.lower for row in data.rows]
    accuracy = [row.accuracy for row in data.rows]
    gap = [row.confidence - row.accuracy for row in data.rows]
    diagonal(ax)
    ax.bar(left, accuracy, width, align="edge", color=_BAR, edgecolor="white", linewidth=0.5, label="accuracy")
    ax.bar(
        left, gap, width, bottom=accuracy, align="edge", color=f"{_GAP}30", edgecolor=_GAP, hatch="/////",
        linewidth=0.7, label="gap to confidence", zorder=2,
    )  # fmt: skip
    middle = [row.confidence for row in data.rows]
    errors = [[row.accuracy - row.low for row in data.rows], [row.high - row.accuracy for row in data.rows]]
    ax.errorbar(middle, accuracy, yerr=errors, fmt="none", ecolor=INK, elinewidth=0.8, capsize=1.5, zorder=4)
    if data.curve is not None:
        ax.fill_between(data.curve.confidence, data.curve.low, data.curve.high, color=PALETTE[4], alpha=0.35, zorder=3)
        ax.plot(data.curve.confidence, data.curve.accuracy, color=PALETTE[4], linewidth=1.4, label="smooth", zorder=5)
    ax.set(xlim=(0, 1), ylim=(0, 1), ylabel="accuracy", aspect="equal")
    title = f"ECE {100 * data.ece:.2f} %,  n = {data.n:,}"
    ax.legend(loc="upper left", fontsize=SMALL, title=title, title_fontsize=SMALL, alignment="left", **LEGEND)
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


def diagonal(ax: Axes) -> None:
    """Draw where confidence equals accuracy."""
    ax.plot([0, 1], [0, 1], color="0.35", linestyle="--", linewidth=0.9, zorder=3)


def plot(found: Reliability, ax: Axes | None = None, *, cells: Cells | None = None) -> tuple[Figure, Axes]:
    """Draw the diagram of bins on ``ax``, or with a strip of counts on a figure of its own, and return both."""
    strip = None
    if ax is None:
        _, (ax, strip) = strip_under()
    draw(prepare(found, cells), ax, strip)
    return cast("Figure", ax.get_figure()), ax
