"""Train a network by a recipe and write a run: weights, metrics, predictions, figures. Or go on with one."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from acls.cli.output import add_force, add_output, check_out, say
from acls.cli.settings import add_settings, apply, settings_of
from acls.errors import InputError, MissingExtra
from acls.options import leaves
from acls.recipes import RECIPES, Recipe, find, load_recipe

if TYPE_CHECKING:
    from acls.train import Result

EXAMPLE = """\
examples:
  acls train digits_cnn --loss ACLS
  acls train cifar10_mini --root cifar10_train.zip --loss ACLS --loss.margin 8
  acls train cifar10_resnet50 --root DIR --loss MbLS --optim.lr 0.05 --epochs 10
  acls train custom --root IMAGES --model timm/resnet18 --dry-run
  acls train custom --root IMAGES --model mynet.py:MyNet --model.width 64
  acls train --config runs/mine/recipe.yaml --seed 2
  acls train --resume runs/digits_cnn-ACLS-1

--loss.FIELD VALUE sets a field of the loss; `acls methods` lists them. --model.NAME VALUE sets an argument of your own
model, which is called with n_classes= and, if it takes it, channels=. `acls recipes NAME` shows a recipe's settings.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("recipe", nargs="?", metavar="RECIPE", help=f"one of {', '.join(RECIPES)}")
    parser.add_argument("--config", metavar="FILE", help="start from a saved recipe, YAML or JSON, instead")
    parser.add_argument("--resume", metavar="RUN", help="go on with the run in this folder, where its state was saved")
    parser.add_argument("--out", metavar="RUN", help="folder of the run (default: runs/RECIPE-LOSS-SEED)")
    parser.add_argument("--wait", action="store_true", help="wait where another process trains in the same folder")
    parser.add_argument("--dry-run", action="store_true", help="print the plan, from a few timed steps, and stop")
    parser.add_argument("--no-figures", action="store_true", help="draw no figures of the finished run")
    add_force(parser)
    add_output(parser, quiet="no progress")
    add_settings(parser, leaves(Recipe))
    parser.set_defaults(takes_rest=True)


def run(args: argparse.Namespace) -> int:
    """Train, and print the numbers of the best checkpoint; 1 where training had to stop."""
    given = settings_of(args)
    if args.resume:
        if args.recipe or args.config or given or args.rest:
            raise InputError("--resume goes on with a run as it is: pass no recipe and no settings beside it")
        if args.out or args.dry_run:
            raise InputError("--resume goes on where the run is: pass neither --out nor --dry-run beside it")
        return _train(None, args)
    recipe = apply(_chosen(args), given, args.rest)
    if args.out:
        check_out(args, args.out, "run", recipe.data.root)
    return _train(recipe, args)


def _chosen(args: argparse.Namespace) -> Recipe:
    if args.recipe and args.config:
        raise InputError("pass a recipe or --config, not both")
    if args.config:
        return load_recipe(args.config)
    if not args.recipe:
        raise InputError("which recipe? `acls recipes` lists them; digits_cnn needs no data")
    return find(args.recipe)


def _train(recipe: Recipe | None, args: argparse.Namespace) -> int:
    from acls import distributed
    from acls.train import TrainingStopped, fit, make_plan, resume

    try:
        if recipe is None:
            result = resume(args.resume, show=not (args.quiet or args.json), wait=args.wait)
        elif args.dry_run:
            print(make_plan(replace(recipe, log=())))
            return 0
        else:
            result = fit(recipe, args.out, show=not (args.quiet or args.json), wait=args.wait)
    except TrainingStopped as error:
        print(f"acls train: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        error.add_note("what was saved before is whole: go on from it with --resume")
        raise
    except KeyboardInterrupt as stopped:
        if not stopped.args:  # nothing was saved yet
            raise
        print(f"acls train: stopped; go on with acls train --resume {stopped.args[0]}", file=sys.stderr)
        return 130
    if distributed.rank() > 0:
        return 0
    if not args.no_figures:
        _draw(result)
    from acls.metrics.catalogue import metric, names

    lines = []
    for part, numbers in (("validation", result.val), ("test", result.test)):
        told = [metric(name).phrase(numbers[name]) for name in names(1) if name in numbers]
        lines.append(f"{part:<10}  {'  '.join(told)}  n {numbers['n']:,}")
    found = {"run": str(result.folder), "best_epoch": result.best_epoch, "val": result.val, "test": result.test}
    say(args, found, *lines, f"best epoch {result.best_epoch + 1}; the run is in {result.folder}")
    return 0


def _draw(result: Result) -> None:
    """Write the reliability of both parts, and how the numbers moved, into the run; nothing without matplotlib."""
    from acls.report.figures import epochs, reliability, style
    from acls.train import RunFolder

    folder = RunFolder(result.folder)
    try:
        figure, axes = style.canvas(2, 2, width=2 * style.COLUMN_INCHES, height=1.5 * style.COLUMN_INCHES)
    except MissingExtra:
        return
    for ax, metric in zip(axes, ("accuracy", "nll", "ece", "temperature"), strict=True):
        epochs.draw(epochs.prepare({"validation": [result.history]}, metric), ax)
    style.save(figure, folder.figure("epochs"))
    for part, suite in result.suites.items():
        figure, _ = reliability.plot(suite.bins.reliability(), cells=suite.confidences.cells())
        style.save(figure, folder.figure(f"reliability_{part}"))
