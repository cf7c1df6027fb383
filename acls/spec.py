"""Convert losses, calibrators and methods between text, dictionaries and objects.

The text is what an object prints, for example ``ACLS(margin=6.0, base=Focal(gamma=1.0))``. Words need no quotes, and a
method without fields needs no parentheses. The dictionary is what `Configured.settings` returns:
``{"name": "ACLS", "margin": 6.0, ...}``. Parsing text does not import torch.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import math
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, TypeVar

from acls.errors import InputError, suggest

T = TypeVar("T")
_WORDS = {"true": True, "false": False, "none": None}
"""Constants, as JSON, YAML and Python write them."""
_UNREADABLE = (SyntaxError, ValueError, TypeError, RecursionError, MemoryError)
"""The errors that Python's parser raises for text that is not Python."""


@dataclass(frozen=True)
class Spec:
    """The name of a method and the fields that were given; a field that is itself a method is a `Spec`."""

    name: str
    fields: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, given: Any, what: str = "method") -> Spec:
        """Make a spec from the text of one method, a dictionary with a name, a class, or an object that has `settings`.

        >>> Spec.of({"name": "MDCA", "base": {"name": "Focal", "gamma": 1.0}})
        Spec(name='MDCA', fields={'base': Spec(name='Focal', fields={'gamma': 1.0})})
        """
        if isinstance(given, Spec):
            return given
        if isinstance(given, str):
            specs = parse(given, what)
            if len(specs) != 1:
                raise InputError(f"expected one {what}, got {len(specs)}: {given!r}")
            return specs[0]
        if isinstance(given, type):
            return cls(given.__name__)
        plain = given.settings() if hasattr(given, "settings") else given
        if not isinstance(plain, Mapping) or not isinstance(plain.get("name"), str):
            raise InputError(f"expected a {what} by its name, or a dictionary with a name, got {given!r}")
        fields = {name: cls.of(value) if _is_spec(value) else value for name, value in plain.items() if name != "name"}
        return cls(plain["name"], fields)

    def plain(self) -> dict[str, Any]:
        """Return the name and the fields as one dictionary, for JSON and YAML."""
        fields = {name: value.plain() if isinstance(value, Spec) else value for name, value in self.fields.items()}
        return {"name": self.name, **fields}

    def names(self) -> set[str]:
        """Return the names of this method and of all methods nested in it."""
        inner = [value.names() for value in self.fields.values() if isinstance(value, Spec)]
        return {self.name}.union(*inner, {value for value in self.fields.values() if isinstance(value, str)})

    def __str__(self) -> str:
        """Return the text that is parsed to this spec."""
        fields = (f"{name}={value if isinstance(value, Spec) else repr(value)}" for name, value in self.fields.items())
        return f"{self.name}({', '.join(fields)})" if self.fields else self.name


def written(method: object) -> str:
    """Return the text of an object as a user would type it: ``CE``, ``ACLS(margin=6.0)``."""
    return repr(method).removesuffix("()")


def parse(text: str, what: str = "method", groups: Mapping[str, Sequence[str]] | None = None) -> list[Spec]:
    """Parse methods separated by commas; the name of a group is replaced by its members.

    >>> parse("CE, ACLS(form=released)")
    [Spec(name='CE', fields={}), Spec(name='ACLS', fields={'form': 'released'})]
    """
    try:
        entries = ast.parse(f"[{text}]", mode="eval").body
    except _UNREADABLE:
        entries = None
    if not isinstance(entries, ast.List) or not entries.elts:
        raise InputError(f"expected a {what}, or several separated by commas, such as NAME(FIELD=VALUE), got {text!r}")
    members = {group: [Spec(name) for name in names] for group, names in (groups or {}).items()}
    specs = [_spec(entry, text) for entry in entries.elts]
    return [member for spec in specs for member in members.get(str(spec), [spec])]


def parse_value(text: str) -> Any:
    """Parse the value of a field: a number, a string, true, false or none, a list, or a method."""
    try:
        return _value(ast.parse(text.strip(), mode="eval").body, text)
    except _UNREADABLE as error:
        if isinstance(error, InputError):
            raise
        return text  # a path, or words: the type of the field decides whether they are valid


def build(given: Any, kinds: Mapping[str, type[T]], what: str, **fields: Any) -> T:
    """Make the object, with its nested objects, from text, a dictionary or a `Spec`; return an object unchanged.

    ``kinds`` are the classes by name; names ignore case. ``fields`` are added to the given fields.
    """
    if not fields and isinstance(given, tuple(kinds.values())):
        return typing.cast("T", given)
    spec = Spec.of(given, what)
    if twice := sorted(spec.fields.keys() & fields.keys()):
        raise InputError(f"{spec}: {twice[0]} is given twice")
    kind = kinds[find(spec.name, kinds, what)]
    hints, values = field_types(kind), dict[str, Any]()
    upgraded = getattr(kind, "upgraded", dict)  # a class may rename or drop fields that an earlier version recorded
    for name, value in upgraded({**spec.fields, **fields}).items():
        if _is_family(hints.get(name), kinds) and not isinstance(value, hints[name]):
            if not _is_named(value):
                raise InputError(f"{kind.__name__}({name}={value!r}): expected a {what}, got {value!r}")
            values[name] = build(value, kinds, what)
        else:
            values[name] = str(value) if isinstance(value, Spec) else value
    return kind(**values)


def find(name: str, known: Iterable[str], what: str) -> str:
    """Return the known name that equals ``name``, ignoring case."""
    by_name = {one.lower(): one for one in known}
    if name.lower() not in by_name:
        raise InputError(f"there is no {what} {name!r}{suggest(name, by_name.values())}")
    return by_name[name.lower()]


def fill(spec: Spec, kinds: Mapping[str, type[T]], what: str, values: Mapping[str, Any]) -> Spec:
    """Add each value to the method and its nested methods where they have that field and it was not given.

    Boolean fields are skipped, because they have another meaning: CRL's ``margin`` is not a distance of logits.
    """
    hints = field_types(kinds[find(spec.name, kinds, what)])
    added = {name: value for name, value in values.items() if name in hints and hints[name] is not bool}
    given = dict(spec.fields)
    for name, value in given.items():
        if _is_family(hints.get(name), kinds) and _is_named(value):
            given[name] = fill(Spec.of(value), kinds, what, values)
    return Spec(spec.name, {**added, **given})


def _field_types(kind: Any) -> dict[str, Any]:
    try:
        hints = typing.get_type_hints(kind)
    except NameError:
        hints = {}
    return {one.name: hints.get(one.name, Any) for one in dataclasses.fields(kind) if one.init}


field_types: Callable[[type], dict[str, Any]] = functools.cache(_field_types)
"""Return the type of each init field of a class; `Any` where an annotation cannot be resolved."""


def check_field(owner: str, name: str, value: object, kind: Any) -> None:
    """Raise an error unless the value matches the field's type and its numbers are finite; see also `check_range`."""
    options = typing.get_args(kind) if typing.get_origin(kind) in (typing.Union, types.UnionType) else (kind,)
    if value is None and type(None) in options:
        return
    bases = [getattr(typing.get_origin(option) or option, "__name__", "") for option in options]
    known = [_EXPECTED[base] for base in bases if base in _EXPECTED]
    if known and not any(fits(value) for _, fits in known):
        raise InputError(
            f"{owner}({name}={value!r}): expected {' or '.join(words for words, _ in known)}, got {value!r}"
        )


def _is_number(value: object) -> bool:
    if isinstance(value, str | bool | Sequence | Mapping) or value is None:
        return False
    return not isinstance(value, Real) or math.isfinite(value)


def _is_numbers(value: object) -> bool:
    return all(map(_is_number, value)) if isinstance(value, list | tuple) else not isinstance(value, str | Mapping)


_EXPECTED: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "float": ("a finite number", _is_number),
    "int": ("a whole number", lambda value: _is_number(value) and not isinstance(value, float)),
    "bool": ("True or False", lambda value: isinstance(value, bool) or _is_number(value)),
    "str": ("a string", lambda value: isinstance(value, str)),
    "tuple": ("several values, such as (0.25, 0.5)", lambda value: isinstance(value, list | tuple)),
    "Tensor": ("a list of numbers", _is_numbers),
}
"""For each type name: a description of the type, and a function that returns whether a value matches it."""


def _is_family(hint: Any, kinds: Mapping[str, type]) -> bool:
    """Return whether a field of that type contains an object of one of the kinds."""
    return isinstance(hint, type) and hint is not object and any(issubclass(kind, hint) for kind in kinds.values())


def _is_spec(value: object) -> bool:
    return isinstance(value, Spec) or hasattr(value, "settings") or (isinstance(value, Mapping) and "name" in value)


def _is_named(value: object) -> bool:
    return _is_spec(value) or isinstance(value, str)


def _spec(entry: ast.expr, text: str) -> Spec:
    if isinstance(entry, ast.Name):
        return Spec(entry.id)
    if isinstance(entry, ast.Call) and isinstance(entry.func, ast.Name) and not entry.args:
        fields: dict[str, Any] = {}
        for keyword in entry.keywords:
            if keyword.arg is None or keyword.arg in fields:
                why = "expected FIELD=VALUE" if keyword.arg is None else f"{keyword.arg} is given twice"
                raise InputError(f"{ast.unparse(entry)}: {why}")
            fields[keyword.arg] = _value(keyword.value, text)
        return Spec(entry.func.id, fields)
    raise InputError(f"expected a method such as NAME(FIELD=VALUE), got {ast.unparse(entry)!r} in {text!r}")


def _value(value: ast.expr, text: str) -> Any:
    if isinstance(value, ast.Name):
        return _WORDS.get(value.id.lower(), value.id)
    if isinstance(value, ast.Call):
        return _spec(value, text)
    try:
        return ast.literal_eval(value)
    except _UNREADABLE:
        # A hyphenated word, such as printed-loss, parses as a difference of names.
        word = ast.unparse(value).replace(" - ", "-")
    if not re.fullmatch(r"[A-Za-z_][\w-]*", word):
        raise InputError(f"expected a number, a string, a list or a method, got {word!r} in {text!r}")
    return word
