"""Measure the calibration of saved predictions: every metric with its interval, its noise floor and n.

The noise floor is what a perfectly calibrated model with the same confidences would show at the same n. Several files
are several models on the same samples, and are compared with the first; a folder, or a glob in quotes, of parquet
parts is one data set. Files may be larger than memory.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from acls.cli.engines import add_engine, engine_of
from acls.cli.inputs import NAMES, add_columns, models_of, with_progress
from acls.cli.output import say
from acls.options import number

if TYPE_CHECKING:
    from acls.evaluation import Evaluation, Worth
    from acls.metrics.intervals import Comparison
    from acls.predictions import Columns
    from acls.report.tables import Table

EXAMPLE = f"""\
examples:
  acls evaluate preds.npz
  acls evaluate preds.csv --probs p0,p1,p2 --label y
  acls evaluate nets.npz --logits resnet20 --logits resnet56
  acls evaluate before.parquet after.parquet --json
  acls evaluate 'parts/*.parquet' --by group --workers 4
  acls evaluate pixels.npz --image image_index --by image
  acls evaluate preds.npz --protocol all

{NAMES}"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``acls evaluate``."""
    parser.add_argument("files", metavar="FILE", nargs="+", help=".npz, .safetensors, .parquet, .csv; a folder or glob")
    parser.add_argument("--bins", type=number(int, "[1, 100000]"), default=15, help="bins of the calibration errors")
    parser.add_argument(
        "--by", action="append", default=[], metavar="group|image|NAME",
        help="group, or a column's name: numbers for each group as well; image: resample whole images",
    )  # fmt: skip
    parser.add_argument(
        "--protocol", metavar="NAME", help="numbers as a paper's code computes them; all: every convention side by side"
    )
    parser.add_argument(
        "--bootstrap",
        type=number(int, "[0, 1000000]"),
        default=1000,
        metavar="N",
        help="resamples for intervals; 0 for none",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object, with fractions, not percent")
    parser.add_argument("--markdown", action="store_true", help="print the tables as Markdown")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    add_engine(parser, "processes that share out the parts of a data set (default: this one alone)")
    add_columns(parser, several=True)


def run(args: argparse.Namespace) -> int:
    """Evaluate every model and print what came out."""
    if args.protocol is not None:
        return _run_protocols(args)
    models = {title: _evaluated(args, path, columns) for title, path, columns in models_of(args)}
    worths = {title: model.worth(args.bootstrap) for title, model in models.items()}
    groups = {title: _grouped(title, model, args.bootstrap) for title, model in models.items()}
    comparisons = _compared(models, worths, args.bootstrap)
    if args.json:
        say(args, _as_json(models, worths, groups, comparisons))
    else:
        _print(args, models, worths, groups, comparisons)
    return 0


def _run_protocols(args: argparse.Namespace) -> int:
    """Print the numbers of one or all named conventions, and how they differ."""
    from acls.evaluation import measure
    from acls.metrics.protocols import PROTOCOLS, protocol
    from acls.predictions import open_batches
    from acls.report.tables import paragraph

    chosen = list(PROTOCOLS.values()) if args.protocol == "all" else [protocol(args.protocol)]
    found = {}
    for title, path, columns in models_of(args):
        batches = with_progress(
            open_batches(path, columns, ignore_index=args.ignore_index), f"reading {Path(path).name}", quiet=args.quiet
        )
        found[title] = measure(batches, chosen, ignore_index=args.ignore_index, skip_unfit=len(chosen) > 1)
    if args.json:
        whys = {one.name: one.why for one in chosen}
        objects = [{"file": title, "protocols": measured, "why": whys} for title, measured in found.items()]
        say(args, objects[0] if len(objects) == 1 else {"files": objects})
        return 0
    for title, measured in found.items():
        print(f"{title}:\n")
        _show(args, _protocol_table(measured))
        print()
    for one in chosen:
        used = any(one.name in measured for measured in found.values())
        needs = "the image of each row (--image NAME)" if one.images else "the scores of all classes"
        print(paragraph(f"{one.name}: {one.why if used else f'left out, as it needs {needs}'}."))
    return 0


def _evaluated(args: argparse.Namespace, path: str, columns: Columns) -> Evaluation:
    from acls.evaluation import evaluate
    from acls.predictions import open_batches

    batches = open_batches(path, columns, ignore_index=args.ignore_index)
    settings: dict[str, Any] = {
        "by_group": any(name != "image" for name in args.by),
        "by_image": "image" in args.by,
        "bins": args.bins,
        "resample": args.bootstrap > 0,
        "ignore_index": args.ignore_index,
    }
    if len(batches.files) > 1 and (args.workers is not None or args.engine != "local"):
        from acls.study.parts import evaluate_parts

        return evaluate_parts(batches, engine_of(args), **settings)
    return evaluate(with_progress(batches, f"reading {Path(path).name}", quiet=args.quiet), **settings)


def _grouped(title: str, model: Evaluation, replicates: int) -> dict[str, Worth]:
    """The numbers of each group; those without a labelled row have none, which is said."""
    empty = model.empty_groups()
    if empty:
        more = f" and {len(empty) - 5} more" if len(empty) > 5 else ""
        told = ", ".join(empty[:5]) + more
        print(f"acls evaluate: {title} has groups without a labelled row, left out: {told}", file=sys.stderr)
    return model.worth_by_group(replicates)


def _compared(
    models: dict[str, Evaluation], worths: dict[str, Worth], replicates: int
) -> dict[str, dict[str, Comparison]]:
    """Every other model against the first, p-values corrected for being many; those on other samples are left out."""
    from acls.metrics.intervals import holm

    first, *others = models
    if replicates == 0:
        return {}
    found = {}
    for title in others:
        if not worths[first].intervals:
            print(f"acls evaluate: {title} is not compared with {first}: the rows form one unit", file=sys.stderr)
        elif models[title].same_samples(models[first]):
            found[title] = _exact(models[title].compare(models[first], replicates), worths[title], worths[first])
        else:
            print(f"acls evaluate: {title} is not compared with {first}: its labels are others", file=sys.stderr)
    for shared in {name for comparison in found.values() for name in comparison}:
        adjusted = holm([comparison[shared].p for comparison in found.values()])
        for comparison, p in zip(found.values(), adjusted, strict=True):
            comparison[shared] = replace(comparison[shared], p=p)
    return found


def _exact(comparison: dict[str, Comparison], one: Worth, other: Worth) -> dict[str, Comparison]:
    """The same intervals around the differences of the values that are printed."""
    moved = {}
    for name, found in comparison.items():
        difference = one.summary[name] - other.summary[name]
        shift = difference - found.difference
        moved[name] = replace(found, difference=difference, low=found.low + shift, high=found.high + shift)
    return moved


def _as_json(
    models: dict[str, Evaluation],
    worths: dict[str, Worth],
    groups: dict[str, dict[str, Worth]],
    comparisons: dict[str, dict[str, Comparison]],
) -> dict[str, Any]:
    objects = []
    for title, model in models.items():
        plain = {"file": title, "kind": model.kind, "bins": model.bins, **worths[title].as_json()}
        if model.groups:
            plain["groups"] = {name: worth.as_json() for name, worth in groups[title].items()}
        objects.append(plain)
    if len(objects) == 1:
        return objects[0]
    against = next(iter(models))
    return {
        "files": objects,
        "comparisons": [
            {"file": title, "against": against, "differences": {name: vars(one) for name, one in comparison.items()}}
            for title, comparison in comparisons.items()
        ],
    }


def _print(
    args: argparse.Namespace,
    models: dict[str, Evaluation],
    worths: dict[str, Worth],
    groups: dict[str, dict[str, Worth]],
    comparisons: dict[str, dict[str, Comparison]],
) -> None:
    from acls.evaluation import FEW_GROUPS, verdict
    from acls.report.tables import paragraph

    for title, model in models.items():
        worth = worths[title]
        classes = f" of {model.n_classes} classes" if model.n_classes else ""
        left_out = f", {model.rows - worth.n} left out" if model.rows > worth.n else ""
        print(f"{title}: {model.kind}{classes}, n = {worth.n}{left_out}, {model.bins} bins\n")
        _show(args, _metric_table(worth))
        print()
        for line in [verdict(worth, by_image=model.by_image), *_remarks(model, worth)]:
            print(paragraph(line))
        if model.groups:
            print("\nby group:\n")
            _show(args, _group_table(groups[title]))
            if len(model.groups) > FEW_GROUPS:
                print(f"\n{paragraph(_about_many(groups[title]))}")
        print()
    first = next(iter(models))
    for title, comparison in comparisons.items():
        print(f"{title} minus {first}, on the same {worths[first].n} samples:\n")
        _show(args, _comparison_table(worths[first], worths[title], comparison))
        print()
    if len(comparisons) > 1:
        print(f"p-values are corrected for {len(comparisons)} comparisons (Holm).")


def _show(args: argparse.Namespace, table: Table) -> None:
    print(table.markdown() if args.markdown else table.text())


def _metric_table(worth: Worth) -> Table:
    from acls.evaluation import METRICS
    from acls.metrics.catalogue import metric
    from acls.report.tables import Table

    table = Table(["metric", "value", "95 % interval", "noise floor", "95 % of floors", "n"])
    for name in METRICS:
        if name in worth.summary:
            interval, floor = worth.intervals.get(name), worth.floors.get(name)
            table.add(
                metric(name).title,
                _number(name, worth.summary[name]),
                _range(name, interval.low, interval.high) if interval else "",
                _number(name, floor.mean) if floor else "",
                _range(name, floor.low, floor.high) if floor else "",
                str(worth.n),
            )
    return table


def _protocol_table(measured: dict[str, dict[str, float]]) -> Table:
    from acls.evaluation import METRICS
    from acls.metrics.catalogue import metric
    from acls.report.tables import Table

    names = [name for name in METRICS if any(name in numbers for numbers in measured.values())]
    table = Table(["protocol", *(metric(name).title for name in names), "n"])
    for protocol, numbers in measured.items():
        cells = (_number(name, numbers[name]) if name in numbers else "" for name in names)
        table.add(protocol, *cells, f"{numbers.get('n', 0):.0f}")
    return table


def _group_table(groups: dict[str, Worth]) -> Table:
    from acls.report.tables import Table

    shown = ("accuracy", "ece", "aece", "nll")
    table = Table(["group", "n", "accuracy %", "ECE %", "95 % interval", "noise floor", "adaptive ECE %", "NLL"])
    for name, worth in groups.items():
        accuracy, ece, aece, nll = (
            _number(column, worth.summary[column]) if column in worth.summary else "" for column in shown
        )
        interval = worth.intervals.get("ece")
        table.add(
            name,
            str(worth.n),
            accuracy,
            ece,
            _range("ece", interval.low, interval.high) if interval else "",
            _number("ece", worth.floors["ece"].mean),
            aece,
            nll,
        )
    return table


def _comparison_table(first: Worth, other: Worth, comparison: dict[str, Comparison]) -> Table:
    from acls.evaluation import METRICS, show_p
    from acls.metrics.catalogue import metric
    from acls.report.tables import Table

    table = Table(["metric", "first", "this", "difference", "95 % interval", "p"])
    for name in METRICS:
        if name in comparison:
            one = comparison[name]
            table.add(
                metric(name).title,
                _number(name, first.summary[name]),
                _number(name, other.summary[name]),
                _number(name, one.difference, sign=True),
                _range(name, one.low, one.high),
                show_p(one.p).removeprefix("= "),
            )
    return table


def _remarks(model: Evaluation, worth: Worth) -> list[str]:
    from acls.evaluation import METRICS

    remarks = []
    bounds = {name: bound for name in METRICS if (bound := worth.summary.get(f"{name}_bound", 0.0)) > 0}
    if bounds:
        told = ", ".join(f"{_plain_title(name)} by {100 * bound:.4f} %" for name, bound in bounds.items())
        remarks.append(
            f"Computed from a fine histogram of confidences, so off from the exact value by at most: {told}."
        )
    above = [name for name in METRICS if name in worth.intervals and worth.summary[name] > worth.intervals[name].high]
    if above:
        told = ", ".join(_plain_title(name) for name in above)
        remarks.append(
            f"At this n noise makes calibration errors too large; the intervals correct for it, so they can lie "
            f"below the value: {told}."
        )
    if model.resample and not worth.intervals:
        unit = "image" if model.by_image else "row"
        remarks.append(f"There are no intervals: resampling needs at least 2 {unit}s, better 30 or more.")
    if model.by_image:
        remarks.append(
            "Intervals resample whole images; noise floors take rows as independent, and are too low for that."
        )
    elif model.has_images:
        remarks.append("All this takes rows as independent; those of one image are not: --by image resamples images.")
    return remarks


def _about_many(groups: dict[str, Worth]) -> str:
    from acls.evaluation import MANY_REPLICATES

    about = f"For so many groups noise floors are of {MANY_REPLICATES} draws"
    if any(worth.intervals for worth in groups.values()):
        return f"{about}, intervals of {MANY_REPLICATES} resamples at most, of large blocks of rows: both are rougher."
    return f"{about}, and there are no intervals."


def _number(name: str, value: float, *, sign: bool = False) -> str:
    from acls.metrics.catalogue import metric

    return metric(name).show(value, sign=sign)


def _plain_title(name: str) -> str:
    from acls.metrics.catalogue import metric

    return metric(name).label


def _range(name: str, low: float, high: float) -> str:
    return f"{_number(name, low)} .. {_number(name, high)}"
