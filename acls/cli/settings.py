"""Options for every field of a recipe, and functions that apply the values set by the user."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from acls.data import DataOptions
from acls.errors import InputError, suggest
from acls.models.own import resolved
from acls.options import Leaf, leaves, override
from acls.recipes import Recipe, find, load_recipe
from acls.spec import Spec, parse_value

# Short names of the most common settings.
SHORT = {
    "data": "data.name",
    "model": "model.name",
    "loss": "loss.name",
    "root": "data.root",
    "download": "data.download",
    "loggers": "log",  # torchrun does not confuse this name with one of its own options
}
_HIDDEN = ("name", "loss.protocol", "loss.fields", "model.arguments", "model.source")


class _HelpAll(argparse.Action):
    """Print the whole help and stop."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        print(parser.format_help(), end="")
        parser.exit()


def add_settings(parser: argparse.ArgumentParser, known: Mapping[str, Leaf] | None = None) -> None:
    """Add an option for every setting (default: of a recipe), and the short names; no option has a default value."""
    if known is None:
        known = leaves(Recipe)
        parser.set_defaults(takes_rest=True)
    parser.add_argument("--help-all", action=_HelpAll, nargs=0, help="also show every setting and option")
    groups: dict[str, Any] = {}
    for name, leaf in known.items():
        if name in _HIDDEN:
            continue
        section = name.split(".")[0] if "." in name else "training"
        group = groups.setdefault(section, parser.add_argument_group(f"settings: {section}"))
        short = [word for word, long in SHORT.items() if long == name]
        flags = dict.fromkeys(f"--{word}" for word in (*short, name.replace("_", "-"), name))
        text = f"{leaf.help} ({leaf.show()})".replace("%", "%%")
        # A switch needs no value: --compile is --compile true.
        value: dict[str, Any] = {"nargs": "?", "const": "true"} if leaf.kind is bool else {}
        metavar = name.split(".")[-1].upper()
        group.add_argument(*flags, dest=f"set:{name}", help=text, metavar=metavar, default=argparse.SUPPRESS, **value)


def settings_of(args: argparse.Namespace, section: str = "") -> dict[str, str]:
    """Return the values set by the user, by dotted name; for a section such as ``data.``, without the section."""
    prefix = f"set:{section}"
    return {name.removeprefix(prefix): value for name, value in vars(args).items() if name.startswith(prefix)}


def data_of(args: argparse.Namespace, base: DataOptions | None = None) -> DataOptions | None:
    """Return the data options, starting from ``base`` or the data of the run; None means the run's own data."""
    given = settings_of(args, "data.")
    place = Path(args.source)
    if base is None and given and place.exists():
        from acls.train import open_run

        base = open_run(place if place.is_dir() else place.parent)[1].data
    return base and override(base, given)


def recipe_of(args: argparse.Namespace, default: str = "") -> Recipe:
    """Return the recipe with the given name, or read it from --config."""
    if args.recipe and args.config:
        raise InputError("pass a recipe or --config, not both")
    return load_recipe(args.config) if args.config else find(args.recipe or default)


def apply(recipe: Recipe, given: Mapping[str, str], rest: Sequence[str] = ()) -> Recipe:
    """Return the recipe with the user's settings; a new loss does not inherit the fields set for the old loss.

    ``rest`` may hold ``--loss.FIELD VALUE`` and, for the user's own model, ``--model.NAME VALUE``.
    """
    values: dict[str, Any] = dict(given)
    loss_fields, arguments = read_fields(rest).values()
    named = Spec.of(values.pop("loss.name", recipe.loss.name), "loss")
    if twice := sorted(named.fields.keys() & loss_fields.keys()):
        raise InputError(f"--loss {named} and --loss.{twice[0]}: {twice[0]} is given twice")
    old = recipe.loss.fields if named.name.lower() == recipe.loss.name.lower() else {}
    loss = recipe.loss.with_spec(Spec(named.name, {**old, **named.fields, **loss_fields}))
    if loss != recipe.loss:
        loss.build()  # raises for a name or a field that does not exist, before anything is read or trained
    if values.get("data.root") not in (None, "none"):
        values["data.root"] = full_path(values["data.root"])
    recipe = override(replace(recipe, loss=loss), values)
    model = replace(recipe.model, arguments={**recipe.model.arguments, **arguments})
    return replace(recipe, model=resolved(model))


def full_path(text: str) -> str:
    """Return the path as a run stores it: absolute, so that it does not depend on the current folder."""
    return str(Path(text).expanduser().absolute())


def read_fields(rest: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Parse ``--loss.FIELD VALUE`` and ``--model.NAME VALUE``; a value is a number, a string, a list or a loss."""
    found: dict[str, dict[str, Any]] = {"loss": {}, "model": {}}
    words = list(rest)
    while words:
        name, equals, value = words.pop(0).partition("=")
        section, _, field = name.removeprefix("--").partition(".")
        if not name.startswith("--") or section not in found or not field:
            options = [f"--{option}" for option in (*leaves(Recipe), *SHORT, "out", "resume", "config", "dry-run")]
            raise InputError(f"there is no option {name!r}{suggest(name, options) if name.startswith('--') else ''}")
        if not equals:
            if not words:
                raise InputError(f"{name} needs a value")
            value = words.pop(0)
        field = field.replace("-", "_")
        if field in found[section]:
            raise InputError(f"{name} is given twice")
        found[section][field] = parse_value(value)
    return found
