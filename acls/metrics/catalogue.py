"""The catalogue of metrics: name, description, print format, better direction and requirements of each metric.

Tables, page, JSON, ranking, checkpoint selection and docs read this catalogue. To add a metric, write a tally that
computes it and add one line to ``catalogue.json`` that names the tally. Metrics are shown in the order of these lines.
"""

from __future__ import annotations

import json
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class Metric:
    """One metric."""

    name: str
    """The key in `Suite.summary`, in stores and in JSON."""
    label: str
    about: str
    """A short description."""
    level: int
    """1: in every table. 2: also in the page's table and the ranking. 3: also in `acls evaluate`. 4: in JSON only."""
    better: Literal["lower", "higher", ""] = "lower"
    """The better direction; empty if neither direction is better."""
    kind: Literal["error", "share", "score"] = "error"
    """Calibration error (positive by noise alone), share of hits (a count divided by n), or any other."""
    unit: Literal["%", ""] = "%"
    """``%`` for a fraction that is printed as a percentage."""
    needs: Literal["", "scores", "classes", "maps"] = ""
    """The input that it needs in addition to the top label: the scores; the probability of every class, which costs
    more and which `Suite` counts only on request; or whole label maps."""
    tally: str = ""
    """The class that computes it, if it is not one of the classes in every `Suite`."""

    @property
    def title(self) -> str:
        """The label with its unit, for the heading of a column."""
        return f"{self.label} {self.unit}".rstrip()

    @property
    def scale(self) -> float:
        """The factor between a value and its printed number."""
        return 100.0 if self.unit else 1.0

    @property
    def decimals(self) -> int:
        return 2 if self.unit else 4

    @property
    def sign(self) -> int:
        """1 if lower is better, -1 if higher is better. Sort by value times sign to get the best first."""
        return -1 if self.better == "higher" else 1

    def show(self, value: float | None, *, sign: bool = False) -> str:
        """Return the printed value without its unit; an empty string for None.

        >>> CATALOGUE["ece"].show(0.05321), CATALOGUE["nll"].show(-0.25, sign=True)
        ('5.32', '-0.2500')
        """
        return "" if value is None else f"{self.scale * value:{'+' if sign else ''}.{self.decimals}f}"

    def phrase(self, value: float) -> str:
        """Return the value with its label and unit, for a line of text.

        >>> CATALOGUE["ece"].phrase(0.05321)
        'ECE 5.32 %'
        """
        return f"{self.label} {in_percent(value, self.decimals) if self.unit else self.show(value)}"


def in_percent(fraction: float, decimals: int = 2) -> str:
    """Return a fraction in percent with its unit, for a line of text.

    >>> in_percent(0.05321)
    '5.32 %'
    """
    return f"{100 * fraction:.{decimals}f} %"


CATALOGUE: dict[str, Metric] = {
    one["name"]: Metric(**one) for one in json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
}
"""All metrics by name, in the order in which they are shown."""


def metric(name: str) -> Metric:
    """Return the metric of that name. A metric outside the catalogue is printed by name with four decimals."""
    return CATALOGUE.get(name) or Metric(name, name, "", 4, "", "score", unit="")


def names(level: int = 4, *, among: Container[str] | None = None) -> list[str]:
    """Return the names of the metrics up to a level, in order. ``among`` keeps only the names that it contains.

    >>> names(1)
    ['accuracy', 'miou', 'ece', 'aece', 'nll']
    >>> names(2, among={"ece": 0.05, "n": 100})
    ['ece']
    """
    return [one.name for one in CATALOGUE.values() if one.level <= level and (among is None or one.name in among)]


def selectable(*, maps: bool) -> list[str]:
    """Return the metrics that can select a checkpoint: directed metrics that training computes after every epoch."""
    computed = {"", "scores", "maps"} if maps else {"", "scores"}
    return [one.name for one in CATALOGUE.values() if one.better and one.needs in computed]
