"""The state of a run, from which it resumes to the same bits."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from acls import distributed
from acls.train.checkpoint import save_state
from acls.train.folder import RunFolder
from acls.train.session import Session


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
