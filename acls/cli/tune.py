"""Search settings of a loss or a recipe for the lowest ECE at a minimum accuracy, on the validation part only.

The grid sampler tries every combination. TPE learns from earlier trials and stops trials that are not promising. The
test part is not evaluated: train the best settings again with `acls train`, or compare them with `acls compare`.

Examples:
  acls tune digits_cnn --loss ACLS --space 'lambda1=0:0.15:0.05,margin=6|10'
  acls tune digits_cnn --space 'lambda1=0.01:0.3:log' --sampler tpe --trials 30
  acls tune cifar10_mini --root cifar10_train.zip --space 'optim.lr=0.05|0.1'

A space lists settings with their possible values: low:high:step, low:high, low:high:log, or a|b|c.

"""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from acls.cli.common import add_shared, check_out, continued, engine_of, say
from acls.cli.settings import add_settings, apply, settings_of
from acls.options import number
from acls.recipes import find


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``acls tune``."""
    parser.add_argument("recipe", metavar="RECIPE", help="a recipe: `acls recipes` lists them")
    parser.add_argument("--space", required=True, help="fields of the loss, or dotted settings, and their values")
    parser.add_argument(
        "--sampler", choices=("grid", "tpe"), default="grid", help="grid: all combinations; tpe: promising ones"
    )
    parser.add_argument(
        "--trials", type=number(int, "[1, 1000000]"), default=20, metavar="N", help="number of trials of tpe"
    )
    floor = "minimum validation accuracy, as a fraction (default: 0.01 below the best trial's)"
    parser.add_argument("--accuracy-floor", type=number(float, "[0, 1]"), metavar="A", help=floor)
    parser.add_argument("--storage", metavar="URL", help="database of the trials (default: tune.sqlite in --out)")
    parser.add_argument("--out", metavar="DIR", help="folder of the search (default: tuning/RECIPE-LOSS)")
    add_shared(parser, "wait", "force", "engine", "address", "workers", "json", quiet="no progress")
    add_settings(parser)


def run(args: argparse.Namespace) -> int:
    """Search, print the trials and the front, and draw it; return 1 if no trial finished."""
    from acls.study.tune import Search, parse_space, tune

    recipe = apply(replace(find(args.recipe), log=()), settings_of(args), args.rest)
    folder = Path(args.out or Path("tuning") / f"{recipe.name}-{recipe.loss.name}")
    figure = folder / "front.png"
    check_out(args, folder, "search", recipe.data.root)
    check_out(args, figure, "figure")
    space = tuple(parse_space(args.space))
    search = Search(folder, recipe, space, args.sampler, args.trials, args.accuracy_floor, args.storage)
    watched = not args.quiet and sys.stderr.isatty()

    def told(done: int, total: int) -> None:
        if watched:
            print(f"\r{done}/{total} trials", end="", file=sys.stderr, flush=True)

    with continued(f"the same command continues the search in {folder}"):
        found = tune(search, engine_of(args), wait=args.wait, told=told)
    if watched:
        print(file=sys.stderr)
    if found.trials:
        from acls.report.figures import sweeps

        sweeps.save_front("trials", found.trials, figure)
        found = replace(found, figure=str(figure))
    say(args, found)
    return 0 if found.trials else 1
