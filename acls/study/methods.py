"""Methods of a study: a loss, or a way of training or predicting that changes the recipe, on any loss."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from acls.errors import InputError, suggest
from acls.losses import GROUPS, REGISTRY, Loss, make_loss
from acls.options import leaves, override, read
from acls.recipes import Recipe
from acls.spec import Spec, find, parse, written


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
class MethodList:
    """Every method; of each loss its type, title, paper, and the fields with their defaults."""

    losses: Mapping[str, dict[str, Any]]
    techniques: Mapping[str, Technique]

    def as_json(self) -> dict[str, Any]:
        """What `acls methods --json` prints."""
        return dict(self.losses)


def list_methods() -> MethodList:
    """Return every loss and technique, with what is known of it: `acls methods`."""
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
    """As one would write it, with the fields that differ from their defaults."""
    recipe: Recipe


def methods_of(recipe: Recipe, methods: str | Iterable[Spec]) -> list[Method]:
    """The methods, each once, as in ``"CE, ACLS(margin=6), CutMix(base=ACLS)"``; ``paper`` and ``all`` are groups."""
    specs = parse(methods, "method", GROUPS) if isinstance(methods, str) else methods
    return list({method.name: method for method in (method_of(recipe, spec) for spec in specs)}.values())


def method_of(recipe: Recipe, spec: Spec) -> Method:
    """The method applied to the recipe, whose protocol sets the fields that were not given, such as a margin."""
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
    """The name of a stored method by the defaults of today, from the settings that its loss was recorded with."""
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
    """The settings, apart from the loss, that a method so named decides on itself."""
    names = Spec.of(method).names()
    return {setting for name, technique in TECHNIQUES.items() if name in names for setting in technique.settings}
