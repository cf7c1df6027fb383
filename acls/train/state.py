"""The state of a run, from which it resumes to the same bits: one safetensors file, tensors as such, the rest JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from acls import distributed
from acls.errors import InputError
from acls.metrics.catalogue import metric
from acls.storage import load_tensors, save_tensors
from acls.train.folder import RunFolder
from acls.train.session import Session

FORMAT = "acls resume 1"


@dataclass
class TrainState:
    """How far training is: with the weights and what the loss and the optimiser remember, all of a run's state."""

    epoch: int = 0
    """The epoch under way, from 0."""
    step: int = 0
    """Steps done in it."""
    best: float | None = None
    best_epoch: int = -1
    sums: Tensor = field(default_factory=lambda: torch.zeros(4, dtype=torch.float64))
    """Of this epoch so far: loss times samples, hits, labelled positions, samples."""
    seconds: float = 0.0
    """Spent in this epoch so far."""
    history: list[dict[str, float]] = field(default_factory=list)

    def is_best(self, select: str, row: Mapping[str, float]) -> bool:
        """Whether an epoch's numbers beat the best so far, strictly: of equals the first is kept."""
        sign = metric(select).sign
        return self.best is None or math.isnan(self.best) or sign * row[f"val/{select}"] < sign * self.best


def save_resume(session: Session, folder: RunFolder, at: TrainState) -> None:
    """Write all that the rest of the run depends on, of every process, as one file."""
    generators = distributed.all_gather(torch.get_rng_state()[None])
    sums = distributed.all_reduce(at.sums)
    if not session.fabric.is_global_zero:
        return
    state = {
        "model": dict(session.model.state_dict()),
        "average": dict(session.average.state_dict()) if session.average is not None else {},
        "optimizer": session.optimizer.state_dict(),
        "loss": dict(session.loss.state_dict()),
        "scaler": session.fabric.strategy.precision.state_dict(),
        "generators": generators,
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "at": {**vars(at), "sums": sums},
    }
    save_state(folder.resume, state)


def restore(session: Session, state: dict[str, Any]) -> TrainState:
    """Put a session into a saved state; returns how far training was."""
    session.model.load_state_dict(state["model"])
    if session.average is not None:
        session.average.load_state_dict(state["average"])
    session.optimizer.load_state_dict(state["optimizer"])
    session.loss.load_state_dict(state["loss"])
    session.fabric.strategy.precision.load_state_dict(state["scaler"])
    if distributed.rank() < len(state["generators"]):
        torch.set_rng_state(state["generators"][distributed.rank()].clone())  # a view of a row would crash torch
    if state["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"])
    at = TrainState(**state["at"])
    if distributed.rank() != 0:  # the sums were saved over all processes
        at.sums = torch.zeros_like(at.sums)
    return at


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
