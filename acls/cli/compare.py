"""Compare training methods on a recipe, or saved predictions: which is best, and how sure is that?

Trains every method with every seed, measures each network as it is and after post-hoc calibration on the validation
part, and tests the best against the next, on the same test samples and over the seeds. Without a recipe it is a
demonstration on embedded digits. A study that was stopped goes on where it was with the same command; what is finished
is not run again.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from acls.cli.engines import add_engine, engine_of
from acls.cli.output import add_force, check_out, say, show_table
from acls.cli.settings import add_settings, apply, settings_of
from acls.errors import InputError
from acls.options import leaves
from acls.recipes import RECIPES, Recipe, find, load_recipe

if TYPE_CHECKING:
    from acls.results import Record
    from acls.study.ranking import Ranked
    from acls.study.runs import Failed

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
    add_force(parser)
    add_engine(parser, "runs at a time (default: one a core or GPU)")
    add_settings(parser, leaves(Recipe))
    parser.set_defaults(takes_rest=True)


def run(args: argparse.Namespace) -> int:
    """Run or go on with the study and print its table; 1 where some training failed."""
    if args.predictions:
        return _compare_files(args)
    from acls.report.page import write
    from acls.report.results import RANKED
    from acls.study.engine import set_threads
    from acls.study.progress import Progress
    from acls.study.ranking import rank
    from acls.study.runs import chosen, detailed, plan, run_study
    from acls.study.store import Store

    recipe = study_recipe(args)
    folder = Path(args.out or Path("studies") / recipe.name)
    page = None if args.no_report else folder / "report.html"
    check_out(args, folder, "study", recipe.data.root)
    if page is not None:
        check_out(args, page, "page")
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
    rows = detailed(folder, chosen(cells, Store(folder).rows()))
    ranked = rank(rows, RANKED)
    if page is not None and rows:
        write(folder, page, ranked=ranked)
    _show(args, rows, ranked, failed, page if rows else None)
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
    from acls.report.results import RANKED
    from acls.results import Record, evaluate
    from acls.study.ranking import rank

    named = [Path(path).stem for path in args.predictions]
    named = named if len(set(named)) == len(named) else list(args.predictions)
    if len(set(named)) < len(named):
        raise InputError("--predictions names a file twice")
    records = []
    for name, path in zip(named, args.predictions, strict=True):
        result = evaluate(path, by_image=None, compare=True)
        records.append(Record(name, None, "none", result, {"unit": result.unit}))
        if result.labels != records[0].result.labels:
            raise InputError(f"{path} has other labels than {args.predictions[0]}: both must hold the same samples")
    _show(args, records, rank(records, RANKED), [], None)
    return 0


def _of_studies(args: argparse.Namespace) -> list[str]:
    """The options given that say how to run a study."""
    names = (*DEFAULTS, "out", "no_report", "wait", "address", "workers")
    given = [name for name in names if getattr(args, name) is not None and getattr(args, name) is not False]
    return [f"--{name.replace('_', '-')}" for name in given] + ["--engine"] * (args.engine != "local")


def _show(
    args: argparse.Namespace,
    records: Sequence[Record],
    ranked: Sequence[Ranked],
    failed: Sequence[Failed],
    page: Path | None,
) -> None:
    """The answer first, then each method against the first, then the table and what was ranked."""
    if args.json:
        plain = {
            "rows": [_as_json(one) for one in records],
            "ranking": [
                asdict(one) | {"next": one.next, "difference": one.difference, "significant": one.significant}
                for one in ranked
            ],
            "failed": [asdict(one) for one in failed],
            "report": None if page is None else str(page),
        }
        say(args, plain)
    elif records:
        _print(args, records, ranked)
        if page is not None:
            print(f"\nreport: {page}")
    for failure in failed:
        print(f"acls compare: {failure.method}, seed {failure.seed}: {failure.why}", file=sys.stderr)


def _as_json(record: Record) -> dict[str, Any]:
    """A record as one object, its numbers under ``metrics`` by name, as 0.1.0 had them, and whole under ``result``."""
    result = record.result
    numbers = {
        name: {
            "value": one.value,
            "debiased": one.debiased,
            "low": one.low,
            "high": one.high,
            "floor": result.get(f"{name}_floor"),
        }
        for name, one in result.estimates.items()
    }
    about = {name: value for name, value in vars(record).items() if name != "result"}
    return {**about, "n": record.n, "metrics": numbers, "result": result.as_json()}


def _print(args: argparse.Namespace, records: Sequence[Record], ranked: Sequence[Ranked]) -> None:
    from acls.metrics.catalogue import names
    from acls.report.results import (
        about_ranking,
        baseline_table,
        best_first,
        marks_of,
        ranking_table,
        results_table,
        signs,
    )
    from acls.report.tables import paragraph

    by_ece = [one for one in ranked if one.metric == "ece"]
    for one in by_ece:
        print(paragraph(about_ranking(one)))
    for one in by_ece:
        after = "" if one.posthoc == "none" else f"after {one.posthoc}:\n"
        print(f"\n{after}", end="")
        show_table(args, baseline_table(one, records))
    columns = [name for name in names(1) if any(name in one.result.estimates for one in records)]
    columns.insert(columns.index("ece") + 1, "ece_floor")
    marks = marks_of(ranked)
    print()
    show_table(args, results_table(best_first(records), columns, marks=marks))
    if ranked:
        print()
        show_table(args, ranking_table(ranked))
    seeds = len({one.seed for one in records})
    spread = "mean ± standard deviation over seeds; " if seeds > 1 else ""
    told = (
        f"{spread}floor: the ECE that a calibrated model with these confidences would show at this n. Differences are "
        "of estimates without the bias of noise, with 95 % intervals over seeds and test samples. "
    )
    print("\n" + paragraph(told + (signs() if marks else "")))
