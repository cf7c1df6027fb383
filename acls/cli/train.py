"""Train a network by a recipe and write a run: weights, metrics, predictions, figures. Or continue one.

Examples:
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

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING

from acls.cli.common import Line, Parts, add_shared, check_out, note, say
from acls.cli.settings import add_settings, apply, recipe_of, settings_of
from acls.errors import InputError, MissingExtra
from acls.recipes import RECIPES
from acls.report.tables import Table

if TYPE_CHECKING:
    from acls.train import TrainedRun


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``acls train``."""
    parser.add_argument("recipe", nargs="?", metavar="RECIPE", help=f"one of {', '.join(RECIPES)}")
    parser.add_argument("--resume", metavar="RUN", help="continue the run in this folder from its saved state")
    parser.add_argument("--out", metavar="RUN", help="folder of the run (default: runs/RECIPE-LOSS-SEED)")
    parser.add_argument("--dry-run", action="store_true", help="print the plan, from a few timed steps, and stop")
    parser.add_argument("--no-figures", action="store_true", help="draw no figures of the finished run")
    add_shared(parser, "config", "wait", "force", "json", quiet="no progress")
    add_settings(parser)


def run(args: argparse.Namespace) -> int:
    """Train, and print the numbers of the best checkpoint; 1 where training had to stop."""
    given = settings_of(args)
    if args.resume and (args.recipe or args.config or given or args.rest or args.out or args.dry_run):
        raise InputError("--resume continues a run as and where it is: pass no recipe, settings, --out or --dry-run")
    if not (args.recipe or args.config or args.resume):
        raise InputError("which recipe? `acls recipes` lists them; digits_cnn needs no data")
    recipe = None if args.resume else apply(recipe_of(args), given, args.rest)
    if recipe is not None:
        check_out(args, args.out, "run", recipe.data.root)

    from acls import distributed
    from acls.train import TrainingStopped, fit, make_plan, resume

    how = {"show": not (args.quiet or args.json), "wait": args.wait}
    try:
        if recipe is None:
            result = resume(args.resume, **how)
        elif args.dry_run:
            print(make_plan(replace(recipe, log=())))
            return 0
        else:
            result = fit(recipe, args.out, **how)
    except TrainingStopped as error:
        note(args, str(error))
        return 1
    except OSError as error:
        error.add_note("what was saved before is whole: continue from it with --resume")
        raise
    except KeyboardInterrupt as stopped:  # with the run's folder, once something is saved in it
        raise KeyboardInterrupt(*(f"continue with acls train --resume {run}" for run in stopped.args)) from stopped
    if distributed.rank() > 0:
        return 0
    if not args.no_figures:
        _draw(result)
    found = {"run": str(result.folder), "best_epoch": result.best_epoch, "val": result.val, "test": result.test}
    say(args, found, _parts(result, shown=not args.quiet))
    return 0


def _parts(result: TrainedRun, *, shown: bool) -> Parts:
    """The verdict on the test part, then the numbers of both parts, then where the run is."""
    from acls.metrics.catalogue import metric, names
    from acls.results import evaluate, verdict
    from acls.train import RunFolder

    measured = evaluate(RunFolder(result.folder).predictions("test"), by_image=None)
    columns = [name for name in names(1) if name in result.test]
    table = Table(["", "n", *(metric(name).title for name in columns)])
    for part, numbers in (("validation", result.val), ("test", result.test)):
        table.add(part, f"{numbers['n']:,}", *(metric(name).show(numbers[name]) for name in columns))
    marks = "; * marks the best so far, T is the temperature that fits the validation samples" if shown else ""
    yield from (f"Test: {verdict(measured).text}", "", table, "", f"Best epoch {result.best_epoch + 1}{marks}.")
    yield Line(f"The run is in {result.folder}")


def _draw(result: TrainedRun) -> None:
    """Write the reliability of both parts, and how the numbers moved, into the run; nothing without matplotlib."""
    from acls.report.figures import reliability, style, sweeps
    from acls.train import RunFolder

    folder = RunFolder(result.folder)
    try:
        figure, axes = style.canvas(2, 2, width=2 * style.COLUMN_INCHES, height=1.5 * style.COLUMN_INCHES)
    except MissingExtra:
        return
    for ax, metric in zip(axes, ("accuracy", "nll", "ece", "temperature"), strict=True):
        sweeps.draw_epochs(sweeps.prepare_epochs({"validation": [result.history]}, metric), ax)
    style.save(figure, folder.figure("epochs"))
    for part, suite in result.suites.items():
        figure, _ = reliability.plot(suite.bins.reliability(), cells=suite.confidences.cells())
        style.save(figure, folder.figure(f"reliability_{part}"))
