"""Find the arrays or columns of a file that contain scores, labels and groups."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Container, Mapping
from dataclasses import dataclass, fields
from typing import Any

from acls.errors import InputError, suggest
from acls.predictions.core import MULTILABEL, Kind

_SCORES: dict[Kind, tuple[str, ...]] = {"logits": ("logits",), "probs": ("probs", "p"), "log_probs": ("log_probs",)}
"""Default names for each kind of scores: p0, p1, ... are probabilities."""
_LABELS = ("label", "target", "targets", "y", "y_true", "truth", "true", "class", "gt")
_CORRECT = ("correct", "is_correct", "iscorrect", "correctness", "was_correct", "right", "is_right", "ok")
_STATED = re.compile(r"conf|(?<!un)certain|(?<![a-z])(stated|said|sure)", re.IGNORECASE)
"""Common parts of column names for stated confidences."""


@dataclass(frozen=True)
class Ref:
    """One array or column, or the part of an array at an index into its leading axes."""

    name: str
    index: tuple[int, ...] = ()

    def __str__(self) -> str:
        return self.name + (f"[{','.join(map(str, self.index))}]" if self.index else "")


@dataclass(frozen=True)
class Columns:
    """The names of the arrays or columns in a file; None means the default name.

    Name the scores by their kind: ``Columns(logits="resnet20")``. A name can also select a part or several columns:
    ``probs[3]`` is the fourth entry along the leading axis of an array; ``a,b,c`` are the columns of classes 0, 1, 2;
    ``p`` means the columns ``p0, p1, ...`` (or ``p_0, p_1, ...``) if there is no column ``p``.
    """

    logits: str | None = None
    probs: str | None = None
    log_probs: str | None = None
    confidence: str | None = None
    predicted: str | None = None
    correct: str | None = None
    """Column with 1 if the prediction with the stated confidence is right, else 0; labels are then not needed."""
    labels: str | None = None
    group: str | None = None
    image: str | None = None
    weight: str | None = None
    """Column with the weight of each row; it has no default name, because a column ``weight`` may mean anything."""
    unlabelled: bool = False
    """Whether labels, or ``correct``, may be missing; then all rows get the label that is ignored."""

    def __post_init__(self) -> None:
        if len(self._kinds()) > 1:
            said = " and ".join(self._kinds()).replace("triples", "confidences")
            raise InputError(f"{said} are both given: pass one kind of scores")
        if self.correct and (self.predicted or self.labels):
            raise InputError("expected correct, or predicted and labels, got both: correct replaces them")

    @property
    def kind(self) -> Kind | None:
        """The kind of scores that is named; None if it depends on the file."""
        return next(iter(self._kinds()), None)

    def _kinds(self) -> list[Kind]:
        named: dict[Kind, Any] = {kind: getattr(self, kind) for kind in _SCORES}
        named["triples"] = self.confidence or self.predicted or self.correct
        return [kind for kind, name in named.items() if name]

    @classmethod
    def of(cls, **names: str) -> Columns:
        """Make columns from keywords; the error for a wrong keyword suggests the right one."""
        known = [field.name for field in fields(cls) if field.name != "unlabelled"]
        for name in names:
            if name not in known:
                raise InputError(f"there is no kind of column {name!r}{suggest(name, known)}")
        return cls(**names)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Field:
    """The shape and type of one array or column, known before it is read."""

    shape: tuple[int, ...] | None = None
    """None if the file does not give it, for example for the columns of a table."""
    dtype: str = ""
    twice: bool = False
    """Whether several columns of the file have this name."""
    unit: bool = False
    """Whether the first values are known to lie in 0..1 and are not all whole numbers, so that a hint can say probs."""

    def __str__(self) -> str:
        return f"{self.shape}" if self.shape is not None else self.dtype


@dataclass(frozen=True)
class Layout:
    """The position of each role, such as scores and labels, in one file."""

    kind: Kind
    roles: dict[str, tuple[Ref, ...]]
    """``scores``, or ``confidence`` with ``predicted`` or ``correct``; ``labels``; ``group``, ``image``, ``weight``."""

    @property
    def main(self) -> tuple[Ref, ...]:
        """The role that every file has: the scores, or the confidence."""
        return self.roles.get("scores") or self.roles["confidence"]

    @property
    def names(self) -> list[str]:
        """All names to read, without duplicates."""
        return list(dict.fromkeys(ref.name for refs in self.roles.values() for ref in refs))


def resolve(columns: Columns, available: Mapping[str, Field], where: str) -> Layout:
    """Find the columns in a file; for roles that ``columns`` does not name, look for the default names."""
    kind = columns.kind or _kind(available, where, unlabelled=columns.unlabelled)
    roles: dict[str, tuple[Ref, ...]] = {}
    correct = kind == "triples" and _by_correct(columns, available)
    label = columns.labels or "labels"
    if kind == "triples":
        roles["confidence"] = _find(columns.confidence or "confidence", "confidence", available, where)
        last = "correct" if correct else "predicted"
        said = getattr(columns, last) or last
        if said in available or not columns.unlabelled:
            roles[last] = _find(said, last, available, where)
    else:
        said = getattr(columns, kind) or next(name for name in _SCORES[kind] if _present(name, available))
        roles["scores"] = _find(said, kind, available, where)
        _refuse_stated(roles["scores"], kind, label, available, where)
    if not correct and (label in available or not columns.unlabelled):
        roles["labels"] = _labels(label, roles.get("scores", ()), available, where)
    for name in ("group", "image", "weight"):
        said = getattr(columns, name)
        if said or (name in available and name != "weight"):
            roles[name] = _find(said or name, name, available, where)
    layout = Layout(kind, roles)
    for name in layout.names:
        if available[name].twice:
            raise InputError(f"{where} has several columns named {name!r}: rename all but one")
    return layout


def _by_correct(columns: Columns, available: Mapping[str, Field]) -> bool:
    if columns.correct or columns.predicted or columns.labels:
        return columns.correct is not None
    marked = "predicted" in available, "labels" in available
    return not all(marked) if "correct" in available else not any(marked)


def _labels(said: str, scores: tuple[Ref, ...], available: Mapping[str, Field], where: str) -> tuple[Ref, ...]:
    """Find the labels; if they are missing, the error says what the file probably contains instead."""
    taken = {ref.name for ref in scores}
    families = {match[1] for name in available if name not in taken and (match := re.fullmatch(r"(.*?)_?\d+", name))}
    several = next((refs for prefix in sorted(families) if (refs := _numbered(prefix, available))), ())
    if several and said not in available and (said == "labels" or "," in said or _numbered(said, available)):
        raise InputError(f"{where} contains labels {several[0]} to {several[-1]}: {MULTILABEL}")
    return _find(said, "labels", available, where, taken)


def _refuse_stated(refs: tuple[Ref, ...], kind: Kind, said: str, available: Mapping[str, Field], where: str) -> None:
    """Raise an error if a single column, which would hold scores of class 1, is probably a stated confidence."""
    first, field = str(refs[0]), available[refs[0].name]
    several = len(refs) > 1 or "list" in field.dtype or math.prod((field.shape or ())[len(refs[0].index) + 1 :]) != 1
    if not several and (said.lower() in _CORRECT or (kind == "probs" and _STATED.search(first))):
        raise InputError(
            f"{where}: expected the {kind} of class 1 and the true class, got {first!r} and {said!r}, which seem to be "
            f"a stated confidence and whether the answer was right: pass {flag('confidence', first)} "
            f"{flag('correct', said if said in available else 'NAME')}, "
            "or rename the columns if they are what was expected"
        )


def _kind(available: Mapping[str, Field], where: str, *, unlabelled: bool) -> Kind:
    present = [kind for kind, names in _SCORES.items() if any(_present(name, available) for name in names)]
    if len(present) > 1:
        raise InputError(
            f"{where} contains {' and '.join(present)}: choose one, as in {flag(present[0], present[0])} "
            f"or {present[0]}={present[0]!r}"
        )
    if present:
        return present[0]
    if "confidence" in available and (unlabelled or "predicted" in available or "correct" in available):
        return "triples"
    raise InputError(
        f"{where} has nothing named logits, probs or log_probs, nor confidence with predicted or correct; "
        f"it has {_listing(available)}: {_example(available)}"
    )


def _present(name: str, available: Mapping[str, Field]) -> bool:
    return (name in available and name != "p") or bool(_numbered(name, available))


def _example(available: Mapping[str, Field]) -> str:
    stated = next((name for name in available if _STATED.search(name)), None)
    if stated is not None:
        right = next((name for name in available if name.lower() in _CORRECT), "NAME")
        return f"for stated confidences pass {flag('confidence', stated)} {flag('correct', right)}"
    likely = [name for name, field in available.items() if len(field.shape or ()) >= 2]
    prefixes = [match[1] for name in available if (match := re.fullmatch(r"(.*?)_?0", name))]
    unit = ",".join(name for name, field in available.items() if field.unit)
    flat = [unit] * bool(unit) + [name for name, field in available.items() if field.shape]
    name = (likely + prefixes + flat + ["NAME"])[0]
    probable = (unit and unit.startswith(name)) or name.lower().startswith("p") or "prob" in name.lower()
    kind = "probs" if probable else "logits"
    labels = [f" {flag('labels', one)}" for one in available if one.lower() in _LABELS][:1]
    way = f"{flag(kind, name)}{''.join(labels)} or {kind}={name!r}"
    return f"pass the name and the kind of the scores, as in {way}"


def _find(
    said: str, role: str, available: Mapping[str, Field], where: str, taken: Container[str] = ()
) -> tuple[Ref, ...]:
    """Find one array or column, or several for scores; an error message does not suggest the names in ``taken``."""
    names = [said] if said in available or "[" in said else [name.strip() for name in said.split(",")]
    refs = [_exact(name, available, where) for name in names]
    found = tuple(ref for ref in refs if ref is not None)
    if len(found) < len(names):
        found = _numbered(said, available)
    if len(found) > 1 and role not in _SCORES:
        raise InputError(f"{where}: expected one column for the {role}, but {said!r} names {len(found)}")
    if found:
        return found
    name, listed = names[refs.index(None)], _listing(available)
    hint = suggest(name, available)
    if hint.startswith(": did"):
        raise InputError(f"{where} has no {name!r} for the {role}{hint} It has {listed}")
    known = {"labels": _LABELS, "correct": _CORRECT}.get(role, ())
    likely = [name for name in available if name.lower() in known]
    flat = [name for name, one in available.items() if len(one.shape or (0,)) == 1 and name not in taken]
    role, option = ("right answers" if role == "correct" else role), role
    way = f"pass the name of the {role}, as in {flag(option, (*likely, *flat, 'NAME')[0])}"
    raise InputError(f"{where} has no {name!r} for the {role}; it has {listed}: {way}")


def _exact(said: str, available: Mapping[str, Field], where: str) -> Ref | None:
    if said in available:
        return Ref(said)
    match = re.fullmatch(r"(.+)\[(-?\d+(?:,-?\d+)*)\]", said)
    if not match or match[1] not in available:
        return None
    shape = available[match[1]].shape
    if shape is None:
        raise InputError(f"{where}: {said!r}: only arrays can be indexed; {match[1]!r} is a column of a table")
    index = list(zip(map(int, match[2].split(",")), shape, strict=False))
    if not all(-size <= number < size for number, size in index):
        raise InputError(f"{where}: {said!r} is out of range: {match[1]!r} has shape {shape}")
    return Ref(match[1], tuple(number % size for number, size in index))


def _numbered(prefix: str, available: Mapping[str, Field]) -> tuple[Ref, ...]:
    """Return the columns prefix0, prefix1, ... ordered by number; numbers may start at 1, but must have no gap."""
    found = {int(match[1]): name for name in available if (match := re.fullmatch(re.escape(prefix) + r"_?(\d+)", name))}
    numbers = sorted(found)
    if len(found) < 2 or numbers[0] > 1 or numbers[-1] - numbers[0] != len(found) - 1:
        return ()
    return tuple(Ref(found[number]) for number in numbers)


def flag(role: str, name: str) -> str:
    """Return the option for a name in a file, as a user would type it: ``--label 'the label'``."""
    return f"--{'label' if role == 'labels' else role.replace('_', '-')} {shlex.quote(name)}"


def _listing(available: Mapping[str, Field], most: int = 20) -> str:
    names = [f"{name} {field}".strip() for name, field in available.items()]
    more = [f"and {len(names) - most} more"] if len(names) > most else []
    return ", ".join(names[:most] + more) or "nothing"
