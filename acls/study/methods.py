"""Methods of a study, as one writes them: a loss, or a way of training or predicting that is not one, on any loss."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from acls.calls import Call
from acls.errors import InputError, suggest
from acls.losses.naming import name_losses
from acls.options import leaves, override, read
from acls.recipes import Recipe
from acls.shapes import IGNORE_INDEX
from acls.train.session import build_loss


@dataclass(frozen=True)
class Technique:
    """A method that changes the recipe instead of the loss."""

    about: str
    fields: Mapping[str, tuple[str, Any]]
    """By the field's name: the setting of the recipe that it is, and its default."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Settings that make the method what it is."""

    @property
    def settings(self) -> set[str]:
        """The settings that the method decides on."""
        return {*self.fixed, *(setting for setting, _ in self.fields.values())}


_MIX = {"alpha": ("data.mix_alpha", 1.0), "prob": ("data.mix_prob", 0.5)}
TECHNIQUES = {
    "CutMix": Technique("boxes of one image pasted into another (Yun et al., ICCV 2019)", _MIX, {"data.mix": "cutmix"}),
    "Mixup": Technique("images and labels averaged in pairs (Zhang et al., ICLR 2018)", _MIX, {"data.mix": "mixup"}),
    "MCDropout": Technique(
        "probabilities averaged over passes with dropout (Gal and Ghahramani, ICML 2016)",
        {"rate": ("model.dropout", 0.5), "passes": ("passes", 20)},
    ),
}


@dataclass(frozen=True)
class Method:
    """A method applied to a recipe."""

    name: str
    """As one would write it, with the fields that differ from their defaults."""
    recipe: Recipe


def methods_of(recipe: Recipe, text: str) -> list[Method]:
    """The methods that a text names, as in ``"CE, ACLS(margin=6), CutMix, CutMix(base=ACLS)"``, each once."""
    found = (_apply(recipe, call) for call in name_losses(text))
    return list({method.name: method for method in found}.values())


def decided_by(method: str) -> set[str]:
    """The settings, apart from the loss, that a method so named decides on itself."""
    words = set(re.findall(r"\w+", method))
    return {setting for name, technique in TECHNIQUES.items() if name in words for setting in technique.settings}


def _apply(recipe: Recipe, call: Call) -> Method:
    by_name = {name.lower(): name for name in TECHNIQUES}
    if call.name.lower() not in by_name:
        return _with_loss(recipe, call)
    name = by_name[call.name.lower()]
    technique = TECHNIQUES[name]
    given = dict(call.fields)
    base = given.pop("base", Call("CE"))
    below = _apply(recipe, Call(base) if isinstance(base, str) else base)
    settings, shown = dict(technique.fixed), []
    known = leaves(Recipe)
    for field_name in given:
        if field_name not in technique.fields:
            raise InputError(f"{name} has no field {field_name!r}{suggest(field_name, [*technique.fields, 'base'])}")
    for field_name, (setting, default) in technique.fields.items():
        value = read(given.get(field_name, default), known[setting])
        settings[setting] = value
        if value != default:
            shown.append(f"{field_name}={value!r}")
    if below.name != "CE":
        shown.append(f"base={below.name}")
    written = f"{name}({', '.join(shown)})" if shown else name
    return Method(written, override(below.recipe, settings))


def _with_loss(recipe: Recipe, call: Call) -> Method:
    fields = {name: value.plain() if isinstance(value, Call) else value for name, value in call.fields.items()}
    options = replace(recipe.loss, name=call.name, fields=fields)
    name = repr(build_loss(options, ignore_index=IGNORE_INDEX)).removesuffix("()")
    return Method(name, replace(recipe, loss=options))
