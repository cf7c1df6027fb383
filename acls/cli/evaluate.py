"""Measure the calibration of saved predictions: every metric with its interval, its noise floor and n.

The noise floor is what a perfectly calibrated model with the same confidences would show at the same n. Several files
are several models on the same samples, and are compared with the first; a folder, or a glob in quotes, of parquet
parts is one data set. Files may be larger than memory.

Examples:
  acls evaluate preds.npz
  acls evaluate preds.csv --probs p0,p1,p2 --label y
  acls evaluate nets.npz --logits resnet20 --logits resnet56
  acls evaluate before.parquet after.parquet --json
  acls evaluate 'parts/*.parquet' --by group --workers 4
  acls evaluate pixels.npz --image image_index --by image
  acls evaluate preds.npz --max-error 2%
  acls evaluate preds.npz --protocol all

"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from acls.cli.common import FILES, Line, Parts, add_columns, add_shared, engine_of, models_of, note, say, with_progress
from acls.options import number

if TYPE_CHECKING:
    from acls.metrics.decision import Decision
    from acls.metrics.protocols import Protocol
    from acls.predictions import Columns, Predictions
    from acls.results import Differences, Result


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``acls evaluate``."""
    parser.add_argument("files", metavar="FILE", nargs="+", help=FILES)
    parser.add_argument("--bins", type=number(int, "[1, 100000]"), default=15, help="bins of the calibration errors")
    by = "group, or a column's name: numbers and --max-error for each group as well; predicted: for each predicted "
    by += "class; image: whole images are independent, not rows"
    parser.add_argument("--by", action="append", default=[], metavar="group|image|predicted|NAME", help=by)
    protocol = "numbers as a paper's code computes them; all: every convention side by side"
    parser.add_argument("--protocol", metavar="NAME", help=protocol)
    workers = "processes that share out the parts of a data set (default: this one alone)"
    add_shared(parser, "max_error", "bootstrap", "json", "markdown", "quiet", "engine", "address", workers=workers)
    add_columns(parser, several=True, weight=True)


def run(args: argparse.Namespace) -> None:
    """Evaluate every model and print the results."""
    if args.protocol is not None:
        _run_protocols(args)
        return
    from acls.results import differences

    models = models_of(args, args.files)
    results = {title: _evaluated(args, title, path, columns, len(models) > 1) for title, path, columns in models}
    compared = differences(results) if args.bootstrap else differences(dict([next(iter(results.items()))]))
    for title, why in compared.left_out.items():
        note(args, f"{title} is not compared with {compared.baseline}: {why}")
    say(args, _as_json(args, results, compared), _parts(args, results, compared))


def _run_protocols(args: argparse.Namespace) -> None:
    """Print the numbers of one or all named conventions, and how they differ."""
    from acls.metrics.protocols import PROTOCOLS, protocol
    from acls.predictions import open_batches
    from acls.results import measure

    chosen = list(PROTOCOLS.values()) if args.protocol == "all" else [protocol(args.protocol)]
    found = {}
    for title, path, columns in models_of(args, args.files):
        batches = with_progress(args, open_batches(path, columns, ignore_index=args.ignore_index))
        found[title] = measure(batches, chosen, ignore_index=args.ignore_index, skip_unfit=len(chosen) > 1)
    whys = {one.name: one.why for one in chosen}
    objects = [{"file": title, "protocols": measured, "why": whys} for title, measured in found.items()]
    say(args, objects[0] if len(objects) == 1 else {"files": objects}, _protocol_parts(found, chosen))


def _protocol_parts(found: dict[str, dict[str, dict[str, float]]], chosen: list[Protocol]) -> Parts:
    from acls.report.results import protocol_table

    for title, measured in found.items():
        yield from (Line(f"{title}:\n"), protocol_table(measured), "")
    for one in chosen:
        used = any(one.name in measured for measured in found.values())
        needs = "the image of each row (--image NAME)" if one.images else "the scores of all classes"
        yield f"{one.name}: {one.why if used else f'left out, as it needs {needs}'}."


def _evaluated(args: argparse.Namespace, title: str, path: str, columns: Columns, compare: bool) -> Result:
    from acls.predictions import open_batches
    from acls.results import count

    batches = open_batches(path, columns, ignore_index=args.ignore_index)
    by = {"by_group": any(name != "image" for name in args.by), "by_image": "image" in args.by}
    settings: dict[str, Any] = {**by, "bins": args.bins, "compare": compare, "ignore_index": args.ignore_index}
    if len(batches.files) > 1 and "predicted" not in args.by and (args.workers is not None or args.engine != "local"):
        from acls.study.parts import count_parts

        counts = count_parts(batches, engine_of(args), **settings)
    else:
        read: Iterable[Predictions] = with_progress(args, batches)
        if "predicted" in args.by:
            read = (replace(p, group=p.top()[1], group_names=()) for p in read)
        counts = count(read, **settings)
    if empty := counts.empty_groups():
        named = ", ".join(empty[:5]) + (f" and {len(empty) - 5} more" if len(empty) > 5 else "")
        note(args, f"{title} has groups without a labelled row, left out: {named}")
    return counts.result(replicates=args.bootstrap)


def _decisions(args: argparse.Namespace, result: Result) -> dict[str, Decision]:
    """The decision for all samples, under the empty name, and for each group."""
    return {name: one.decide(args.max_error) for name, one in {"": result, **result.groups}.items()}


def _as_json(args: argparse.Namespace, results: dict[str, Result], compared: Differences) -> dict[str, Any]:
    objects = []
    for title, result in results.items():
        plain = {"file": title, "kind": result.kind, "bins": args.bins, **result.as_json()}
        objects.append(plain)
        if args.max_error is not None:
            whole, *groups = (one.as_json() for one in _decisions(args, result).values())
            plain["decision"] = {**whole, "groups": dict(zip(result.groups, groups, strict=True))}
    if len(objects) == 1:
        return objects[0]
    against, found = compared.baseline, compared.as_json()
    comparisons = [{"file": title, "against": against, "differences": one} for title, one in found.items()]
    return {"files": objects, "comparisons": comparisons}


def _parts(args: argparse.Namespace, results: dict[str, Result], compared: Differences) -> Parts:
    """Each model against the first, in a sentence; each one's verdict and numbers; then those of the comparison."""
    from acls.report.results import comparison_table, group_table, metric_table
    from acls.results import verdict
    from acls.results.words import remarks

    first = results[compared.baseline]
    for title, found in compared.comparisons.items():
        against = f"{title} against {compared.baseline}, on the same {first.n} samples"
        yield from (f"{against}: {verdict(found['ece']).text}", "")
    for title, result in results.items():
        suite = result.suite
        classes = f" of {suite.n_classes} classes" if suite is not None and suite.n_classes else ""
        left_out = f", {result.rows - result.n} left out" if result.rows > result.n else ""
        yield from (f"{title}: {verdict(result).text}", "")
        if args.max_error is not None:
            for group, decision in _decisions(args, result).items():
                yield f"{group}: {decision}" if group else str(decision)
            yield ""
        kind = "confidences" if result.kind == "triples" else result.kind
        yield f"{kind}{classes}, n = {result.n}{left_out}, {args.bins} bins"
        yield from ("", metric_table(result), "")
        yield from remarks(result)
        if result.groups:
            yield from ("", "by group:", "", group_table(result.groups))
        yield ""
    for title, found in compared.comparisons.items():
        yield from (Line(f"{title} against {compared.baseline}:\n"), comparison_table(first, results[title], found), "")
    if many := len(compared.comparisons):
        corrected = f" Intervals and p-values are corrected for {many} comparisons (Bonferroni)." if many > 1 else ""
        yield f"Each p tests that the metric of its row is the same for both models.{corrected}"
