"""Experiments as functions that return a `Recipe`: ``find("cifar10_resnet50")``. Needs no torch."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import wraps

from acls.errors import InputError, suggest
from acls.recipes import accurate, paper, small
from acls.recipes.recipe import LossOptions, OptimOptions, Recipe, ScheduleOptions, load_recipe, save_recipe


def _named(make: Callable[[], Recipe]) -> Callable[[], Recipe]:
    """The function, with its own name as the recipe's."""
    return wraps(make)(lambda: replace(make(), name=make.__name__))


METHODS = "CE, LabelSmoothing, Focal, MbLS, CRL, ACLS"
"""What a study compares where it is not said."""
RECIPES: dict[str, Callable[[], Recipe]] = {
    name: _named(make)
    for module in (small, paper, accurate)
    for name, make in vars(module).items()
    if inspect.isfunction(make) and make.__module__ == module.__name__
}
"""Every function of these modules is a recipe."""


def find(name: str) -> Recipe:
    """The recipe of that name."""
    if name not in RECIPES:
        raise InputError(f"there is no recipe {name!r}{suggest(name, RECIPES)}")
    return RECIPES[name]()


__all__ = [
    "METHODS", "RECIPES", "LossOptions", "OptimOptions", "Recipe", "ScheduleOptions",
    "find", "load_recipe", "save_recipe",
]  # fmt: skip
