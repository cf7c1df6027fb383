"""A small reliability diagram for each class: when the model gives class k a probability, how often is it k?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from acls.errors import InputError
from acls.metrics.classwise import ClasswiseBins
from acls.report.figures.reliability import diagonal
from acls.report.figures.style import GREY, PALETTE, SMALL, canvas, tidy
from acls.report.shares import wilson

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMNS = 5
_MOST = 25


@dataclass(frozen=True)
class ClassDiagram:
    """The bins of one class that hold samples."""

    name: str
    ece: float
    labels: int
    """How many samples are of this class."""
    probability: list[float]
    frequency: list[float]
    low: list[float]
    high: list[float]
    count: list[int]


@dataclass(frozen=True)
class ClassGrid:
    """The classes shown, the worst calibrated first where not all are."""

    classes: tuple[ClassDiagram, ...]
    left_out: int = 0


def prepare(found: ClasswiseBins, names: Sequence[str] = (), *, most: int = _MOST) -> ClassGrid:
    """Compute every class's diagram; of more than ``most`` classes, those with the largest classwise ECE."""
    by_class = found.ece_by_class()
    n_classes = by_class.numel()
    if names and len(names) != n_classes:
        raise InputError(f"there are {len(names)} names for {n_classes} classes")
    order = list(range(n_classes))
    if n_classes > most:
        order = by_class.argsort(descending=True)[:most].tolist()
    return ClassGrid(tuple(_one(found, k, names, float(by_class[k])) for k in order), n_classes - len(order))


def _one(found: ClasswiseBins, k: int, names: Sequence[str], ece: float) -> ClassDiagram:
    rows = [
        (count, probability / count, min(events / count, 1.0))
        for count, probability, events in zip(
            found.samples[k].tolist(), found.probability[k].tolist(), found.events[k].tolist(), strict=True
        )
        if count
    ]
    ends = [wilson(frequency, count) for count, _, frequency in rows]
    return ClassDiagram(
        name=names[k] if names else str(k),
        ece=ece,
        labels=int(found.events[k].sum()),
        probability=[probability for _, probability, _ in rows],
        frequency=[frequency for _, _, frequency in rows],
        low=[low for low, _ in ends],
        high=[high for _, high in ends],
        count=[count for count, _, _ in rows],
    )


def draw(data: ClassDiagram, ax: Axes) -> None:
    """Draw one class: the frequency of the class against its probability, with 95 % intervals."""
    diagonal(ax)
    errors = [
        [share - low for share, low in zip(data.frequency, data.low, strict=True)],
        [high - share for share, high in zip(data.frequency, data.high, strict=True)],
    ]
    ax.errorbar(
        data.probability, data.frequency, yerr=errors, color=PALETTE[0], ecolor=GREY, marker="o", markersize=2.2,
        linewidth=1, elinewidth=0.7, zorder=4,
    )  # fmt: skip
    ax.set(xlim=(0, 1), ylim=(0, 1), aspect="equal", xticks=[0, 0.5, 1], yticks=[0, 0.5, 1])
    tidy(ax)
    name = data.name if len(data.name) <= 14 else f"{data.name[:13]}…"
    ax.set_title(f"{name}, {100 * data.ece:.2f} %", fontsize=SMALL)


def figure(found: ClasswiseBins, names: Sequence[str] = (), *, most: int = _MOST) -> Figure:
    """Return the grid of all classes; the number beside a name is its classwise ECE."""
    data = prepare(found, names, most=most)
    columns = min(COLUMNS, max(len(data.classes), 1))
    rows = -(-len(data.classes) // columns)
    drawn, axes = canvas(rows, columns, width=7.2, height=1.62 * rows + 0.2)
    for ax, one in zip(axes, data.classes, strict=False):
        draw(one, ax)
    for ax in axes[len(data.classes) :]:
        ax.remove()
    drawn.supxlabel("probability of the class", fontsize=SMALL + 1)
    drawn.supylabel("frequency of the class", fontsize=SMALL + 1)
    return drawn
