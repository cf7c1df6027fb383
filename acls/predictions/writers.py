"""Write predictions in formats that other programs can read."""

from __future__ import annotations

import csv
import itertools
import json
import os
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from acls.errors import InputError, require
from acls.predictions.core import Predictions
from acls.predictions.readers import META_KEY
from acls.storage import atomic_write, check_form, save_tensors

_MARK = {"acls": "predictions"}
"""The mark by which acls recognizes its own files, which it may replace: see `acls.storage.MARKS`."""
ROW_GROUP = 1 << 21
"""Scores in a row group of a parquet file: 8 MB of float32."""


def save_batches(path: str | os.PathLike[str], batches: Iterable[Predictions]) -> None:
    """Write predictions to one file, atomically; tables are written batch by batch, arrays are concatenated first.

    Text files have one column per class with the default names of the reader: ``p0, p1, ...`` for probabilities.
    """
    check_form(path, "predictions")
    parts = iter(batches)
    first = next(parts, None)
    if first is None:
        raise InputError(f"cannot write {path}: there are no predictions")
    with atomic_write(path) as temporary:
        _WRITERS[temporary.suffix](temporary, itertools.chain([first], parts))


def _write_npz(path: Path, batches: Iterable[Predictions]) -> None:
    p = Predictions.concat(list(batches))
    np.savez(path, **_named(p), meta=np.array(json.dumps({**p.meta, **_MARK})))


def _write_safetensors(path: Path, batches: Iterable[Predictions]) -> None:
    p = Predictions.concat(list(batches))
    names = {"group_names": json.dumps(p.group_names)} if p.group_names else {}
    save_tensors(path, _columns(p), {**p.meta, **_MARK, **names})


def _write_parquet(path: Path, batches: Iterable[Predictions]) -> None:
    arrow, parquet = require("pyarrow", extra="io"), require("pyarrow.parquet", extra="io")
    writer = None
    with ExitStack() as stack:
        for batch in batches:
            columns = {}
            for name, values in _named(batch).items():
                flat = arrow.array(values.reshape(-1))
                columns[name] = arrow.FixedSizeListArray.from_arrays(flat, values.shape[1]) if values.ndim > 1 else flat
            about = {META_KEY: json.dumps({**batch.meta, **_MARK})}
            table = arrow.table(columns).replace_schema_metadata(about)
            if writer is None:
                writer = stack.enter_context(parquet.ParquetWriter(path, table.schema, write_page_checksum=True))
            writer.write_table(table, row_group_size=max(1, ROW_GROUP // (batch.n_classes or 1)))


def _write_text(path: Path, batches: Iterable[Predictions]) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",", lineterminator="\n")
        for batch in batches:
            columns: dict[str, Any] = {}
            for name, values in _named(batch).items():
                text = values.astype(str)  # the shortest text that is parsed to the same number of the same type
                prefix = "p" if name == "probs" else name
                columns |= {name: text} if text.ndim == 1 else {f"{prefix}{k}": one for k, one in enumerate(text.T)}
            if file.tell() == 0:
                writer.writerow(columns)
            writer.writerows(zip(*columns.values(), strict=True))


_WRITERS: dict[str, Callable[[Path, Iterable[Predictions]], None]] = {
    ".npz": _write_npz, ".safetensors": _write_safetensors, ".parquet": _write_parquet,
    ".csv": _write_text, ".tsv": _write_text,
}  # fmt: skip


def _named(p: Predictions) -> dict[str, Any]:
    """Return the columns as arrays, with group names; bfloat16 becomes float32, because NumPy does not have it."""
    arrays = {
        name: np.ascontiguousarray((column.float() if column.dtype == torch.bfloat16 else column).numpy())
        for name, column in _columns(p).items()
    }
    if p.group is not None and p.group_names:
        arrays["group"] = np.array(p.group_names)[arrays["group"]]
    return arrays


def _columns(p: Predictions) -> dict[str, Tensor]:
    """Return the columns that exist, by their names in files."""
    found = {name: getattr(p, name) for name in ("confidence", "predicted", "group", "image", "weight")}
    if p.stated:
        found = {**found, "predicted": None, "correct": p.labels}
    else:
        found = {p.kind: p.scores, "labels": p.labels, **found}
    return {name: column.detach().cpu() for name, column in found.items() if column is not None}
