"""Options that every command has which reads predictions, and the progress bar."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from acls.errors import InputError

if TYPE_CHECKING:
    from acls.predictions import Batches, Columns, Predictions

NAMES = """\
naming arrays or columns:
  A file has rows of K scores under the name logits, probs or log_probs (or only confidence and predicted), and labels;
  or stated confidences under confidence and correct; optionally group and image. Other names are given under the kind
  that they are:
    --logits resnet20              an array or a list column
    --probs 'probs[3]'             the fourth along the leading axis of an array
    --probs cat,dog,eel            one column per class
    --probs p                      the columns p0, p1, ... (which are found by themselves)
    --confidence c --correct ok    what a model stated, and whether it was right
  One column is the score of class 1 of two classes.
"""


def add_columns(parser: argparse.ArgumentParser, *, several: bool = False) -> None:
    """Add the options that say which names of a file hold what; ``several`` lets scores be named more than once."""
    action = "append" if several else "store"
    names = parser.add_argument_group("names in the file")
    kinds = names.add_mutually_exclusive_group()
    kinds.add_argument("--logits", action=action, metavar="NAME", help="scores before the softmax")
    kinds.add_argument("--probs", action=action, metavar="NAME", help="probabilities")
    kinds.add_argument("--log-probs", action=action, metavar="NAME", help="logarithms of probabilities")
    names.add_argument(
        "--confidence", metavar="NAME", help="probability of the predicted class, or stated by a language model"
    )
    names.add_argument("--predicted", metavar="NAME", help="predicted class, together with --confidence and --label")
    names.add_argument("--correct", metavar="NAME", help="1 if the prediction is right, 0 if not, with --confidence")
    names.add_argument("--label", "--labels", dest="labels", metavar="NAME", help="true class, from 0 on")
    names.add_argument("--group", metavar="NAME", help="group of each row")
    names.add_argument("--image", metavar="NAME", help="image that each row, a pixel, comes from")
    names.add_argument(
        "--ignore-index", type=int, default=-100, metavar="LABEL", help="label of rows that do not count"
    )


def columns_of(args: argparse.Namespace) -> Columns:
    """The names that the options say."""
    from acls.predictions import Columns

    names = ("logits", "probs", "log_probs", "confidence", "predicted", "correct", "labels", "group", "image")
    return Columns(**{name: getattr(args, name) for name in names})


def models_of(args: argparse.Namespace) -> list[tuple[str, str, Columns]]:
    """Title, file and names of each model: files under one name, or names in one file, or one name per file."""
    named = [(kind, name) for kind in ("logits", "probs", "log_probs") for name in getattr(args, kind) or []]
    rest = argparse.Namespace(**{**vars(args), "logits": None, "probs": None, "log_probs": None})
    group = next((name for name in getattr(args, "by", []) if name not in ("group", "image", "predicted")), None)
    common = columns_of(rest)
    if group is not None:
        common = replace(common, group=group)
    short = {path: Path(path).name or path for path in args.files}
    if len(set(short.values())) < len(short):
        short = {path: path for path in args.files}
    if len(named) <= 1:
        columns = replace(common, **dict(named))
        return [(short[path], path, columns) for path in args.files]
    if len(args.files) == 1:
        return [(name, args.files[0], replace(common, **{kind: name})) for kind, name in named]
    if len(args.files) != len(named):
        raise InputError(f"{len(named)} names of scores for {len(args.files)} files: give one for all, or one for each")
    return [
        (f"{short[path]}:{name}", path, replace(common, **{kind: name}))
        for path, (kind, name) in zip(args.files, named, strict=True)
    ]


def with_progress(batches: Batches, title: str, *, quiet: bool) -> Iterator[Predictions]:
    """Go through a data set, with a bar on the terminal where there is one and rich is installed."""
    return _tracked(batches, title, batches.n_rows, quiet=quiet)


def _tracked(batches: Iterable[Predictions], title: str, total: int | None, *, quiet: bool) -> Iterator[Predictions]:
    if quiet or not sys.stderr.isatty():
        yield from batches
        return
    try:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
    except ModuleNotFoundError:
        yield from batches
        return
    shown = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,.0f} rows"),
        TimeRemainingColumn(),
    )
    with Progress(*shown, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(title, total=total)
        for batch in batches:
            yield batch
            progress.advance(task, len(batch))
