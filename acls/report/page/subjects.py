"""What a page is about: networks, each as it is and after post-hoc calibration, measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from acls.recipes import Recipe
from acls.results import Record
from acls.results.details import Mistake
from acls.study.runs import NONE as AS_IS


@dataclass(frozen=True)
class Subject:
    """One network: a run, a cell of a study, or a file of predictions."""

    method: str
    seed: int | None
    source: str
    states: tuple[Record, ...]
    """The first is the network as it is."""
    temperature: float | None = None
    """The T of temperature scaling, where it was fitted."""
    note: str = ""
    """How the numbers after calibration came about, where a reader would ask."""
    names: tuple[str, ...] = ()
    """Of the classes, where they are known."""
    pictures: Mapping[int, str] = field(default_factory=dict)
    """Data addresses of the mistakes' pictures, by row or, for pixels, by image."""
    history: tuple[Mapping[str, float], ...] = ()
    """A row per epoch, as in metrics.csv."""
    settings: str = ""
    """The recipe as text."""
    environment: Mapping[str, Any] = field(default_factory=dict)
    recipe: Recipe | None = None
    """What it was trained by, where that is known."""
    study: str = ""
    """The folder of the study that it is of."""

    @property
    def as_is(self) -> Record:
        return self.states[0]

    @property
    def mistakes(self) -> tuple[Mistake, ...]:
        details = self.as_is.result.details
        return () if details is None else details.mistakes

    def after(self, posthoc: str) -> Record | None:
        """The state after that post-hoc method, if it is there."""
        return next((state for state in self.states[1:] if state.posthoc == posthoc), None)


def records(subjects: Sequence[Subject]) -> list[Record]:
    """Every state of every subject, for tables and rankings."""
    return [state for subject in subjects for state in subject.states]


def by_method(subjects: Sequence[Subject]) -> dict[str, list[Subject]]:
    """The subjects of each method, its seeds; `acls.report.page.naming` sees to it that they are."""
    methods: dict[str, list[Subject]] = {}
    for subject in subjects:
        methods.setdefault(subject.method, []).append(subject)
    return methods


def same_samples(subjects: Sequence[Subject]) -> bool:
    """Whether all were tested on the same samples, as far as is known: as many, of one data set, with the same labels.

    An ECE on other samples is another question's answer, so such networks are not ranked.
    """
    results = [subject.as_is.result for subject in subjects]
    labels = {result.labels for result in results if result.labels is not None}
    data = {subject.recipe.data.name for subject in subjects if subject.recipe is not None}
    return len({result.n for result in results}) == 1 and len(labels) <= 1 and len(data) <= 1


def by_protocol(all_records: Sequence[Record]) -> list[list[Record]]:
    """The records that can stand in one table, group by group: those whose numbers were computed in the same way."""
    groups: list[list[Record]] = []
    for record in all_records:
        same = next((group for group in groups if group[0].protocol == record.protocol), None)
        if same is None:
            groups.append([record])
        else:
            same.append(record)
    return groups


__all__ = ["AS_IS", "Mistake", "Record", "Subject", "by_method", "by_protocol", "records", "same_samples"]
