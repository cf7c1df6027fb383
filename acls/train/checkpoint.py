"""The state to resume from as one safetensors file: tensors as tensors, the rest as JSON; no pickle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch import Tensor

from acls.errors import InputError
from acls.storage import load_tensors, save_tensors

FORMAT = "acls resume 1"


def save_state(path: Path, state: dict[str, Any]) -> None:
    """Write nested dicts and lists of tensors and plain values, whole or not at all."""
    tensors: dict[str, Tensor] = {}
    plain = _pack(state, "", tensors)
    save_tensors(path, tensors, {"format": FORMAT, "state": json.dumps(plain)})


def load_state(path: Path) -> dict[str, Any]:
    """Read what `save_state` wrote."""
    tensors, meta = load_tensors(path)
    if meta.get("format") != FORMAT:
        raise InputError(f"{path} is not a state to resume from: expected the resume.safetensors of a run")
    state: dict[str, Any] = _unpack(json.loads(meta["state"]), tensors)
    return state


def _pack(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    """Replace tensors by their names. JSON has text keys only, so that dicts become lists of pairs."""
    if isinstance(value, Tensor):
        tensors[path] = value
        return {"tensor": path}
    if isinstance(value, dict):
        return {"dict": [[key, _pack(part, f"{path}/{key}", tensors)] for key, part in value.items()]}
    if isinstance(value, list | tuple):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {kind: [_pack(part, f"{path}/{i}", tensors) for i, part in enumerate(value)]}
    return value


def _unpack(value: Any, tensors: dict[str, Tensor]) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, inner),) = value.items()
    if kind == "tensor":
        return tensors[inner].clone()  # what was read is a map of the file, which the next save replaces
    if kind == "dict":
        return {key: _unpack(part, tensors) for key, part in inner}
    parts = [_unpack(part, tensors) for part in inner]
    return tuple(parts) if kind == "tuple" else parts
