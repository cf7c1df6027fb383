"""Options for every field of a recipe, and what the user set with them."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from acls.errors import InputError, suggest
from acls.options import Leaf, leaves, override
from acls.recipes import Recipe

# What one says most often, in fewer letters.
SHORT = {
    "data": "data.name",
    "model": "model.name",
    "loss": "loss.name",
    "root": "data.root",
    "download": "data.download",
    "loggers": "log",  # which torchrun does not take for one of its own options
}
_HIDDEN = ("name", "loss.protocol", "loss.fields")


def add_settings(parser: argparse.ArgumentParser, known: Mapping[str, Leaf], short: Mapping[str, str] = SHORT) -> None:
    """Add an option for every setting, and the short names; nothing is set by default."""
    by_long = {long: name for name, long in short.items()}
    groups: dict[str, Any] = {}
    for name, leaf in known.items():
        if name in _HIDDEN:
            continue
        section = name.split(".")[0] if "." in name else "training"
        group = groups.setdefault(section, parser.add_argument_group(f"settings: {section}"))
        flags = [f"--{by_long[name]}"] if name in by_long else []
        flags += dict.fromkeys([f"--{name.replace('_', '-')}", f"--{name}"])
        text = f"{leaf.help} ({leaf.show()})".replace("%", "%%")
        # A switch needs no value: --compile is --compile true.
        value: dict[str, Any] = {"nargs": "?", "const": "true"} if leaf.kind is bool else {}
        metavar = name.split(".")[-1].upper()
        group.add_argument(*flags, dest=f"set:{name}", help=text, metavar=metavar, default=argparse.SUPPRESS, **value)


def settings_of(args: argparse.Namespace) -> dict[str, str]:
    """What the user set, by dotted name."""
    return {name.removeprefix("set:"): value for name, value in vars(args).items() if name.startswith("set:")}


def apply(recipe: Recipe, given: Mapping[str, str], loss_fields: Mapping[str, Any]) -> Recipe:
    """The recipe with the user's settings; another loss starts without the fields that were set for the old one."""
    values: dict[str, Any] = dict(given)
    if "loss.name" in values and values["loss.name"].lower() != recipe.loss.name.lower():
        values["loss.fields"] = dict(loss_fields)
    elif loss_fields:
        values["loss.fields"] = {**recipe.loss.fields, **loss_fields}
    if values.get("data.root") not in (None, "none"):
        values["data.root"] = full_path(values["data.root"])
    return override(recipe, values)


def full_path(text: str) -> str:
    """A path as a run keeps it: the same from whichever folder it was given."""
    return str(Path(text).expanduser().absolute())


def read_loss_fields(rest: Sequence[str], loss: str) -> dict[str, Any]:
    """Read ``--loss.FIELD VALUE`` by the types of the loss's fields."""
    from acls.losses import REGISTRY

    pairs = dict(_pairs(rest))
    if not pairs:
        return {}
    kinds = {name.lower(): kind for name, kind in REGISTRY.items()}
    if loss.lower() not in kinds:
        raise InputError(f"there is no loss {loss!r}{suggest(loss, REGISTRY)}")
    return {name: read_field(kinds[loss.lower()], name, text) for name, text in pairs.items()}


def read_field(kind: Any, name: str, text: str) -> Any:
    """A field's value from text: a number, a word, true or false, a list, or the name of a loss."""
    import dataclasses
    import typing

    from acls.losses import Loss
    from acls.options import read

    known = [field.name for field in dataclasses.fields(kind) if field.init]
    if name not in known:
        raise InputError(f"{kind.__name__} has no field {name!r}{suggest(name, known)}")
    hint = typing.get_type_hints(kind)[name]
    if isinstance(hint, type) and issubclass(hint, Loss):
        return text
    if name == "class_weight":
        hint = tuple[float, ...]
    return read(text, Leaf(f"loss.{name}", hint, ""))


def _pairs(rest: Sequence[str]) -> Iterable[tuple[str, str]]:
    words = list(rest)
    while words:
        name, equals, value = words.pop(0).partition("=")
        if not name.startswith("--loss."):
            options = [f"--{option}" for option in (*leaves(Recipe), *SHORT, "out", "resume", "config", "dry-run")]
            raise InputError(f"there is no option {name!r}{suggest(name, options) if name.startswith('--') else ''}")
        if not equals:
            if not words:
                raise InputError(f"{name} needs a value")
            value = words.pop(0)
        yield name.removeprefix("--loss.").replace("-", "_"), value
