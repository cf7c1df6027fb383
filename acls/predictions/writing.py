"""Writing predictions, in formats that others read as well."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from acls.errors import InputError, require
from acls.predictions.core import Predictions
from acls.predictions.tables import META_KEY
from acls.storage import atomic_write, save_tensors

_MARK = {"acls": "predictions"}
"""By which acls knows its own files, and may replace them: see `acls.storage.MARKS`."""
ROW_GROUP = 1 << 21
"""Scores in a row group of a parquet file: 8 MB of float32."""


def save_batches(path: str | os.PathLike[str], batches: Iterable[Predictions]) -> None:
    """Write predictions as one file, whole or not at all; ``.parquet`` slice by slice, the others gathered first."""
    path = Path(path)
    if path.suffix == ".parquet":
        _save_parquet(path, batches)
    elif path.suffix == ".npz":
        _save_npz(path, Predictions.concat(list(batches)))
    elif path.suffix == ".safetensors":
        _save_safetensors(path, Predictions.concat(list(batches)))
    else:
        raise InputError(f"cannot write {path}: name a file that ends in .npz, .safetensors or .parquet")


def _save_npz(path: Path, p: Predictions) -> None:
    arrays = {name: column.numpy() for name, column in _columns(p).items()}
    if p.group is not None and p.group_names:
        arrays["group"] = np.array(p.group_names)[arrays["group"]]
    arrays["meta"] = np.array(json.dumps({**_MARK, **p.meta}))
    with atomic_write(path) as temporary:
        np.savez(temporary, **arrays)  # type: ignore[arg-type]


def _save_safetensors(path: Path, p: Predictions) -> None:
    meta = {**p.meta, **_MARK}
    if p.group_names:
        meta["group_names"] = json.dumps(p.group_names)
    save_tensors(path, _columns(p, keep_brain_float=True), meta)


def _save_parquet(path: Path, batches: Iterable[Predictions]) -> None:
    arrow, parquet = require("pyarrow", extra="io"), require("pyarrow.parquet", extra="io")
    with atomic_write(path) as temporary:
        writer = None
        try:
            for batch in batches:
                rows = max(1, ROW_GROUP // (batch.n_classes or 1))
                for start in range(0, max(1, len(batch)), rows):
                    table = _arrow_table(batch[start : start + rows], arrow)
                    writer = writer or parquet.ParquetWriter(temporary, table.schema)
                    writer.write_table(table)
        finally:
            if writer is not None:
                writer.close()
        if writer is None:
            raise InputError(f"cannot write {path}: there are no predictions")


def _arrow_table(p: Predictions, arrow: Any) -> Any:
    columns: dict[str, Any] = {}
    for name, column in _columns(p).items():
        values = np.ascontiguousarray(column.numpy())
        if column.ndim == 2:
            columns[name] = arrow.FixedSizeListArray.from_arrays(arrow.array(values.reshape(-1)), column.shape[1])
        elif name == "group" and p.group_names:
            columns[name] = arrow.DictionaryArray.from_arrays(values.astype(np.int32), list(p.group_names)).cast(
                "string"
            )
        else:
            columns[name] = arrow.array(values)
    return arrow.table(columns).replace_schema_metadata({META_KEY: json.dumps({**_MARK, **p.meta})})


def _columns(p: Predictions, *, keep_brain_float: bool = False) -> dict[str, Tensor]:
    """What there is, by the names it has in files; bfloat16 widened for what does not know it."""
    found = {
        "labels": p.labels,
        "confidence": p.confidence,
        "predicted": p.predicted,
        "group": p.group,
        "image": p.image,
    }
    if p.scores is not None:
        found = {p.kind: p.scores, **found}
    plain = {name: column.detach().cpu() for name, column in found.items() if column is not None}
    if keep_brain_float:
        return plain
    return {name: column.float() if column.dtype == torch.bfloat16 else column for name, column in plain.items()}
