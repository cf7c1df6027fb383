"""Search the settings of a loss, or of a recipe, for the least ECE at an accuracy floor, on the validation part only.

A grid tries every combination, TPE learns from the trials before and gives hopeless ones up. The test part is not
evaluated: train the best once more with `acls train`, or compare it with others by `acls compare`.

Examples:
  acls tune digits_cnn --loss ACLS --space 'lambda1=0:0.15:0.05,margin=6|10'
  acls tune digits_cnn --space 'lambda1=0.01:0.3:log' --sampler tpe --trials 30
  acls tune cifar10_mini --root cifar10_train.zip --space 'optim.lr=0.05|0.1'

A space is settings with what they may be: low:high:step, low:high, low:high:log, or a|b|c.

"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from acls.cli.common import Line, Parts, add_shared, check_out, continued, engine_of, say
from acls.cli.settings import add_settings, apply, settings_of
from acls.options import leaves, number
from acls.recipes import Recipe, find
from acls.report.tables import Table, percent

if TYPE_CHECKING:
    from acls.study.tune import Found


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``acls tune``."""
    parser.add_argument("recipe", metavar="RECIPE", help="a recipe: `acls recipes` lists them")
    parser.add_argument("--space", required=True, help="fields of the loss, or dotted settings, and their values")
    parser.add_argument(
        "--sampler", choices=("grid", "tpe"), default="grid", help="grid: every point; tpe: the promising ones"
    )
    parser.add_argument("--trials", type=number(int, "[1, 1000000]"), default=20, metavar="N", help="trials of tpe")
    floor = "least validation accuracy, as a fraction (default: 0.01 below the best trial's)"
    parser.add_argument("--accuracy-floor", type=number(float, "[0, 1]"), metavar="A", help=floor)
    parser.add_argument("--storage", metavar="URL", help="database of the trials (default: tune.sqlite in --out)")
    parser.add_argument("--out", metavar="DIR", help="folder of the search (default: tuning/RECIPE-LOSS)")
    add_shared(parser, "wait", "force", "engine", "address", "workers", "json", quiet="no progress")
    add_settings(parser)


def run(args: argparse.Namespace) -> int:
    """Search, print the trials and the front, and draw it; 1 where no trial finished."""
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

        sweeps.save_front({"trials": [(one.accuracy, one.ece) for one in found.trials]}, figure)
    drawn = figure if found.trials else None
    say(args, {**asdict(found), "figure": drawn and str(drawn)}, _parts(args, found, recipe, drawn))
    return 0 if found.trials else 1


def _parts(args: argparse.Namespace, found: Found, recipe: Recipe, figure: Path | None) -> Parts:
    from acls.study.tune import show

    table = Table(["trial", "settings", "epoch", "accuracy %", "ECE %", "NLL", "front"], align="ll")
    for one in sorted(found.trials, key=lambda trial: trial.ece):
        numbers = (str(one.epoch), percent(one.accuracy), percent(one.ece), f"{one.nll:.4f}")
        table.add(str(one.number), show(one.params), *numbers, "yes" if one in found.front else "")
    if found.best is None:
        yield f"No trial reaches an accuracy of {percent(found.floor)} %."
    else:
        yield (
            f"Lowest ECE with an accuracy of {percent(found.floor)} % or more: {show(found.best.params)}. It is the "
            f"lowest of {len(found.trials)}, and so flatters: measure it on the test part by `acls train "
            f"{recipe.name} --loss {recipe.loss.name} {_options(found.best.params, args)}`."
        )
    yield from ("", table, "")
    rest = ", ".join(f"{n} {what}" for n, what in ((found.pruned, "pruned"), (found.failed, "failed")) if n)
    yield f"{len(found.trials)} trials finished{', ' + rest if rest else ''}; validation part, n = {found.n:,}"
    if figure is not None:
        yield Line(f"front: {figure}")


def _options(params: dict[str, Any], args: argparse.Namespace) -> str:
    known = leaves(Recipe)
    told = [f"--{name if name in known else f'loss.{name}'} {value}" for name, value in params.items()]
    return " ".join([*told, *(f"--{name} {value}" for name, value in settings_of(args).items() if name != "loss.name")])
