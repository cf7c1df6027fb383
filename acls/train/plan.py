"""Estimate what a run does and costs, from its recipe and a few timed steps; nothing is written."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass

import torch

from acls.data.dataset import Part, batches
from acls.recipes import Recipe
from acls.train.evaluate import evaluate
from acls.train.guards import isolated
from acls.train.progress import duration
from acls.train.session import Session

TIMED_STEPS = 3


@dataclass(frozen=True)
class Plan:
    """The size and the estimated cost of a run; ``str`` gives one line per item."""

    parameters: int
    steps: int
    seconds_per_step: float
    seconds: float
    """The estimated training time in seconds, including one evaluation per epoch."""
    memory: int
    """Peak memory so far in bytes: of the GPU, or of this process."""
    rows: dict[str, str]

    def __str__(self) -> str:
        return "\n".join(f"{name:<11} {value}" for name, value in self.rows.items())


def make_plan(recipe: Recipe) -> Plan:
    """Build everything in the recipe, time a few steps and a part of an evaluation, and estimate the cost."""
    with isolated(recipe.threads):
        session = Session(recipe, show=True)
        draws = session.draws(0)
        session.wrapped.train()
        timed = draws[: TIMED_STEPS + 1]
        marks = [time.perf_counter()]
        for number, batch in enumerate(batches(session.data.train, timed, workers=recipe.data.workers)):
            session.step(batch, 0, number)
            marks.append(time.perf_counter())
        # The first step is a warm-up: its time is used only if there is no other step.
        warm = marks[1:] if len(marks) > 2 else marks
        pace = (warm[-1] - warm[0]) / (len(warm) - 1)
        began = time.perf_counter()
        some = Part(session.data.val.source, session.data.val.chosen[: recipe.eval_batch])
        evaluate(session, some)
        evaluation = (time.perf_counter() - began) * len(session.data.val) / len(some)
    parameters, steps = sum(weight.numel() for weight in session.model.parameters()), len(draws) * recipe.epochs
    seconds, memory = steps * pace + recipe.epochs * evaluation, _highest_memory(session.fabric.device)
    train, val, test = (f"{len(part):,}" for part in session.data.parts().values())
    rates = sorted({recipe.schedule.rate(recipe.optim.lr, epoch, recipe.epochs) for epoch in range(recipe.epochs)})
    rows = {
        "recipe": recipe.name,
        "data": f"{recipe.data.name}: {train} train, {val} validation, {test} test, {session.data.n_classes} classes",
        "model": f"{recipe.model.name}, {parameters:,} parameters",
        "loss": repr(session.loss),
        "optimiser": f"{recipe.optim.name}, learning rate {rates[-1]:g} to {rates[0]:g} ({recipe.schedule.name})",
        "steps": f"{steps:,}: {recipe.epochs} epochs of {len(draws):,}, {recipe.batch} samples each",
        "device": f"{session.fabric.device}, {recipe.precision}",
        "memory": f"{memory / 2**20:,.0f} MB peak so far",
        "checkpoint": f"chosen by validation {recipe.select}",
        "time": f"about {duration(seconds)}, from {TIMED_STEPS} steps of {pace:.3f} s and {evaluation:.1f} s per "
        "evaluation",
    }
    return Plan(parameters, steps, pace, seconds, memory, rows)


def _highest_memory(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        import resource
    except ModuleNotFoundError:  # as on Windows
        return 0
    highest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return highest if sys.platform == "darwin" else highest * 1024  # other systems report kilobytes
