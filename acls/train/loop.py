"""The training loop. It works with every loss, because it uses only the hooks of the loss."""

from __future__ import annotations

import json
import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from acls import distributed
from acls.data.dataset import Part, batches
from acls.losses import Epoch
from acls.metrics import Suite
from acls.models.own import resolved
from acls.recipes import Recipe
from acls.shown import Shown
from acls.storage import hold, load_tensors, write_text
from acls.train.evaluate import above_margin, evaluate, outlook, regulariser
from acls.train.folder import RunFolder, TrainState, continued, new_folder, open_run, save_resume
from acls.train.guards import TrainingStopped, interruptions, isolated
from acls.train.loggers import Log, logging
from acls.train.progress import EpochProgress
from acls.train.session import Session
from acls.train.setup import Given

FINITE_EVERY = 50
"""Steps between checks of the loss on a GPU, where each check waits for the device."""
MEMORY_PROBE = 1024
"""Number of training samples used to monitor the regulariser of a method that stores values per sample."""


@dataclass(frozen=True, repr=False)
class TrainedRun(Shown):
    """The result of a finished run."""

    folder: Path
    best_epoch: int
    """The epoch, counted from 0, whose weights are the best on the validation part."""
    val: dict[str, float]
    test: dict[str, float]
    suites: dict[str, Suite]
    """The tallies of both parts, by name, for figures and other uses that need more than the metrics."""
    history: list[dict[str, float]]
    shown: bool = False  # whether its epochs were printed

    def as_json(self) -> dict[str, Any]:
        """Return the object that `acls train --json` prints."""
        return {"run": str(self.folder), "best_epoch": self.best_epoch, "val": self.val, "test": self.test}


def fit(
    recipe: Recipe, out: str | Path | None = None, *, show: bool = True, given: Given | None = None, wait: bool = False
) -> TrainedRun:
    """Train a recipe and write the run into a new folder (default: ``runs/RECIPE-LOSS-SEED``)."""
    recipe = replace(recipe, model=resolved(recipe.model, given.model if given else None))
    with isolated(recipe.threads):
        session = Session(recipe, show=show, given=given)
        folder = RunFolder(Path(session.fabric.broadcast(str(out) if out is not None else str(new_folder(recipe)))))
        with _held(session, folder, wait):
            if session.fabric.is_global_zero:
                folder.start(recipe, session.data)
            return _run(session, folder, TrainState(), show)


def resume(path: str | Path, *, show: bool = True, given: Given | None = None, wait: bool = False) -> TrainedRun:
    """Continue an interrupted run from its last saved state; for a finished run, only return its result.

    It uses the number of threads that the run started with. On a CPU with the same number of processes, the final
    weights are therefore bit for bit equal to those of a run without interruption.
    """
    folder, recipe = open_run(Path(path))
    with isolated(folder.threads()):
        session = Session(recipe, show=show, given=given)
        with _held(session, folder, wait):
            return _run(session, folder, continued(session, folder), show)


def _held(session: Session, folder: RunFolder, wait: bool) -> AbstractContextManager[None]:
    """Lock the folder of a run; the first process holds the lock for all processes of the run."""
    return hold(folder.path / ".lock", wait=wait) if session.fabric.is_global_zero else nullcontext()


def _run(session: Session, folder: RunFolder, state: TrainState, show: bool) -> TrainedRun:
    with logging(folder.path, session.recipe, state.epoch) as log:
        for _ in run_epochs(session, folder, state, show=show, log=log):
            pass
        result = _finish(session, folder, state)
        log({f"test/{name}": value for name, value in result.test.items()}, state.epoch - 1)
    return replace(result, shown=show)


def run_epochs(
    session: Session, folder: RunFolder, state: TrainState, *, show: bool = False, log: Log = lambda *_: None
) -> Generator[dict[str, float], None, None]:
    """Train from a state to the last epoch, or until patience ends; yield the metrics of each epoch once saved."""
    recipe, on_first = session.recipe, session.fabric.is_global_zero
    steps = len(session.draws(state.epoch)) if state.epoch < recipe.epochs else 0
    progress = EpochProgress(recipe.epochs, steps * (recipe.epochs - state.epoch) - state.step, show=show and on_first)
    with progress.shown(), interruptions() as interrupted:
        while state.epoch < recipe.epochs and state.epoch - 1 - state.best_epoch < (recipe.patience or recipe.epochs):
            for _ in _train_epoch(session, folder, state):
                progress.step(state.epoch)
                if interrupted.is_set() or (recipe.save_every and state.step % recipe.save_every == 0):
                    save_resume(session, folder, state)
                if interrupted.is_set():
                    raise KeyboardInterrupt(str(folder.path))
            row = _measure(session, state)
            better = state.is_best(recipe.select, row)
            if better:
                state.best, state.best_epoch = row[f"val/{recipe.select}"], state.epoch
            state.history.append(row)
            progress.epoch(state.epoch, row, better)
            log(row, state.epoch)
            if on_first:
                what = "a weight of the network is no longer finite"
                _check_finite(session.judged.parameters(), what, session, folder)
                folder.save_weights(session.judged, recipe, state.epoch, session.data.names, best=better)
                folder.write_metrics(state.history)
            state.epoch, state.step, state.seconds = state.epoch + 1, 0, 0.0
            state.sums = torch.zeros_like(state.sums)
            save_resume(session, folder, state)  # last, so that an interruption before this line repeats the epoch
            yield row


def _train_epoch(session: Session, folder: RunFolder, state: TrainState) -> Iterator[None]:
    """Train for an epoch, or for the rest of it; yield after each step."""
    recipe, loss = session.recipe, session.loss
    now = Epoch(state.epoch, recipe.epochs, session.predict)
    if state.step == 0:
        loss.start_epoch(now)
    session.wrapped.train()
    began = time.perf_counter() - state.seconds
    every = session.draws(state.epoch)
    draws = every[state.step :]
    on_cpu = session.fabric.device.type == "cpu"
    loaded = batches(session.data.train, draws, workers=recipe.data.workers, pin=not on_cpu)
    for draw, batch in zip(draws, loaded, strict=True):
        for group in session.optimizer.param_groups:
            group["lr"] = recipe.schedule.rate(recipe.optim.lr, state.epoch, recipe.epochs, state.step / len(every))
        sums = session.step(batch, state.epoch, state.step, draw.weight)
        state.sums = state.sums.to(sums.device) + sums
        state.step += 1
        if on_cpu or state.step % FINITE_EVERY == 0 or state.step == len(every):
            what = f"the loss is no longer finite in epoch {state.epoch + 1}, at step {state.step}"
            _check_finite([state.sums[0]], what, session, folder)
        state.seconds = time.perf_counter() - began
        yield
    loss.end_epoch(now)


def _measure(session: Session, state: TrainState) -> dict[str, float]:
    """Return the metrics of the epoch that ends: a row of metrics.csv."""
    session.agree_on_buffers()
    data, recipe = session.data, session.recipe
    total, hits, labelled, samples = distributed.all_reduce(state.sums).tolist()
    evaluation = evaluate(session, data.val)
    summary = evaluation.summary()
    probe: Any = evaluation.sample.batches
    if session.loss.needs_index:  # such a loss is not defined for samples that it was not trained on
        probe = session.outputs(Part(data.train.source, data.train.chosen[:MEMORY_PROBE]))
    live = outlook(evaluation.sample, data.void, recipe.loss.margin) | regulariser(session.loss, probe, data.void)
    return {
        "epoch": state.epoch,
        "lr": recipe.schedule.rate(recipe.optim.lr, state.epoch, recipe.epochs),
        "train/loss": total / max(samples, 1),
        "train/accuracy": hits / max(labelled, 1),
        **{f"val/{name}": value for name, value in (summary | live).items()},
        "seconds": state.seconds,
    }


def _finish(session: Session, folder: RunFolder, state: TrainState) -> TrainedRun:
    """Predict with the best weights; write the predictions and the summary."""
    tensors, meta = load_tensors(folder.best)
    session.judged.load_state_dict(tensors)
    summaries, suites, passes = {}, {}, session.recipe.passes
    for name, part in (("val", session.data.val), ("test", session.data.test)):
        evaluation = evaluate(session, part, passes=passes, meta={"part": name, **meta})
        summaries[name], suites[name] = evaluation.summary(), evaluation.suite
        if not passes:  # averaged log-probabilities have no logits to compare with a margin
            summaries[name] |= above_margin(evaluation.sample.rows(session.data.void)[0], session.recipe.loss.margin)
        if session.fabric.is_global_zero and evaluation.predictions is not None:
            evaluation.predictions.save(folder.predictions(name))
    if session.fabric.is_global_zero:
        about = {"loss": session.loss.settings(), "threads": torch.get_num_threads(), "weights": session.weights}
        write_text(folder.summary, json.dumps({"best_epoch": state.best_epoch, **about, **summaries}, indent=2) + "\n")
    distributed.barrier()
    return TrainedRun(folder.path, state.best_epoch, summaries["val"], summaries["test"], suites, state.history)


def _check_finite(values: Iterable[Tensor], what: str, session: Session, folder: RunFolder) -> None:
    if all(bool(torch.isfinite(value).all()) for value in values):
        return
    kept = "no checkpoint had been written yet."
    if folder.best.exists():
        kept = f"{folder.best} and {folder.resume} hold the last good state."
    raise TrainingStopped(
        f"{what}: {kept} Try a smaller --optim.lr than {session.recipe.optim.lr:g}, a smaller "
        "--clip, or --precision fp32"
    )
