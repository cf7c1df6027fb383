"""Train a network with a recipe and write a run (weights, metrics, predictions, figures), or continue a run.

Examples:
  acls train digits_cnn --loss ACLS
  acls train cifar10_mini --root cifar10_train.zip --loss ACLS --loss.margin 8
  acls train cifar10_resnet50 --root DIR --loss MbLS --optim.lr 0.05 --epochs 10
  acls train custom --root IMAGES --model timm/resnet18 --dry-run
  acls train custom --root IMAGES --model mynet.py:MyNet --model.width 64
  acls train --config runs/mine/recipe.yaml --seed 2
  acls train --resume runs/digits_cnn-ACLS-1

--loss.FIELD VALUE sets a field of the loss; `acls methods` lists them. --model.NAME VALUE sets an argument of your own
model, which is called with n_classes= and, if it accepts it, channels=. `acls recipes NAME` shows a recipe's settings.

"""

import argparse
from dataclasses import replace

from acls.cli.common import add_shared, check_out, note, say
from acls.cli.settings import add_settings, apply, recipe_of, settings_of
from acls.errors import InputError
from acls.recipes import RECIPES


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
    """Train, and print the metrics of the best checkpoint; return 1 if training had to stop."""
    given = settings_of(args)
    if args.resume and (args.recipe or args.config or given or args.rest or args.out or args.dry_run):
        raise InputError("--resume continues a run unchanged: do not pass a recipe, settings, --out or --dry-run")
    if not (args.recipe or args.config or args.resume):
        raise InputError("expected a recipe: `acls recipes` lists them; digits_cnn needs no data")
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
            plan = make_plan(replace(recipe, log=()))
            if distributed.rank() == 0:
                say(args, vars(plan), str(plan))
            return 0
        else:
            result = fit(recipe, args.out, **how)
    except TrainingStopped as error:
        note(args, str(error))
        return 1
    except OSError as error:
        error.add_note("the state saved before is intact: continue from it with --resume")
        raise
    except KeyboardInterrupt as stopped:  # its argument is the run's folder, if something is saved there
        raise KeyboardInterrupt(*(f"continue with acls train --resume {run}" for run in stopped.args)) from stopped
    if distributed.rank() > 0:
        return 0
    if not args.no_figures:
        from acls.report.gallery import draw_run

        draw_run(result)
    say(args, result)
    return 0
