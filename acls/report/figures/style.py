"""What the figures share: colours that the colour-blind tell apart, and sizes that read well at one column."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from acls.errors import require
from acls.storage import atomic_write, check_form

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette, ordered so that neighbours differ in lightness too.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
GREY = "#9a9a9a"
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
"""Shapes that go with the colours, for readers and printers that see none."""
LEGEND: dict[str, Any] = {"frameon": True, "framealpha": 0.8, "edgecolor": "none", "facecolor": "white"}
"""A legend that covers what lies under it, without a frame."""
COLUMN_INCHES = 3.5
SMALL = 7
_TIGHT = {"columnspacing": 1, "handlelength": 1.4, "borderaxespad": 0.2}
ABOVE: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (0, 1), "fontsize": SMALL, "frameon": False, **_TIGHT}
"""A legend above the axes, where it covers nothing."""


def canvas(
    rows: int = 1, columns: int = 1, *, width: float = COLUMN_INCHES, height: float = COLUMN_INCHES
) -> tuple[Figure, list[Axes]]:
    """Return a figure of its own, outside of pyplot's state, and its axes row by row."""
    figure_module = require("matplotlib.figure", extra="plot")
    figure: Figure = figure_module.Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    return figure, list(axes.flat)


def drawn(draw: Callable[[Any, Axes], None], data: Any, **size: float) -> Figure:
    """Return a figure of one pair of axes with the data drawn on it; ``size`` as in `canvas`."""
    figure, (ax,) = canvas(**size)  # type: ignore[arg-type]
    draw(data, ax)
    return figure


def strip_under(height: float = 4.4) -> tuple[Figure, list[Axes]]:
    """Return a figure with a square pair of axes and, below it, a strip with the same x axis."""
    figure, axes = canvas(2, 1, height=height)
    axes[0].get_subplotspec().get_gridspec().set_height_ratios([4, 1])  # type: ignore[union-attr]
    return figure, axes


def colour(number: int) -> str:
    """The colour of one of several things, by its number."""
    return PALETTE[number % len(PALETTE)]


def marker(number: int) -> str:
    """The marker of one of several things, by its number; it changes its pairing with the colour after a round."""
    return MARKERS[(number + number // len(PALETTE)) % len(MARKERS)]


def tidy(ax: Axes) -> None:
    """Take the frame's upper and right side away and make the ticks' labels small."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(labelsize=SMALL)
    ax.xaxis.label.set_fontsize(SMALL + 1)
    ax.yaxis.label.set_fontsize(SMALL + 1)
    ax.title.set_fontsize(SMALL + 1)


def save(figure: Figure, path: str | Path) -> None:
    """Write a figure as the file's ending says; the same figure gives the same bytes."""
    path, form = Path(path), check_form(path, "figure").removeprefix(".")
    # Without a date; and with the mark by which acls knows its own figures, and may replace them.
    about = {
        "png": {"Software": "acls figure"},
        "svg": {"Creator": "acls figure", "Date": None},
        "pdf": {"Creator": "acls figure", "CreationDate": None},
    }[form]
    matplotlib = require("matplotlib", extra="plot")
    with atomic_write(path) as temporary, matplotlib.rc_context({"svg.hashsalt": "acls"}):
        figure.savefig(temporary, format=form, dpi=200, metadata=about)
