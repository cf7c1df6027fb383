"""Compare training methods on a recipe, or saved predictions: which is best, and how sure is that?

Trains every method with every seed, measures each network as it is and after post-hoc calibration on the validation
part, and tests the best against the next, on the same test samples and over the seeds. Without a recipe it is a
demonstration on embedded digits. A study that was stopped goes on where it was with the same command; what is finished
is not run again.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from acls.cli.engines import add_engine, engine_of
from acls.cli.output import say
from acls.cli.settings import add_settings, apply, settings_of
from acls.errors import InputError
from acls.options import leaves
from acls.recipes import RECIPES, Recipe, find, load_recipe

if TYPE_CHECKING:
    from acls.evaluation import Evaluation
    from acls.metrics import Blocks
    from acls.report.tables import Table
    from acls.study.ranking import Ranked
    from acls.study.runs import Failed
    from acls.study.store import Row

EXAMPLE = """\
examples:
  acls compare
  acls compare cifar10_mini --root cifar10_train.zip --methods paper --seeds 3 --posthoc temperature,ets
  acls compare digits_cnn --methods 'CE, ACLS, ACLS(margin=10)' --epochs 30 --out studies/margin
  acls compare custom --root IMAGES --model mynet.py:MyNet --methods 'CE, ACLS'
  acls compare --predictions before.npz after.npz
  acls compare cifar10_resnet50 --root DIR --methods all --engine ray --address auto
"""

DEMO = "digits_few"
METHODS = "CE, LabelSmoothing, Focal, MbLS, CRL, ACLS"
DEFAULTS = {"methods": METHODS, "seeds": "3", "posthoc": "temperature"}
"""Not in the parser, so that what was given can be told from what was not."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``acls compare``."""
    parser.add_argument("recipe", nargs="?", metavar="RECIPE", help=f"one of {', '.join(RECIPES)} (default: {DEMO})")
    parser.add_argument("--config", metavar="FILE", help="start from a saved recipe, YAML or JSON, instead")
    parser.add_argument(
        "--methods", help=f'"paper", "all", or methods as in "CE, ACLS(margin=6), CutMix" (default: {METHODS})'
    )
    parser.add_argument(
        "--seeds", metavar="N|S1,S2,...", help=f"how many seeds, or which ones (default: {DEFAULTS['seeds']})"
    )
    parser.add_argument("--posthoc", metavar="NAMES", help=f"calibrators, or none (default: {DEFAULTS['posthoc']})")
    parser.add_argument("--predictions", nargs="+", metavar="FILE", help="compare these saved outputs instead")
    parser.add_argument("--out", metavar="DIR", help="folder of the study (default: studies/RECIPE)")
    parser.add_argument("--json", action="store_true", help="print one JSON object, with fractions, not percent")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    parser.add_argument("--no-report", action="store_true", help="do not write the page")
    parser.add_argument("--wait", action="store_true", help="wait where another process is at the same study")
    add_engine(parser, "runs at a time (default: one a core or GPU)")
    add_settings(parser, leaves(Recipe))
    parser.set_defaults(takes_rest=True)


def run(args: argparse.Namespace) -> int:
    """Run or go on with the study and print its table; 1 where some training failed."""
    if args.predictions:
        return _compare_files(args)
    from acls.study.engine import set_threads
    from acls.study.progress import Progress
    from acls.study.runs import chosen, evaluated, outputs, plan, run_study
    from acls.study.store import Store

    recipe = study_recipe(args)
    folder = Path(args.out or Path("studies") / recipe.name)
    given = {name: getattr(args, name) for name in DEFAULTS}
    methods, seeds, posthoc = (DEFAULTS[name] if value is None else value for name, value in given.items())
    cells = plan(folder, recipe, methods, _seeds(seeds, recipe.seed), posthoc)
    engine = engine_of(args)
    try:
        failed = run_study(cells, engine, wait=args.wait, progress=Progress(show=not args.quiet))
    except KeyboardInterrupt:
        print(f"acls compare: stopped; the same command goes on with the study in {folder}", file=sys.stderr)
        return 130
    set_threads(engine.threads)
    rows = chosen(cells, Store(folder).rows())

    def blocks(row: Row) -> Blocks:
        counted = evaluated(outputs(folder, row)).blocks
        assert counted is not None
        return counted

    ranked = _ranked(rows, blocks)
    page = None if args.no_report or not rows else _write_page(folder)
    _show(args, rows, ranked, failed, page)
    return 1 if failed else 0


def study_recipe(args: argparse.Namespace) -> Recipe:
    """The recipe that the options describe; runs of a study log to metrics.csv alone unless told otherwise."""
    if args.recipe and args.config:
        raise InputError("pass a recipe or --config, not both")
    recipe = load_recipe(args.config) if args.config else find(args.recipe or DEMO)
    given = settings_of(args)
    if "loss.name" in given:
        raise InputError("--loss is one method: name those to compare with --methods")
    if any(word.startswith("--loss.") for word in args.rest):
        raise InputError("--loss.FIELD is for one method: write fields in --methods, as in 'CE, ACLS(margin=6)'")
    return apply(replace(recipe, log=()), given, args.rest)


def _seeds(text: str, first: int) -> list[int]:
    """``3`` is that many seeds, from the recipe's on; ``5,7`` are these."""
    try:
        numbers = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < (0 if "," in text else 1):
        raise InputError(f"--seeds is a number of seeds, as 3, or a list of them, as 5,7,9; but {text!r} came")
    return list(dict.fromkeys(numbers)) if "," in text else list(range(first, first + numbers[0]))


def _compare_files(args: argparse.Namespace) -> int:
    """Compare saved outputs as a study of one seed would be."""
    if args.recipe or args.config or settings_of(args):
        raise InputError("--predictions compares what is saved: pass no recipe and no settings beside it")
    if ignored := _of_studies(args):
        raise InputError(
            f"--predictions compares what is saved, but {', '.join(ignored)} came, for networks to train: leave that "
            "out, or name a recipe instead of files"
        )
    if len(args.predictions) < 2:
        raise InputError("--predictions calls for two files or more: `acls evaluate` measures one")
    from acls.evaluation import evaluate
    from acls.metrics.bins import BINS
    from acls.metrics.intervals import REPLICATES
    from acls.predictions import open_batches
    from acls.study.runs import NONE, numbers
    from acls.study.store import Row

    names = [Path(path).stem for path in args.predictions]
    names = names if len(set(names)) == len(names) else list(args.predictions)
    if len(set(names)) < len(names):
        raise InputError("--predictions names a file twice")
    rows: list[Row] = []
    counted: dict[str, Evaluation] = {}
    for name, path in zip(names, args.predictions, strict=True):
        evaluation = evaluate(open_batches(path))
        counted[name] = evaluation
        if not evaluation.same_samples(counted[names[0]]):
            raise InputError(f"{path} has other labels than {args.predictions[0]}: both must hold the same samples")
        worth = evaluation.worth(REPLICATES)
        protocol = {"bins": BINS, "edges": "(lo, hi]", "pooled": True}
        rows.append(Row(name, 0, "", NONE, "", worth.n, numbers(worth), protocol, 0.0, str(path), {}))

    def blocks(row: Row) -> Blocks:
        found = counted[row.method].blocks
        assert found is not None
        return found

    _show(args, rows, _ranked(rows, blocks), [], None)
    return 0


def _of_studies(args: argparse.Namespace) -> list[str]:
    """The options given that say how to run a study."""
    names = (*DEFAULTS, "out", "no_report", "wait", "address", "workers")
    given = [name for name in names if getattr(args, name) is not None and getattr(args, name) is not False]
    return [f"--{name.replace('_', '-')}" for name in given] + ["--engine"] * (args.engine != "local")


def _ranked(rows: Sequence[Row], blocks: Callable[[Row], Blocks]) -> list[Ranked]:
    from acls.report.results import RANKED
    from acls.study.ranking import rank

    return rank(rows, RANKED, blocks)


def _columns(rows: Sequence[Row]) -> list[str]:
    from acls.metrics.catalogue import names

    return [name for name in names(1) if any(name in row.metrics for row in rows)]


def _write_page(folder: Path) -> Path:
    from acls.report.page import write

    page = folder / "report.html"
    write(folder, page)
    return page


def _show(
    args: argparse.Namespace,
    rows: Sequence[Row],
    ranked: Sequence[Ranked],
    failed: Sequence[Failed],
    page: Path | None,
) -> None:
    if args.json:
        told = {
            "rows": [asdict(row) for row in rows],
            "ranking": [asdict(one) | {"significant": one.significant} for one in ranked],
            "failed": [asdict(one) for one in failed],
            "report": None if page is None else str(page),
        }
        say(args, told)
    elif rows:
        from acls.report.results import signs
        from acls.report.tables import paragraph

        print(_table(rows, ranked).text(), "\n")
        if ranked:
            print(_ranking_table(ranked).text(), "\n")
        seeds = len({row.seed for row in rows})
        spread = "mean ± standard deviation over seeds; " if seeds > 1 else ""
        floor = "floor: the ECE that a calibrated model with these confidences would show at this n. "
        print(paragraph(spread + floor + signs(seeds)))
        if page is not None:
            print(f"\nreport: {page}")
    for one in failed:
        print(f"acls compare: {one.method}, seed {one.seed}: {one.why}", file=sys.stderr)


def _table(rows: Sequence[Row], ranked: Sequence[Ranked]) -> Table:
    from acls.report.results import marks_of, results_table

    columns = _columns(rows)
    columns.insert(columns.index("ece") + 1, "ece_floor")
    return results_table(rows, columns, marks=marks_of(ranked))


def _ranking_table(ranked: Sequence[Ranked]) -> Table:
    from acls.evaluation import show_p
    from acls.metrics.catalogue import metric
    from acls.report.tables import Table

    table = Table(["best by", "post-hoc", "best", "next", "difference", "p"], align="llll")
    for one in ranked:
        how = metric(one.metric)
        difference = f"{how.scale * one.difference:+.{how.decimals}f}"
        table.add(how.title, one.posthoc, one.best, one.next, difference, show_p(one.p).removeprefix("= "))
    return table
