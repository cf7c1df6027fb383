"""The subjects of a page: networks, each measured before and after post-hoc calibration, with names and ranking.

Networks with the same name are always seeds of one method.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any

from acls.calibrators import Temperature
from acls.errors import InputError
from acls.options import leaves
from acls.recipes import Recipe
from acls.report.results import RANKED, grouped
from acls.results import Record
from acls.results.details import Mistake
from acls.study.ranking import Ranked, rank
from acls.study.runs import FREE


@dataclass(frozen=True)
class Subject:
    """One network: a run, a cell of a study, or a file of predictions."""

    source: str
    states: tuple[Record, ...]
    """The first is the network without post-hoc calibration; all have the same method and seed."""
    temperature: float | None = None
    """The fitted temperature, if there is one."""
    note: str = ""
    """A remark on how the calibration was fitted."""
    names: tuple[str, ...] = ()
    """The names of the classes, if they are known."""
    pictures: Mapping[int, str] = field(default_factory=dict)
    """Data URLs of the pictures of mistakes, by row or, for pixels, by image."""
    history: tuple[Mapping[str, float], ...] = ()
    """A row per epoch, as in metrics.csv."""
    settings: str = ""
    """The recipe as text."""
    environment: Mapping[str, Any] = field(default_factory=dict)
    recipe: Recipe | None = None
    """The recipe that trained the network, if it is known."""
    study: str = ""
    """The folder of the study that the network belongs to."""

    @property
    def method(self) -> str:
        return self.as_is.method

    @property
    def seed(self) -> int | None:
        return self.as_is.seed

    @property
    def title(self) -> str:
        """The method with its seed."""
        return self.method if self.seed is None else f"{self.method}, seed {self.seed}"

    @property
    def place(self) -> str:
        """The folder of its study, or its own folder."""
        return self.study or self.source

    @property
    def as_is(self) -> Record:
        return self.states[0]

    @property
    def mistakes(self) -> tuple[Mistake, ...]:
        return self.as_is.result.details.mistakes

    def plain(self) -> dict[str, Any]:
        """Return a short description of the network, for JSON."""
        ece = self.as_is.result.get("ece")
        return {"name": self.method, "seed": self.seed, "ece": ece, "temperature": self.temperature}

    @property
    def scaled(self) -> Record | None:
        """Return the first state after temperature scaling, whatever its settings, or None."""
        return next((state for state in self.states if state.posthoc.partition("(")[0] == Temperature.__name__), None)


def records(subjects: Sequence[Subject]) -> list[Record]:
    """Return all states of all subjects, for tables and rankings."""
    return [state for subject in subjects for state in subject.states]


def by_method(subjects: Sequence[Subject]) -> dict[str, list[Subject]]:
    """Group the subjects by method; after `told_apart`, the subjects of a method are its seeds."""
    return grouped(subjects, attrgetter("method"))


def same_samples(subjects: Sequence[Subject]) -> bool:
    """Return whether all networks were tested on the same samples: equal number, data set and labels, if known.

    ECEs on different samples are not comparable, so such networks are not ranked.
    """
    results = [subject.as_is.result for subject in subjects]
    labels = {result.labels for result in results if result.labels is not None}
    data = {subject.recipe.data.name for subject in subjects if subject.recipe is not None}
    return len({result.n for result in results}) == 1 and len(labels) <= 1 and len(data) <= 1


def by_protocol(all_records: Sequence[Record]) -> list[list[Record]]:
    """Group the records by protocol: the metrics in one table must be computed in the same way."""
    return list(grouped(all_records, lambda record: repr(sorted(record.protocol.items()))).values())


def rank_subjects(subjects: Sequence[Subject]) -> list[Ranked]:
    """Rank the subjects by each metric; return an empty list if their samples or protocols differ."""
    if len(by_protocol(records(subjects))) > 1 or not same_samples(subjects):
        return []
    try:
        return rank(records(subjects), RANKED)
    except InputError:  # the units differ
        return []


def told_apart(subjects: Sequence[Subject]) -> list[Subject]:
    """Rename subjects so that only seeds of one method share a name: same settings, and each seed once.

    Networks with the same name but different settings get the settings in their names, such as ``CE · epochs 3``.
    Networks that have even the same seed get their folders, such as ``CE · runs/first``. A mean and a standard
    deviation over such networks would not be a mean and a standard deviation over seeds.
    """
    named = _renamed(_renamed(subjects, _settings), _places)
    for (place, *_), times in Counter((one.place, one.method, one.seed) for one in named).items():
        if times > 1:
            raise InputError(f"expected each run, study and file once, got {place} {times} times")
    return named


def _renamed(subjects: Sequence[Subject], tell: Callable[[Sequence[Subject]], list[str]]) -> list[Subject]:
    """Return the subjects with the additions to their names that ``tell`` returns for those of the same name."""
    new = {
        id(one): text for group in by_method(subjects).values() for one, text in zip(group, tell(group), strict=True)
    }
    return [named(one, method=f"{one.method} · {new[id(one)]}") if new[id(one)] else one for one in subjects]


def named(subject: Subject, **about: Any) -> Subject:
    """Return the subject with another ``method`` or ``seed``."""
    return replace(subject, states=tuple(replace(state, **about) for state in subject.states))


def _settings(group: Sequence[Subject]) -> list[str]:
    """Return the first settings that distinguish all subjects with different settings; empty if all are equal."""
    names = [name for name in leaves(Recipe) if not {name, name.split(".")[0]} & FREE]
    known = [{name: attrgetter(name)(one.recipe) for name in names if one.recipe is not None} for one in group]

    def kinds(chosen: Sequence[str]) -> int:
        return len({tuple(repr(settings.get(name)) for name in chosen) for settings in known})

    chosen: list[str] = []
    for name in names:
        if kinds([*chosen, name]) > kinds(chosen):
            chosen.append(name)
    return [", ".join(_written(name, settings[name]) for name in chosen) if settings else "" for settings in known]


def _written(name: str, value: Any) -> str:
    """Return a setting as a part of a name; the recipe's own name needs no title."""
    return str(value) if name == "name" else f"{name} {'none' if value is None else value}"


def _places(group: Sequence[Subject]) -> list[str]:
    """Return the folder of each subject if a seed occurs twice, because these are not two different seeds."""
    repeated = len({one.seed for one in group}) < len(group)
    return [one.place if repeated else "" for one in group]
