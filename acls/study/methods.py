"""Methods of a study: a loss, or a technique of training or prediction that changes the recipe, with any loss."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from acls.errors import InputError, suggest
from acls.losses import GROUPS, REGISTRY, Loss, make_loss
from acls.options import leaves, override, read
from acls.recipes import Recipe
from acls.shown import Shown
from acls.spec import Spec, find, parse, written


@dataclass(frozen=True)
class Technique:
    """A method that changes the recipe instead of the loss."""

    about: str
    fields: Mapping[str, tuple[str, Any]]
    """For each field name: the setting of the recipe that the field sets, and its default."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Settings with fixed values that define the method."""

    @property
    def settings(self) -> set[str]:
        """The names of the settings that the method sets."""
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


@dataclass(frozen=True, repr=False)
class MethodList(Shown):
    """All methods; each loss has its type, title, paper, and fields with their defaults."""

    losses: Mapping[str, dict[str, Any]]
    techniques: Mapping[str, Technique]

    def as_json(self) -> dict[str, Any]:
        """Return what `acls methods --json` prints."""
        return dict(self.losses)


def list_methods() -> MethodList:
    """Return all losses and techniques with their descriptions: `acls methods`."""
    common = {"name", *(field.name for field in fields(Loss))}
    losses = {}
    for name, kind in REGISTRY.items():
        own = {field: value for field, value in kind().settings().items() if field not in common}
        losses[name] = {**asdict(kind.about), "fields": own}
    return MethodList(losses, TECHNIQUES)


@dataclass(frozen=True)
class Method:
    """A method applied to a recipe."""

    name: str
    """The method as a user would write it, with the fields that differ from their defaults."""
    recipe: Recipe


def methods_of(recipe: Recipe, methods: str | Iterable[Spec]) -> list[Method]:
    """Parse ``"CE, ACLS(margin=6), CutMix(base=ACLS)"`` or specs, without duplicates; groups are ``paper``, ``all``."""
    specs = parse(methods, "method", GROUPS) if isinstance(methods, str) else methods
    return list({method.name: method for method in (method_of(recipe, spec) for spec in specs)}.values())


def method_of(recipe: Recipe, spec: Spec) -> Method:
    """Apply a method to a recipe; the recipe's protocol sets fields that were not given, such as the margin."""
    name = find(spec.name, (*REGISTRY, *TECHNIQUES), "method")
    if name in REGISTRY:
        changed = replace(recipe, loss=recipe.loss.with_spec(spec))
        return Method(written(changed.loss.build()), changed)
    technique, known, given = TECHNIQUES[name], leaves(Recipe), dict(spec.fields)
    below = method_of(recipe, Spec.of(given.pop("base", "CE"), "loss"))
    for field_name in given:
        if field_name not in technique.fields:
            raise InputError(f"{name} has no field {field_name!r}{suggest(field_name, [*technique.fields, 'base'])}")
    shown, settings = {}, dict(technique.fixed)
    for field_name, (setting, default) in technique.fields.items():
        settings[setting] = read(given.get(field_name, default), known[setting])
        if settings[setting] != default:
            shown[field_name] = settings[setting]
    if below.name != "CE":
        shown["base"] = Spec(below.name)
    return Method(str(Spec(name, shown)), override(below.recipe, settings))


def restated(method: str, loss: Mapping[str, Any]) -> str:
    """Return the name of a stored method under the current defaults, from the recorded settings of its loss."""
    spec = Spec.of(method)
    if spec.name in TECHNIQUES:
        base = spec.fields.get("base")
        return str(Spec(spec.name, {**spec.fields, "base": Spec(restated(str(base), loss))})) if base else method
    own = {name: value for name, value in loss.items() if name in spec.fields or name != "ignore_index"}
    try:
        return written(make_loss({**spec.plain(), **own}))
    except InputError:  # a method that this version does not have
        return method


def decided_by(method: str) -> set[str]:
    """Return the settings, other than the loss, that the method with this name sets itself."""
    names = Spec.of(method).names()
    return {setting for name, technique in TECHNIQUES.items() if name in names for setting in technique.settings}
