"""The metrics, each written once: what it is, what it is called, how it is printed, which way is better, what it needs.

Tables, page, JSON, ranking, checkpoint selection and docs read this. A new metric is one tally that computes it and one
line of ``catalogue.json``, which names the tally; the order of the lines is the order in which metrics are shown.
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
    """Its key in `Suite.summary`, in stores and in JSON."""
    label: str
    about: str
    """What it is, in one phrase."""
    level: int
    """1: in every table. 2: also in the page's table and the ranking. 3: also in `acls evaluate`. 4: in JSON only."""
    better: Literal["lower", "higher", ""] = "lower"
    """Empty for a number that is neither good nor bad."""
    kind: Literal["error", "share", "score"] = "error"
    """A calibration error, which noise alone makes positive; a share of hits, which is a count over n; any other."""
    unit: Literal["%", ""] = "%"
    """``%`` for a fraction that is printed as a percentage."""
    needs: Literal["", "scores", "classes", "maps"] = ""
    """What it is computed from beside the top label: the scores; every class's probability, which costs more and which
    `Suite` counts when asked to; whole label maps."""
    tally: str = ""
    """The class that computes it, where it is none of those that every `Suite` has."""

    @property
    def title(self) -> str:
        """The label with its unit, as a column's heading."""
        return f"{self.label} {self.unit}".rstrip()

    @property
    def scale(self) -> float:
        """What a value is multiplied by to be printed."""
        return 100.0 if self.unit else 1.0

    @property
    def decimals(self) -> int:
        return 2 if self.unit else 4

    @property
    def sign(self) -> int:
        """1 where lower is better, -1 where higher is: what to sort values by, the best first."""
        return -1 if self.better == "higher" else 1

    def show(self, value: float | None, *, sign: bool = False) -> str:
        """The value as it is printed, without the unit; nothing for None.

        >>> CATALOGUE["ece"].show(0.05321), CATALOGUE["nll"].show(-0.25, sign=True)
        ('5.32', '-0.2500')
        """
        return "" if value is None else f"{self.scale * value:{'+' if sign else ''}.{self.decimals}f}"

    def phrase(self, value: float) -> str:
        """The value with label and unit, for a line of text.

        >>> CATALOGUE["ece"].phrase(0.05321)
        'ECE 5.32 %'
        """
        return f"{self.label} {self.show(value)} {self.unit}".rstrip()


CATALOGUE: dict[str, Metric] = {
    one["name"]: Metric(**one) for one in json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
}
"""By name, in the order in which they are shown."""


def metric(name: str) -> Metric:
    """The metric of that name; one that is not in the catalogue is printed by its name with four decimals."""
    return CATALOGUE.get(name) or Metric(name, name, "", 4, "", "score", unit="")


def names(level: int = 4, *, among: Container[str] | None = None) -> list[str]:
    """The names of the metrics up to a level, in order; ``among`` keeps those that it contains.

    >>> names(1)
    ['accuracy', 'miou', 'ece', 'aece', 'nll']
    >>> names(2, among={"ece": 0.05, "n": 100})
    ['ece']
    """
    return [one.name for one in CATALOGUE.values() if one.level <= level and (among is None or one.name in among)]


def selectable(*, maps: bool) -> list[str]:
    """The metrics that can choose a checkpoint: one end is better, and training computes them after every epoch."""
    computed = {"", "scores", "maps"} if maps else {"", "scores"}
    return [one.name for one in CATALOGUE.values() if one.better and one.needs in computed]
