"""Settings as nested dataclasses: dotted overrides, plain values for YAML and JSON, help for every field.

This module imports neither torch nor numpy, so that help and listings are printed without delay.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import math
import operator
import re
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from acls.errors import InputError, suggest

S = TypeVar("S")
SEED = "[0, 9223372036854775807]"
"""The range of a seed that torch's generators accept."""
_WORDS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


class SettingError(InputError):
    """A setting has an invalid value; the message starts with its dotted name, which is also its flag."""


def option(default: Any, help: str = "", *, choices: tuple[str, ...] = (), within: str = "") -> Any:
    """Return a dataclass field with its help and its allowed values: a few words, or an interval of numbers.

    An interval is written as in mathematics: ``[0, 1)`` contains 0 but not 1, and ``[1, inf)`` starts at 1. Each object
    gets a copy of a default that is a dictionary.
    """
    start = {"default_factory": default.copy} if isinstance(default, dict) else {"default": default}
    return dataclasses.field(**start, metadata={"help": help, "choices": choices, "within": within})


@dataclasses.dataclass(frozen=True)
class Leaf:
    """A setting with a plain value: its dotted name, type, help and allowed values."""

    name: str
    kind: Any
    help: str = ""
    choices: tuple[str, ...] = ()
    within: str = ""

    def show(self) -> str:
        """Describe the expected value in words for users, for example 'a number in [0, 1)'."""
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        words = show_kind(self.kind)
        return re.sub("numbers?", rf"\g<0> in {self.within}", words, count=1) if self.within else words

    def allows(self, value: Any) -> bool:
        """Return whether a value is one of the choices, and all its numbers lie in the interval."""
        numbers = value if isinstance(value, tuple | list) else () if value is None else (value,)
        chosen = not self.choices or value in self.choices
        return chosen and (not self.within or all(inside(one, self.within) for one in numbers))


def leaves(kind: type, prefix: str = "") -> dict[str, Leaf]:
    """Return all plain settings of a nested dataclass by their dotted names, in the order of declaration.

    >>> @dataclasses.dataclass
    ... class Optim:
    ...     lr: float = option(0.1, "learning rate")
    >>> list(leaves(Optim, "optim."))
    ['optim.lr']
    """
    found: dict[str, Leaf] = {}
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        hint, name = hints[field.name], prefix + field.name
        if dataclasses.is_dataclass(hint):
            found |= leaves(typing.cast("type", hint), name + ".")
        else:
            found[name] = Leaf(name, hint, **field.metadata)
    return found


def override(settings: S, values: Mapping[str, Any]) -> S:
    """Return a copy with some fields replaced, given by dotted name; text is converted to the type of the field."""
    known = leaves(type(settings))
    for name, value in values.items():
        if name not in known:
            raise InputError(f"there is no setting {name!r}{suggest(name, known)}")
        settings = _replace(settings, name.split("."), read(value, known[name]))
    return settings


def read(value: Any, leaf: Leaf) -> Any:
    """Convert text from a command line, or a value from a YAML or JSON file, to the type of the setting."""
    try:
        result = convert(value, leaf.kind)
        if result is not None and not leaf.allows(result):
            raise ValueError
    except (ValueError, TypeError, KeyError, OverflowError, SyntaxError, RecursionError, MemoryError):
        raise SettingError(f"{leaf.name}: expected {leaf.show()}, got {value!r}") from None
    return result


def check(settings: Any) -> None:
    """Raise an error if a nested dataclass contains a value that its options do not allow."""
    for name, leaf in leaves(type(settings)).items():
        read(operator.attrgetter(name)(settings), leaf)


def number(kind: type, within: str) -> Callable[[str], Any]:
    """Return a parser of numbers in an interval, for the ``type`` argument of ``add_argument``."""
    leaf = Leaf("", kind, within=within)

    def parse(text: str) -> Any:
        try:
            return read(text, leaf)
        except SettingError as error:
            raise argparse.ArgumentTypeError(str(error).removeprefix(": ")) from None

    return parse


def check_range(owner: str, name: str, value: Any, metadata: Mapping[str, Any]) -> None:
    """Raise an error if a field of the class ``owner`` has a value that its `option` does not allow."""
    leaf = Leaf(name, float, **metadata)
    if not leaf.allows(value):
        hint = suggest(str(value), leaf.choices) if leaf.choices else ""
        hint = hint if "did you mean" in hint else ""
        raise InputError(f"{owner}({name}={value!r}): expected {leaf.show()}, got {value!r}{hint}")


def inside(value: float, interval: str) -> bool:
    """Return whether a number lies in an interval such as ``[0, 1)``; NaN lies in no interval.

    >>> inside(0, "[0, 1)"), inside(1, "[0, 1)")
    (True, False)
    """
    low, high = (float(end) for end in interval[1:-1].split(","))
    above = value >= low if interval[0] == "[" else value > low
    return above and (value <= high if interval[-1] == "]" else value < high)


def convert(value: Any, kind: Any) -> Any:
    """Convert text or a plain value to a type: str, int, float, bool, ``T | None``, ``tuple[T, ...]`` or dict.

    Numbers must be finite.
    """
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        (own,) = set(arguments) - {type(None)}  # a setting has one type, and may be None
        return None if value is None or str(value).lower() in ("none", "null") else convert(value, own)
    if origin is tuple:
        parts = [part.strip() for part in value.strip("()[] ").split(",")] if isinstance(value, str) else value
        return tuple(convert(part, arguments[0]) for part in parts if part != "")
    if origin is dict or kind is dict:
        result = ast.literal_eval(value) if isinstance(value, str) else value
        if not isinstance(result, dict):
            raise ValueError
        return dict(result)
    if kind is bool:
        return _WORDS[str(value).lower()]
    if kind in (int, float):
        result = kind(value)
        cut = not isinstance(value, str) and result != value  # for example 1.5 for a whole number
        if cut or isinstance(value, bool) or not -math.inf < result < math.inf:
            raise ValueError
        return result
    if kind is str:
        if not isinstance(value, str | int | float):
            raise ValueError
        return str(value)
    return ast.literal_eval(value) if isinstance(value, str) else value


def to_plain(value: Any) -> Any:
    """Convert a nested value to JSON and YAML types: settings and methods become dictionaries, arrays become lists.

    NaN and infinities become None, because JSON does not have them.
    """
    if hasattr(value, "settings"):
        return value.settings()
    if dataclasses.is_dataclass(value):
        return {field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {key: to_plain(part) for key, part in value.items()}
    if isinstance(value, tuple | list):
        return [to_plain(part) for part in value]
    if hasattr(value, "tolist"):
        return to_plain(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value


def flat(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested settings to a dictionary with dotted names.

    >>> flat({"optim": {"lr": 0.1}, "epochs": 3})
    {'optim.lr': 0.1, 'epochs': 3}
    """
    found: dict[str, Any] = {}
    for name, value in nested.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + name: value}
    return found


def from_plain(kind: type[S], values: Mapping[str, Any], prefix: str = "") -> S:
    """Invert `to_plain`; missing fields keep their defaults, and an unknown field raises an error that names it."""
    known = leaves(kind, prefix)
    hints = typing.get_type_hints(kind)
    fields: dict[str, Any] = {}
    for name, value in values.items():
        if name not in hints:
            raise InputError(f"there is no setting {prefix + name!r}{suggest(name, hints)}")
        if dataclasses.is_dataclass(hints[name]):
            if not isinstance(value, Mapping):
                raise SettingError(f"{prefix + name}: expected nested settings, got {value!r}")
            fields[name] = from_plain(typing.cast("type", hints[name]), value, f"{prefix}{name}.")
        else:
            fields[name] = read(value, known[prefix + name])
    return kind(**fields)


def show_kind(kind: Any) -> str:
    """Describe a type in words for users: 'a whole number', 'numbers separated by commas', ..."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        words = [show_kind(argument) for argument in arguments if argument is not type(None)]
        return " or ".join([*words, "none"] if type(None) in arguments else words)
    if origin is tuple:
        return {int: "whole numbers", float: "numbers"}.get(arguments[0], "strings") + " separated by commas"
    plain = {int: "a whole number", float: "a number", bool: "true or false", str: "a string"}
    return plain.get(kind, "a dictionary" if origin is dict or kind is dict else str(kind))


def _replace(settings: Any, path: list[str], value: Any) -> Any:
    if len(path) > 1:
        value = _replace(getattr(settings, path[0]), path[1:], value)
    return dataclasses.replace(settings, **{path[0]: value})
