"""Experiments as functions that return a `Recipe`: ``find("cifar10_resnet50")``. Needs no torch."""

from __future__ import annotations

from collections.abc import Callable

from acls.errors import InputError, suggest
from acls.recipes import accurate, paper, small
from acls.recipes.recipe import (
    LossOptions,
    OptimOptions,
    Recipe,
    ScheduleOptions,
    load_recipe,
    save_recipe,
)

RECIPES: dict[str, Callable[[], Recipe]] = {
    function.__name__: function
    for function in (
        small.digits_cnn,
        small.digits_few,
        small.synthetic_mlp,
        small.synthetic_unet,
        small.cifar10_mini,
        small.tiny_imagenet_mini,
        small.voc_mini,
        paper.cifar10_resnet50,
        paper.cifar10_resnet101,
        paper.tiny_imagenet_resnet50,
        paper.tiny_imagenet_resnet101,
        paper.imagenet_resnet50,
        paper.voc_deeplabv3_resnet50,
        accurate.tiny_imagenet_finetune,
        accurate.cifar10_finetune,
        accurate.cifar10_resnet20,
        accurate.voc_finetune,
        accurate.finetune,
        small.custom,
        small.custom_segmentation,
    )
}


def find(name: str) -> Recipe:
    """The recipe of that name."""
    if name not in RECIPES:
        raise InputError(f"there is no recipe {name!r}{suggest(name, RECIPES)}")
    return RECIPES[name]()


__all__ = [
    "RECIPES",
    "LossOptions",
    "OptimOptions",
    "Recipe",
    "ScheduleOptions",
    "find",
    "load_recipe",
    "save_recipe",
]
