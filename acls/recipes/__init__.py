"""Experiments as functions that return a `Recipe`: ``find("cifar10_resnet50")``. Does not need torch."""

import inspect
import re
from collections.abc import Callable
from dataclasses import replace
from functools import wraps

from acls.recipes import accurate, paper, small
from acls.recipes.recipe import LossOptions, OptimOptions, Recipe, ScheduleOptions, load_recipe, save_recipe
from acls.recipes.recipe import recipe_text as text_of
from acls.spec import find as known_name


def _named(make: Callable[[], Recipe]) -> Callable[[], Recipe]:
    """Wrap a function so that its name becomes the name of the recipe."""
    return wraps(make)(lambda: replace(make(), name=make.__name__))


METHODS = "CE, LabelSmoothing, Focal, MbLS, CRL, ACLS"
"""The methods that a study compares by default."""
RECIPES: dict[str, Callable[[], Recipe]] = {
    name: _named(make)
    for module in (small, paper, accurate)
    for name, make in vars(module).items()
    if inspect.isfunction(make) and make.__module__ == module.__name__
}
"""Every function of these modules is a recipe."""


def find(name: str) -> Recipe:
    """Return the recipe with this name, ignoring case."""
    return RECIPES[known_name(name, RECIPES, "recipe")]()


def about(name: str) -> str:
    """Return the first line of the description of a recipe, without the command."""
    return re.sub(r" ``.*?``", "", (inspect.getdoc(RECIPES[name]) or "").splitlines()[0])


def explained(name: str) -> str:
    """Return a recipe as YAML, after its description: `acls recipes NAME`."""
    recipe = find(name)
    lines = [f"# {line}".rstrip() for line in (inspect.getdoc(RECIPES[name]) or "").splitlines()]
    return "\n".join([*lines, text_of(recipe).rstrip()])


__all__ = [
    "METHODS", "RECIPES", "LossOptions", "OptimOptions", "Recipe", "ScheduleOptions",
    "about", "explained", "find", "load_recipe", "save_recipe",
]  # fmt: skip
