"""What a page is about: networks, each as it is and after post-hoc calibration, measured, named and ranked.

What has the same name is the seeds of one method, and nothing else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any

from acls.errors import InputError
from acls.options import leaves
from acls.recipes import Recipe
from acls.report.results import RANKED
from acls.results import Record
from acls.results.details import Mistake
from acls.study.ranking import Ranked, rank
from acls.study.runs import FREE


@dataclass(frozen=True)
class Subject:
    """One network: a run, a cell of a study, or a file of predictions."""

    source: str
    states: tuple[Record, ...]
    """The first is the network as it is; all have the same method and seed."""
    temperature: float | None = None
    """The T of temperature scaling, where it was fitted."""
    note: str = ""
    """How the calibration was fitted, where a reader would ask."""
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
        """Where it is: the folder of its study, or its own."""
        return self.study or self.source

    @property
    def as_is(self) -> Record:
        return self.states[0]

    @property
    def mistakes(self) -> tuple[Mistake, ...]:
        details = self.as_is.result.details
        return () if details is None else details.mistakes

    def plain(self) -> dict[str, Any]:
        """The network in one line, as JSON has it."""
        ece = self.as_is.result.get("ece")
        return {"name": self.method, "seed": self.seed, "ece": ece, "temperature": self.temperature}

    def after(self, posthoc: str) -> Record | None:
        """The state after that post-hoc method, if it is there."""
        return next((state for state in self.states[1:] if state.posthoc == posthoc), None)


def records(subjects: Sequence[Subject]) -> list[Record]:
    """Every state of every subject, for tables and rankings."""
    return [state for subject in subjects for state in subject.states]


def by_method(subjects: Sequence[Subject]) -> dict[str, list[Subject]]:
    """The subjects of each method, its seeds; `told_apart` sees to it that they are."""
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
        same = next((group for group in groups if group[0].protocol == record.protocol), [])
        groups += [] if same else [same]
        same.append(record)
    return groups


def rank_subjects(subjects: Sequence[Subject]) -> list[Ranked]:
    """The best by each metric against all others; nothing where samples or protocols are not the same."""
    if len(by_protocol(records(subjects))) > 1 or not same_samples(subjects):
        return []
    try:
        return rank(records(subjects), RANKED)
    except InputError:  # other units
        return []


def told_apart(subjects: Sequence[Subject]) -> list[Subject]:
    """The subjects under names that only the seeds of one method share: trained by the same settings, each seed once.

    Of one name, networks of other settings are told apart by these, as ``CE · epochs 3``, and those that agree even in
    the seed by where they are, as ``CE · runs/first``. A mean over them would be of nothing, and its spread no seeds'.
    """
    named = _renamed(_renamed(subjects, _settings), _places)
    for (place, *_), times in Counter((one.place, one.method, one.seed) for one in named).items():
        if times > 1:
            raise InputError(f"expected each run, study and file once, got {place} {times} times")
    return named


def _renamed(subjects: Sequence[Subject], tell: Callable[[Sequence[Subject]], list[str]]) -> list[Subject]:
    """The subjects with what ``tell`` says of each among those of its name."""
    new = {
        id(one): text for group in by_method(subjects).values() for one, text in zip(group, tell(group), strict=True)
    }
    return [named(one, method=f"{one.method} · {new[id(one)]}") if new[id(one)] else one for one in subjects]


def named(subject: Subject, **about: Any) -> Subject:
    """The subject with another ``method`` or ``seed``."""
    return replace(subject, states=tuple(replace(state, **about) for state in subject.states))


def _settings(group: Sequence[Subject]) -> list[str]:
    """The first settings that tell all apart that have not the same; nothing where all have."""
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
    """A setting as a name holds it; the recipe's own name needs no title."""
    return str(value) if name == "name" else f"{name} {'none' if value is None else value}"


def _places(group: Sequence[Subject]) -> list[str]:
    """Where each is, if a seed is there twice: the same settings and seed are no two seeds."""
    repeated = len({one.seed for one in group}) < len(group)
    return [one.place if repeated else "" for one in group]
