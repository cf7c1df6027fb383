"""What a run would do and cost, from its recipe and a few timed steps; nothing is written."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass

import torch

from acls.data.dataset import Part, batches
from acls.recipes import Recipe
from acls.train.evaluate import evaluate
from acls.train.guards import own_generator, own_threads
from acls.train.progress import duration
from acls.train.session import Session

TIMED_STEPS = 3


@dataclass(frozen=True)
class Plan:
    """The size and the estimated cost of a run."""

    recipe: Recipe
    device: str
    samples: dict[str, int]
    n_classes: int
    loss: str
    parameters: int
    steps_per_epoch: int
    seconds_per_step: float
    seconds_of_evaluation: float
    memory: int
    """Bytes at the highest point so far: of the GPU, or of this process."""

    @property
    def steps(self) -> int:
        return self.steps_per_epoch * self.recipe.epochs

    @property
    def seconds(self) -> float:
        """The estimated time of training, with an evaluation per epoch."""
        return self.steps * self.seconds_per_step + self.recipe.epochs * self.seconds_of_evaluation

    def __str__(self) -> str:
        recipe, samples = self.recipe, self.samples
        parts = f"{samples['train']:,} train, {samples['val']:,} validation, {samples['test']:,} test"
        rates = sorted({recipe.schedule.rate(recipe.optim.lr, epoch, recipe.epochs) for epoch in range(recipe.epochs)})
        rows = {
            "recipe": recipe.name,
            "data": f"{recipe.data.name}: {parts}, {self.n_classes} classes",
            "model": f"{recipe.model.name}, {self.parameters:,} parameters",
            "loss": self.loss,
            "optimiser": f"{recipe.optim.name}, learning rate {rates[-1]:g} to {rates[0]:g} ({recipe.schedule.name})",
            "steps": f"{self.steps:,}: {recipe.epochs} epochs of {self.steps_per_epoch:,}, {recipe.batch} samples each",
            "device": f"{self.device}, {recipe.precision}",
            "memory": f"{self.memory / 2**20:,.0f} MB at the highest so far",
            "checkpoint": f"chosen by validation {recipe.select}",
            "time": f"about {duration(self.seconds)}, from {TIMED_STEPS} steps of {self.seconds_per_step:.3f} s "
            f"and {self.seconds_of_evaluation:.1f} s per evaluation",
        }
        return "\n".join(f"{name:<11} {value}" for name, value in rows.items())


def make_plan(recipe: Recipe) -> Plan:
    """Build what the recipe describes, time a few steps and a part of an evaluation, and estimate the cost."""
    with own_generator(), own_threads(recipe.threads):
        session = Session(recipe, show=True)
        draws = session.draws(0)
        session.wrapped.train()
        timed = draws[: TIMED_STEPS + 1]
        marks = [time.perf_counter()]
        for number, batch in enumerate(batches(session.data.train, timed, workers=recipe.data.workers)):
            session.step(batch, 0, number)
            marks.append(time.perf_counter())
        # The first step warms up: it sets the pace only where there is no other.
        warm = marks[1:] if len(marks) > 2 else marks
        pace = (warm[-1] - warm[0]) / (len(warm) - 1)
        began = time.perf_counter()
        some = Part(session.data.val.source, session.data.val.chosen[: recipe.eval_batch])
        evaluate(session, some)
        evaluation = (time.perf_counter() - began) * len(session.data.val) / len(some)
        return Plan(
            recipe,
            str(session.fabric.device),
            {name: len(numbers) for name, numbers in session.data.splits().items()},
            session.data.n_classes,
            repr(session.loss),
            sum(weight.numel() for weight in session.model.parameters()),
            len(draws),
            pace,
            evaluation,
            _highest_memory(session.fabric.device),
        )


def _highest_memory(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        import resource
    except ModuleNotFoundError:  # as on Windows
        return 0
    highest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return highest if sys.platform == "darwin" else highest * 1024  # kilobytes elsewhere
