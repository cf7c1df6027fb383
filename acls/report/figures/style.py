"""Style that all figures share: colours for colour-blind readers, and sizes for one column of text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from acls.errors import require
from acls.storage import atomic_write, check_form

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The palette of Okabe and Ito, ordered so that neighbouring colours also differ in lightness.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
GREY = "#9a9a9a"
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
"""Markers that tell lines apart without colour."""
LEGEND: dict[str, Any] = {"frameon": True, "framealpha": 0.8, "edgecolor": "none", "facecolor": "white"}
"""Keyword arguments of a legend inside the axes, on a white background."""
COLUMN_INCHES = 3.5
SMALL = 7
_TIGHT = {"columnspacing": 1, "handlelength": 1.4, "borderaxespad": 0.2}
ABOVE: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (0, 1), "fontsize": SMALL, "frameon": False, **_TIGHT}
"""Keyword arguments of a legend above the axes."""


def canvas(
    rows: int = 1, columns: int = 1, *, width: float = COLUMN_INCHES, height: float = COLUMN_INCHES, **layout: Any
) -> tuple[Figure, list[Axes]]:
    """Return a new figure that pyplot does not track, and its axes row by row. See ``Figure.subplots`` for the rest."""
    figure_module = require("matplotlib.figure", extra="plot")
    figure: Figure = figure_module.Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **layout)
    return figure, list(axes.flat)


def drawn(draw: Callable[[Any, Axes], None], data: Any, **size: float) -> Figure:
    """Return a figure with one axes and the data drawn on it. ``size`` is passed to `canvas`."""
    figure, (ax,) = canvas(**size)  # type: ignore[arg-type]
    draw(data, ax)
    return figure


def colour(number: int) -> str:
    """Return the colour of the line with this number."""
    return PALETTE[number % len(PALETTE)]


def marker(number: int) -> str:
    """Return the marker of the line with this number. Lines of the same colour have different markers."""
    return MARKERS[(number + number // len(PALETTE)) % len(MARKERS)]


def tidy(ax: Axes) -> None:
    """Remove the top and right spines and use small fonts."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(labelsize=SMALL)
    ax.xaxis.label.set_fontsize(SMALL + 1)
    ax.yaxis.label.set_fontsize(SMALL + 1)
    ax.title.set_fontsize(SMALL + 1)


def save(figure: Figure, path: str | Path) -> None:
    """Save a figure in the format of the file name. Saving the same figure again gives the same bytes."""
    path, form = Path(path), check_form(path, "figure").removeprefix(".")
    # No date. The mark tells that acls wrote the figure and may replace it.
    about = {
        "png": {"Software": "acls figure"},
        "svg": {"Creator": "acls figure", "Date": None},
        "pdf": {"Creator": "acls figure", "CreationDate": None},
    }[form]
    matplotlib = require("matplotlib", extra="plot")
    with atomic_write(path) as temporary, matplotlib.rc_context({"svg.hashsalt": "acls"}):
        figure.savefig(temporary, format=form, dpi=200, metadata=about)
