"""Reliability diagram: how often the model was right, by how sure it was."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, cast

from acls.metrics.bins import Reliability
from acls.report.figures.style import PALETTE, SMALL, canvas, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.gridspec import GridSpec

_Z = 1.959964  # of a 95 % interval
_ACCURACY, _GAP = PALETTE[0], PALETTE[1]


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

    def table(self) -> list[dict[str, float]]:
        """A plain row a bin, for CSV or JSON."""
        return [asdict(row) for row in self.rows]


def prepare(found: Reliability) -> ReliabilityDiagram:
    """Compute the diagram of bins; empty ones are left out, as nothing is known of them."""
    columns = (found.lower, found.upper, found.count, found.confidence, found.accuracy)
    rows = []
    for lower, upper, count, confidence, accuracy in zip(*(column.tolist() for column in columns), strict=True):
        if count:
            rows.append(Row(lower, upper, count, confidence, accuracy, *wilson(accuracy, count)))
    n = sum(row.count for row in rows)
    error = math.fsum(row.count * abs(row.confidence - row.accuracy) for row in rows)
    confidence = math.fsum(row.count * row.confidence for row in rows)
    right = math.fsum(row.count * row.accuracy for row in rows)
    whole = max(n, 1)
    return ReliabilityDiagram(tuple(rows), n, error / whole, confidence / whole, right / whole)


def wilson(share: float, n: int) -> tuple[float, float]:
    """The 95 % interval of a share seen in n samples (Wilson 1927): within 0..1, also for a share of 0 or 1."""
    center = (share + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
    half = _Z / (1 + _Z**2 / n) * math.sqrt(share * (1 - share) / n + _Z**2 / (4 * n * n))
    return max(0.0, center - half), min(1.0, center + half)


def draw(data: ReliabilityDiagram, ax: Axes, strip: Axes | None = None) -> None:
    """Draw accuracy against confidence on ``ax`` and, on ``strip`` if given, where the samples are."""
    left, width = [row.lower for row in data.rows], [row.upper - row.lower for row in data.rows]
    accuracy = [row.accuracy for row in data.rows]
    gap = [row.confidence - row.accuracy for row in data.rows]
    ax.plot([0, 1], [0, 1], color="0.4", linestyle="--", linewidth=1, zorder=3)
    ax.bar(left, accuracy, width, align="edge", color=_ACCURACY, edgecolor="white", linewidth=0.5, label="accuracy")
    ax.bar(
        left, gap, width, bottom=accuracy, align="edge", color="none", edgecolor=_GAP, hatch="////", linewidth=0.8,
        label="gap to confidence", zorder=2,
    )  # fmt: skip
    middle = [row.confidence for row in data.rows]
    errors = [[row.accuracy - row.low for row in data.rows], [row.high - row.accuracy for row in data.rows]]
    ax.errorbar(middle, accuracy, yerr=errors, fmt="none", ecolor="black", elinewidth=0.8, capsize=1.5, zorder=4)
    ax.set(xlim=(0, 1), ylim=(0, 1), ylabel="accuracy", aspect="equal")
    title = f"ECE {100 * data.ece:.2f} %, n = {data.n:,}"
    ax.legend(loc="upper left", fontsize=SMALL, title=title, title_fontsize=SMALL, alignment="left", frameon=False)
    tidy(ax)
    if strip is None:
        ax.set_xlabel("confidence")
        return
    ax.tick_params(labelbottom=False)
    strip.bar(left, [row.count / data.n for row in data.rows], width, align="edge", color="0.6", edgecolor="white")
    strip.axvline(data.confidence, color=_GAP, linewidth=1, label="mean confidence")
    strip.axvline(data.accuracy, color=_ACCURACY, linewidth=1, linestyle="--", label="accuracy")
    strip.set(xlabel="confidence", ylabel="share of n", xlim=(0, 1))
    strip.legend(loc="upper left", fontsize=SMALL, frameon=False)
    tidy(strip)


def plot(found: Reliability, ax: Axes | None = None) -> tuple[Figure, Axes]:
    """Draw the diagram of bins on ``ax``, or with a strip of counts on a figure of its own, and return both."""
    strip = None
    if ax is None:
        _, (ax, strip) = canvas(2, 1, height=4.6)
        cast("GridSpec", ax.get_gridspec()).set_height_ratios([4, 1])
    draw(prepare(found), ax, strip)
    return cast("Figure", ax.get_figure()), ax
