"""Options that several commands share, such as the column names of a file, and functions that print results."""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from acls.errors import InputError
from acls.options import number, to_plain
from acls.report import texts
from acls.storage import check_output

if TYPE_CHECKING:
    from acls.predictions import Batches, Columns, Predictions
    from acls.study.engine import Engine

FILES = ".npz, .safetensors, .parquet or .csv; a folder or glob of parquet parts"
_SCORES = ("logits", "probs", "log_probs")
COLUMNS = {
    "logits": "scores before the softmax",
    "probs": "probabilities",
    "log_probs": "logarithms of probabilities",
    "confidence": "probability of the predicted class, or stated by a language model",
    "predicted": "predicted class, together with --confidence and --label",
    "correct": "1 if the prediction is right, 0 if not, together with --confidence",
    "labels": "true class, starting at 0",
    "group": "group of each row, such as the task",
    "image": "image that each row (a pixel) belongs to",
    "weight": "weight of each row",
}
"""The options that `add_columns` adds, with their help."""
_NAMES = """
names of arrays or columns:
  A file has rows of K scores named logits, probs or log_probs, and labels; or
  stated confidences, named confidence and correct; or confidence, predicted
  and labels; optionally group and image. Pass other names as options:
    --logits resnet20             an array or a list column
    --probs 'probs[3]'            the fourth along the leading axis of an array
    --probs cat,dog,eel           one column per class
    --probs p                     the columns p0, p1, ..., found by default
    --confidence c --correct ok   a stated confidence, and if it was right
  One column is the score of class 1 of two classes.
"""


def share(text: str) -> float:
    """Parse a fraction, written as ``2%`` or ``0.02``."""
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = 0.0
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"expected a share between 0 and 1, such as 2% or 0.02, got {text!r}")
    return value


def numbers(text: str) -> list[int]:
    """Parse ``3``, ``1-5`` or ``1,3,5`` without duplicates; return an empty list for any other text."""
    try:
        parts = [part.split("-") for part in text.split(",") if part.strip()]
        return list(dict.fromkeys(n for part in parts for n in range(int(part[0]), int(part[-1]) + 1)))
    except ValueError:
        return []


_SHARED: dict[str, dict[str, Any]] = {
    "json": {"action": "store_true", "help": "print one JSON object, with fractions, not percent"},
    "markdown": {"action": "store_true", "help": "print the tables as Markdown"},
    "quiet": {"action": "store_true", "help": "no progress bar"},
    "force": {"action": "store_true", "help": "overwrite files that acls did not write"},
    "wait": {"action": "store_true", "help": "wait while another process works in the same folder"},
    "figure": {"metavar": "FILE", "help": "also draw a figure: .png, .svg or .pdf"},
    "bootstrap": {
        "type": number(int, "[0, 1000000]"), "default": 1000, "metavar": "N",
        "help": "draws for the noise floors, at least 200; 0: also no intervals",
    },
    "max_error": {
        "metavar": "SHARE", "type": share,
        "help": "find the confidence at or above which at most this share of predictions is wrong, such as 2%% or 0.02",
    },
    "config": {"metavar": "FILE", "help": "start from a saved recipe, YAML or JSON, instead"},
    "engine": {"choices": ("local", "ray"), "default": "local", "help": "processes here, or a Ray cluster"},
    "address": {"metavar": "ADDRESS", "help": "address of the Ray cluster; auto: from the environment"},
    "workers": {
        "type": number(int, "[1, 100000]"), "metavar": "N", "help": "processes at a time (default: one per core or GPU)"
    },
}  # fmt: skip


def add_shared(parser: argparse.ArgumentParser, *names: str, **texts: str) -> None:
    """Add shared options by name; ``texts`` are shared options with a help text of their own."""
    for name in (*names, *texts):
        settings = _SHARED[name] | ({"help": texts[name]} if name in texts else {})
        parser.add_argument(f"--{name.replace('_', '-')}", **settings)


def add_columns(parser: argparse.ArgumentParser, *, several: bool = False, weight: bool = False) -> None:
    """Add the options for the names in a file; with ``several``, names of scores can be given more than once."""
    group = parser.add_argument_group("names in the file")
    for name, text in COLUMNS.items():
        flags = ["--label"] * (name == "labels") + [f"--{name.replace('_', '-')}"]
        action = "append" if several and name in _SCORES else "store"
        if weight or name != "weight":
            group.add_argument(*flags, dest=name, action=action, metavar="NAME", help=text)
    skipped = "label of rows to ignore"
    group.add_argument("--ignore-index", type=int, default=-100, metavar="LABEL", help=skipped)
    parser.epilog = f"{parser.epilog}{_NAMES}"


def columns_of(args: argparse.Namespace, **others: Any) -> Columns:
    """Return the column names from the options, replaced by ``others`` where given."""
    from acls.predictions import Columns

    names: dict[str, Any] = {name: getattr(args, name, None) for name in COLUMNS}
    return Columns(**(names | others))


def batches_of(args: argparse.Namespace, path: str, *, check: bool = True, **columns: Any) -> Batches:
    """Open a file with the column names from the options; on a terminal, show a progress bar while reading."""
    from acls.predictions import open_batches

    batches = open_batches(path, columns_of(args, **columns), ignore_index=args.ignore_index, check=check)
    hidden = getattr(args, "quiet", False) or args.json or not sys.stderr.isatty()
    return batches if hidden or importlib.util.find_spec("rich") is None else _with_bar(batches)


def models_of(args: argparse.Namespace, files: Sequence[str]) -> list[tuple[str, Batches]]:
    """Return title and data of each model: files with one name, names in one file, or one name per file."""
    from acls.front import short_names

    named = [(kind, name) for kind in _SCORES for name in getattr(args, kind) or []]
    short = dict(zip(files, short_names(files), strict=True))
    if len(named) <= 1:
        models = [(short[path], path, dict(named)) for path in files]
    elif len(files) == 1:
        models = [(name, files[0], {kind: name}) for kind, name in named]
    elif len(files) == len(named):
        pairs = zip(files, named, strict=True)
        models = [(f"{short[path]}:{name}", path, {kind: name}) for path, (kind, name) in pairs]
    else:
        raise InputError(
            f"{len(named)} names of scores for {len(files)} files: pass one for all files, or one for each"
        )
    by = (name for name in getattr(args, "by", []) if name not in ("group", "image", "predicted", "row"))
    common = {**dict.fromkeys(_SCORES), "group": next(by, args.group)}
    return [(title, batches_of(args, path, **(common | own))) for title, path, own in models]


def _with_bar(batches: Batches) -> Batches:
    """Return the same data, with a progress bar on the terminal during reading."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TimeRemainingColumn

    columns = ("{task.description}", BarColumn(), "{task.completed:,.0f} rows", TimeRemainingColumn())

    class Watched(type(batches)):  # type: ignore[misc]
        def __iter__(self) -> Iterator[Predictions]:
            with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
                task = progress.add_task(f"reading {self.files[0].name}", total=self.n_rows)
                for batch in super().__iter__():
                    yield batch
                    progress.advance(task, len(batch))

    return Watched(**vars(batches))


def engine_of(args: argparse.Namespace) -> Engine:
    """Return the engine that the options describe."""
    from acls.study.engine import make_engine

    return make_engine(args.engine, workers=args.workers, address=args.address)


def check_out(args: argparse.Namespace, path: str | Path | None, kind: str, *inputs: Any) -> None:
    """Raise an error, before any work, if the command must not write ``path``: see `storage.check_output`."""
    if path is not None:
        check_output(path, kind, inputs=[one for one in inputs if one is not None], force=args.force)


def say(args: argparse.Namespace, result: Any, shown: str | None = None) -> None:
    """Print a result: as JSON with --json, otherwise ``shown`` or the text from `acls.report.texts`."""
    for one in getattr(result, "notes", ()):
        note(args, one)
    if args.json:
        plain = result.as_json() if hasattr(result, "as_json") else result
        print(json.dumps(to_plain(plain), indent=2, allow_nan=False, ensure_ascii=False))
        return
    said = texts.text(result, markdown=getattr(args, "markdown", False)) if shown is None else shown
    if said:
        print(said)


def note(args: argparse.Namespace, text: str) -> None:
    """Print a line to standard error."""
    print(f"acls {args.command}: {text}", file=sys.stderr)


@contextmanager
def continued(way: str) -> Iterator[None]:
    """Mark work that can continue after Ctrl-C; ``way`` tells the user how."""
    try:
        yield
    except KeyboardInterrupt as stopped:
        raise KeyboardInterrupt(way) from stopped
