"""Compare training methods on a recipe, or saved predictions: which is best, and how sure is that?

Trains every method with every seed, and measures each network before and after post-hoc calibration on the validation
part. Then tests the best method against all others, on the same test samples and over the seeds. Without a recipe,
it runs a demonstration on embedded digits. The same command continues a study that was stopped.

Examples:
  acls compare
  acls compare cifar10_mini --root cifar10_train.zip --posthoc temperature,ets
  acls compare digits_cnn --methods 'CE, ACLS, ACLS(margin=10)' --out margin
  acls compare custom --root IMAGES --model mynet.py:MyNet --methods 'CE, ACLS'
  acls compare --predictions before.npz after.npz
  acls compare cifar10_resnet50 --root DIR --engine ray --address auto

"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from acls.cli.common import add_columns, add_shared, columns_of, continued, engine_of, note, numbers, say
from acls.cli.settings import add_settings, apply, recipe_of, settings_of
from acls.errors import InputError
from acls.recipes import METHODS, RECIPES, Recipe

if TYPE_CHECKING:
    from acls.report.results import Comparison

DEMO = "digits_few"
DEFAULTS = {"methods": METHODS, "seeds": "3", "posthoc": "temperature"}
"""Defaults that are not in the parser, so that options given by the user can be recognised."""
DEMO_SEEDS = "5"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``acls compare``."""
    parser.add_argument("recipe", nargs="?", metavar="RECIPE", help=f"one of {', '.join(RECIPES)} (default: {DEMO})")
    for flag, metavar, text in (
        ("methods", "METHODS", '"paper", "all", or methods as in "CE, ACLS(margin=6), CutMix"'),
        ("seeds", "N|S1,S2,...", f"how many seeds, or which ones; {DEMO_SEEDS} without a recipe"),
        ("posthoc", "NAMES", "calibrators, or none"),
    ):
        parser.add_argument(f"--{flag}", metavar=metavar, help=f"{text} (default: {DEFAULTS[flag]})")
    parser.add_argument("--predictions", nargs="+", metavar="FILE", help="compare these saved predictions instead")
    parser.add_argument("--out", metavar="DIR", help="folder of the study (default: studies/RECIPE)")
    parser.add_argument("--no-report", action="store_true", help="do not write the page")
    add_shared(parser, "config", "json", "quiet", "wait", "force", "engine", "address", "workers")
    add_columns(parser)
    add_settings(parser)


def run(args: argparse.Namespace) -> int:
    """Run or continue the study and print its table; return 1 if a training failed."""
    if args.predictions:
        found = _files(args)
    else:
        from acls.front import compare_recipe

        recipe = study_recipe(args)
        folder = Path(args.out or Path("studies") / recipe.name)
        defaults = DEFAULTS if args.recipe or args.config else DEFAULTS | {"seeds": DEMO_SEEDS}
        methods, seeds, posthoc = (getattr(args, name) or default for name, default in defaults.items())
        study: dict[str, Any] = {"methods": methods, "seeds": _seeds(seeds, recipe.seed), "posthoc": posthoc}
        study |= {"wait": args.wait, "page": not args.no_report, "show": not args.quiet, "force": args.force}
        with continued(f"the same command continues the study in {folder}"):
            found = compare_recipe(recipe, **study, out=folder, engine=engine_of(args))
    say(args, found)
    for failure in found.failed:
        note(args, f"{failure.method}, seed {failure.seed}: {failure.why}")
    return 1 if found.failed else 0


def study_recipe(args: argparse.Namespace) -> Recipe:
    """Return the recipe that the options describe; runs of a study log only to metrics.csv without --loggers."""
    recipe = recipe_of(args, DEMO)
    given = settings_of(args)
    if "loss.name" in given:
        raise InputError("--loss takes one method: pass the methods to compare as --methods")
    if any(word.startswith("--loss.") for word in args.rest):
        raise InputError("--loss.FIELD applies to one method: write fields in --methods, as in 'CE, ACLS(margin=6)'")
    return apply(replace(recipe, log=()), given, args.rest)


def _seeds(text: str, first: int) -> list[int]:
    """Parse seeds: ``3`` means three seeds, starting at the recipe's seed; ``5,7`` and ``5-7`` list seeds."""
    found, listed = numbers(text), "," in text or "-" in text
    if not found or (found[0] < 1 and not listed):
        raise InputError(
            f"--seeds: expected a number of seeds, such as 3, or a list of seeds, such as 5,7,9, got {text!r}"
        )
    return found if listed else list(range(first, first + found[0]))


def _files(args: argparse.Namespace) -> Comparison:
    """Compare saved outputs in the same way as a study with one seed."""
    names = (*DEFAULTS, "config", "out", "no_report", "wait", "address", "workers")
    given = [f"--{name.replace('_', '-')}" for name in names if getattr(args, name) not in (None, False)]
    given += [*([args.recipe] if args.recipe else []), *(f"--{name}" for name in settings_of(args))]
    if given or args.engine != "local":
        raise InputError(
            f"--predictions compares saved predictions, but {', '.join(given) or '--engine'} is for training: "
            "leave it out, or pass a recipe instead of files"
        )
    from acls.front import compare_files

    return compare_files(args.predictions, columns_of(args), ignore_index=args.ignore_index)
