"""What a page is about: networks, each as it is and after post-hoc calibration, measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from acls.metrics import Blocks, Suite
from acls.recipes import Recipe
from acls.study.runs import NONE
from acls.study.store import Number

AS_IS = NONE
"""The name of a network's outputs as they are, as in the store of a study."""

Numbers = Mapping[str, Number]


@dataclass(frozen=True)
class Mistake:
    """A wrong prediction."""

    row: int
    """Its place in the data."""
    label: int
    predicted: int
    confidence: float
    image: int | None = None


@dataclass(frozen=True)
class State:
    """A network's outputs as they are, or after a post-hoc method."""

    name: str
    numbers: Numbers
    n: int
    suite: Suite | None = None
    """The sums that diagrams are drawn from, where there are outputs."""
    temperature: float | None = None
    note: str = ""
    """How the numbers came about, where a reader would ask."""
    protocol: Mapping[str, Any] = field(default_factory=dict)
    blocks: Callable[[], Blocks] | None = field(default=None, repr=False)
    """Counts the outputs anew, in blocks that can be compared with another's on the same samples."""
    labels: int | None = None
    """A hash of the labels in their order, where there are outputs: the same for the same samples."""


@dataclass(frozen=True)
class Subject:
    """One network: a run, a cell of a study, or a file of predictions."""

    method: str
    seed: int | None
    source: str
    states: tuple[State, ...]
    """The first is the network as it is."""
    names: tuple[str, ...] = ()
    """Of the classes, where they are known."""
    by_image: bool = False
    """Whether rows are pixels, so that intervals are over images and the noise floor is too low."""
    mistakes: tuple[Mistake, ...] = ()
    pictures: Mapping[int, str] = field(default_factory=dict)
    """Data addresses of the mistakes' pictures, by row or, for pixels, by image."""
    history: tuple[Mapping[str, float], ...] = ()
    """A row an epoch, as in metrics.csv."""
    settings: str = ""
    """The recipe as text."""
    environment: Mapping[str, Any] = field(default_factory=dict)
    recipe: Recipe | None = None
    """What it was trained by, where that is known."""
    study: str = ""
    """The folder of the study that it is of."""

    @property
    def as_is(self) -> State:
        return self.states[0]

    def after(self, name: str) -> State | None:
        """The state after that post-hoc method, if it is there."""
        return next((state for state in self.states[1:] if state.name == name), None)


@dataclass(frozen=True)
class Line:
    """A state as a table wants it: see `acls.report.results.Result`."""

    method: str
    posthoc: str
    seed: int | None
    n: int
    metrics: Numbers
    protocol: Mapping[str, Any]


def lines(subjects: Sequence[Subject]) -> list[Line]:
    """Every state of every subject, for the tables."""
    return [
        Line(subject.method, state.name, subject.seed, state.n, state.numbers, state.protocol)
        for subject in subjects
        for state in subject.states
    ]


def same_samples(subjects: Sequence[Subject]) -> bool:
    """Whether all were tested on the same samples, as far as is known: as many, of one data set, with the same labels.

    An ECE on other samples is another question's answer, so such networks are not ranked.
    """
    states = [subject.as_is for subject in subjects]
    labels = {state.labels for state in states if state.labels is not None}
    data = {subject.recipe.data.name for subject in subjects if subject.recipe is not None}
    return len({state.n for state in states}) == 1 and len(labels) <= 1 and len(data) <= 1


def by_protocol(all_lines: Sequence[Line]) -> list[list[Line]]:
    """The lines that can stand in one table, group by group: those whose numbers were computed in the same way."""
    groups: list[list[Line]] = []
    for line in all_lines:
        same = next((group for group in groups if group[0].protocol == line.protocol), None)
        if same is None:
            groups.append([line])
        else:
            same.append(line)
    return groups
