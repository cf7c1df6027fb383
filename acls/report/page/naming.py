"""Names of the networks on a page: what has the same name is a method's seeds, and nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

from acls.errors import InputError
from acls.options import leaves
from acls.recipes import Recipe
from acls.report.page.subjects import Subject, by_method

_FREE = ("seed", "log", "loss")
"""Settings in which the seeds of a method may differ; the loss is its name."""


def told_apart(subjects: Sequence[Subject]) -> list[Subject]:
    """The subjects under names that only the seeds of one method share: trained by the same settings, each seed once.

    Of one name, networks of other settings are told apart by these, as ``CE · epochs 3``, and those that agree even in
    the seed by where they are, as ``CE · runs/first``. A mean over them would be of nothing, and its spread no seeds'.
    """
    named = _renamed(_renamed(subjects, _settings), _places)
    for (place, *_), times in Counter((_place(one), one.method, one.seed) for one in named).items():
        if times > 1:
            raise InputError(f"{place} came {times} times: name each run, study and file once")
    return named


def _renamed(subjects: Sequence[Subject], tell: Callable[[Sequence[Subject]], list[str]]) -> list[Subject]:
    """The subjects with what ``tell`` says of each among those of its name."""
    told = {
        id(one): text for group in by_method(subjects).values() for one, text in zip(group, tell(group), strict=True)
    }
    return [_named(one, f"{one.method} · {told[id(one)]}") if told[id(one)] else one for one in subjects]


def _named(subject: Subject, method: str) -> Subject:
    return replace(subject, method=method, states=tuple(replace(state, method=method) for state in subject.states))


def _settings(group: Sequence[Subject]) -> list[str]:
    """The first settings that tell all apart that have not the same; nothing where all have."""
    known = [_flat(one.recipe) for one in group]
    chosen: list[str] = []
    for name in leaves(Recipe):
        if _kinds(known, [*chosen, name]) > _kinds(known, chosen):
            chosen.append(name)
    return [", ".join(_written(name, settings[name]) for name in chosen) if settings else "" for settings in known]


def _places(group: Sequence[Subject]) -> list[str]:
    """Where each is, if a seed is there twice: the same settings and seed are no two seeds."""
    repeated = len({one.seed for one in group}) < len(group)
    return [_place(one) if repeated else "" for one in group]


def _place(subject: Subject) -> str:
    return subject.study or subject.source


def _flat(recipe: Recipe | None) -> dict[str, Any]:
    if recipe is None:
        return {}
    return {name: attrgetter(name)(recipe) for name in leaves(Recipe) if name.split(".")[0] not in _FREE}


def _kinds(known: Sequence[Mapping[str, Any]], names: Sequence[str]) -> int:
    return len({tuple(repr(settings.get(name)) for name in names) for settings in known})


def _written(name: str, value: Any) -> str:
    """A setting as a name holds it; the recipe's own name needs no title."""
    return str(value) if name == "name" else f"{name} {'none' if value is None else value}"
