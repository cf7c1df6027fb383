"""Accuracy against calibration error: which methods, or epochs, are not beaten in both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from acls.report.figures.style import GREY, LEGEND, SMALL, canvas, colour, marker, save, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FEW = 7
"""Names that fit inside the axes; more stand beside them."""


@dataclass(frozen=True)
class Point:
    """A method, or an epoch of a run, and its two numbers."""

    name: str
    accuracy: float
    ece: float


@dataclass(frozen=True)
class Pareto:
    """All points and, by ascending accuracy, those that no other beats in both."""

    points: tuple[Point, ...]
    front: tuple[Point, ...]


def prepare(points: Mapping[str, Sequence[tuple[float, float]]]) -> Pareto:
    """Compute the front of ``{name: [(accuracy, ece) of each seed]}``; a point is on it unless one beats it.

    One beats another that is no worse in either number and better in one.
    """
    all_points = tuple(Point(name, *pair) for name, pairs in points.items() for pair in pairs)
    best = float("inf")
    front = []
    # From the most accurate down, and of equals the least error first: a point must have less error than all before.
    for point in sorted(all_points, key=lambda one: (-one.accuracy, one.ece)):
        if point.ece < best:
            front.append(point)
            best = point.ece
    return Pareto(all_points, tuple(reversed(front)))


def draw(data: Pareto, ax: Axes) -> None:
    """Draw the points and the staircase of the front; right and low is better."""
    steps = [(100 * point.accuracy, 100 * point.ece) for point in data.front]
    ax.step([x for x, _ in steps], [y for _, y in steps], where="pre", color=GREY, linewidth=1, label="front", zorder=1)
    for number, name in enumerate(dict.fromkeys(point.name for point in data.points)):
        own = [point for point in data.points if point.name == name]
        ax.plot(
            [100 * point.accuracy for point in own], [100 * point.ece for point in own], linestyle="none",
            color=colour(number), marker=marker(number), markersize=5, markeredgecolor="white", markeredgewidth=0.4,
            label=name,
        )  # fmt: skip
    ax.set(xlabel="accuracy %  →  better", ylabel="ECE %  →  worse")
    ax.set_ylim(bottom=0)
    ax.margins(x=0.08)
    many = len({point.name for point in data.points}) > FEW
    beside: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1.01, 0.5)} if many else {}
    ax.legend(fontsize=SMALL, **LEGEND, **beside)
    tidy(ax)


def save_plot(points: Mapping[str, Sequence[tuple[float, float]]], path: str | Path) -> None:
    """Draw the points that `prepare` takes to a file."""
    figure, (ax,) = canvas()
    draw(prepare(points), ax)
    save(figure, path)
