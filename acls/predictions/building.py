"""Making `Predictions` of the arrays that a file gives."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from acls.errors import InputError
from acls.predictions.columns import Layout
from acls.predictions.core import Predictions
from acls.predictions.files import Array
from acls.shapes import IGNORE_INDEX
from acls.storage import CHECKSUMS


@dataclass
class Builder:
    """Makes `Predictions` of arrays, with the same number for the same name of a group in every slice."""

    names: dict[str, dict[str, int]] = field(default_factory=lambda: {"group": {}, "image": {}})
    images: int = 0
    missing: int = IGNORE_INDEX
    """The label of all rows where the file has none."""

    def __call__(
        self, block: dict[str, list[Array]], layout: Layout, meta: dict[str, str], where: str, row: int
    ) -> Predictions:
        columns: dict[str, Any] = {"scores": None}
        for role, arrays in block.items():
            name = ",".join(map(str, layout.roles[role][:3]))
            if role == "scores":
                columns[role] = _scores(arrays, name, layout, where)
            elif role == "confidence":
                columns[role] = _floats(arrays[0], name, where)
            elif role in self.names and arrays[0].dtype.kind in "UOS":
                columns[role] = self._numbers(role, arrays[0])
            elif role == "group" and "group_names" in meta:
                named = np.array(json.loads(meta["group_names"]))
                columns[role] = self._numbers(role, named[_integers(arrays[0], name, where, row).numpy()])
            else:
                columns[role] = _integers(arrays[0], name, where, row)
        if "labels" not in columns:
            shape = columns["confidence"].shape if columns["scores"] is None else columns["scores"][:, 0].shape
            columns["labels"] = torch.full(shape, self.missing)
        images = len(columns["labels"])
        _flatten_maps(columns, self.images, where)
        self.images += images
        rest = {key: value for key, value in meta.items() if key not in ("group_names", "acls", CHECKSUMS)}
        try:
            return Predictions(kind=layout.kind, group_names=tuple(self.names["group"]), meta=rest, **columns)
        except InputError as error:
            raise InputError(f"{where}: {error}") from error

    def _numbers(self, role: str, names: Array) -> Tensor:
        known = self.names[role]
        distinct, first, inverse = np.unique(names.astype(str), return_index=True, return_inverse=True)
        for at in np.argsort(first):  # numbers in the order of first appearance, whatever the slices
            known.setdefault(str(distinct[at]), len(known))
        return torch.from_numpy(np.array([known[str(name)] for name in distinct])[inverse])


def _scores(arrays: list[Array], name: str, layout: Layout, where: str) -> Tensor:
    for array, ref in zip(arrays, layout.roles["scores"], strict=True):
        if len(arrays) > 1 and array.ndim != 1:
            raise InputError(f"{where}: {str(ref)!r} has shape {array.shape}; of several columns each holds one class")
    scores = _floats(arrays[0] if len(arrays) == 1 else np.stack(arrays, axis=1), name, where)
    if scores.ndim == 1 or scores.shape[1] == 1:
        return _two_classes(scores if scores.ndim == 1 else scores[:, 0], layout.kind)
    return scores


def _two_classes(second: Tensor, kind: str) -> Tensor:
    """Scores of classes 0 and 1 from the one column or map ``(N, *D)`` that binary models give: that of class 1."""
    if kind == "logits":
        return torch.stack([torch.zeros_like(second), second], 1)
    if kind == "probs":
        return torch.stack([1 - second, second], 1)
    return torch.stack([torch.log(-torch.expm1(second)), second], 1)


def _floats(array: Array, name: str, where: str) -> Tensor:
    if array.dtype.kind not in "fiu":
        raise InputError(f"{where}: {name!r} has dtype {array.dtype}, but numbers are called for")
    if array.dtype.kind in "iu":
        array = array.astype(np.float32)
    elif array.dtype.itemsize > 8:
        array = array.astype(np.float64)
    return _tensor(array)


def _integers(array: Array, name: str, where: str, row: int) -> Tensor:
    if array.dtype.kind not in "fiub":
        raise InputError(
            f"{where}: {name!r} has dtype {_dtype_name(array)}, but class ids are called for: integers from 0 on"
        )
    if array.dtype.kind == "f":
        wrong = np.argwhere(~(np.isfinite(array) & (array == np.rint(array))))
        if wrong.size:
            value = array[tuple(wrong[0])]
            raise InputError(f"{where}: row {row + wrong[0][0]}: {name!r} is {value}, but an integer is called for")
    return _tensor(array.astype(np.int64))


def _tensor(array: Array) -> Tensor:
    return torch.from_numpy(np.require(array, array.dtype.newbyteorder("="), ["W"]))


def _dtype_name(array: Array) -> str:
    return "text" if array.dtype.kind in "UOS" else str(array.dtype)


def _flatten_maps(columns: dict[str, Any], first_image: int, where: str) -> None:
    """Turn maps ``(N, K, *D)`` with labels ``(N, *D)`` into rows of K, and number the images if nobody did."""
    labels, scores = columns["labels"], columns["scores"]
    n, maps = labels.shape[0], labels.shape[1:]
    if scores is not None and scores.shape[2:] != maps:
        raise InputError(f"{where}: {_shape_trouble(tuple(scores.shape[1:]), tuple(maps))}")
    if not maps:
        return
    columns["image"] = columns.get("image", torch.arange(first_image, first_image + n))
    for name, column in columns.items():
        if name == "scores":
            columns[name] = None if column is None else column.movedim(1, -1).reshape(-1, column.shape[1])
        else:
            columns[name] = (column if column.ndim > 1 else column.repeat_interleave(maps.numel())).reshape(-1)


def _shape_trouble(scores: tuple[int, ...], labels: tuple[int, ...]) -> str:
    def show(shape: tuple[int, ...]) -> str:
        return f"({', '.join(map(str, ('n', *shape)))}{'' if shape else ','})"

    came = f"labels have shape {show(labels)}, scores {show(scores)}"
    if labels == scores:
        return f"{came}: class ids, one a row, are called for; of one-hot labels save the argmax over the classes"
    if labels and scores[:-1] == labels:
        return f"{came}: the classes belong on axis 1; save the scores with their last axis moved there"
    return f"{came}, but {show(scores[1:])} is called for: the same without axis 1, which holds the classes"
