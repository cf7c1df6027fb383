"""A part of the data through the network: tallies that merge over batches and processes, or the predictions."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from acls import distributed
from acls.data import DataOptions
from acls.data.dataset import Part
from acls.data.keyed_random import uniform
from acls.errors import InputError
from acls.metrics import Confusion, Suite
from acls.predictions import Predictions
from acls.storage import load_tensors
from acls.train.epoch_metrics import Sample
from acls.train.folder import open_run
from acls.train.guards import isolated
from acls.train.session import Session


@dataclass(frozen=True)
class Evaluation:
    """The tallies of a part, over all processes, and a sample of this process's logits."""

    suite: Suite
    confusion: Confusion | None
    """Which class was taken for which, of label maps; None for one label per sample."""
    sample: Sample
    predictions: Predictions | None = None
    """In the order of the samples; of each label map, some labelled pixels drawn at random. None unless asked for."""

    def summary(self) -> dict[str, float]:
        """Every metric by name; for label maps also the mean IoU, of all classes and without class 0."""
        result = self.suite.summary()
        if self.confusion is not None:
            result |= {"miou": self.confusion.miou(), "miou_foreground": self.confusion.miou(without=0)}
        return result


def evaluate(session: Session, part: Part, *, passes: int = 0, meta: dict[str, str] | None = None) -> Evaluation:
    """Evaluate the judged network on a part; each process works off its share, none twice.

    With ``passes``, by probabilities averaged over this many passes with dropout. With ``meta``, what is written beside
    them, the predictions are kept.
    """
    data, n_classes = session.data, session.data.n_classes
    device = session.fabric.device
    # Where there are more processes than samples, one adds nothing, but takes part in the sums.
    nothing, none = torch.zeros(0, n_classes, device=device), torch.zeros(0, dtype=torch.int64, device=device)
    suite, sample = Suite.of(nothing, none), Sample(len(part))
    confusion = Confusion.of(nothing, none) if data.segmentation else None
    kept = [(nothing.cpu(), none.cpu(), none.cpu())]
    for logits, target, index in session.outputs(part, passes=passes):
        suite = suite + Suite.of(logits, target, ignore_index=data.void)
        if confusion is not None:
            confusion = confusion + Confusion.of(logits, target, ignore_index=data.void)
        sample.add(logits, target, index)
        if meta is not None:
            rows = (logits, target, index)
            some = _some_pixels(*rows, session.recipe.pixels, data.void) if logits.ndim > 2 else rows
            kept.append(tuple(one.cpu() for one in some))  # type: ignore[arg-type]
    predictions = None
    if meta is not None:
        scores, labels, image = (distributed.all_gather(torch.cat(parts)) for parts in zip(*kept, strict=True))
        order = image.argsort(stable=True)
        kind: Literal["logits", "log_probs"] = "log_probs" if passes else "logits"
        owner = image[order] if data.segmentation else None
        predictions = Predictions(scores[order], labels[order], kind, image=owner, meta=meta)
    confusion = None if confusion is None else confusion.all_reduce()
    return Evaluation(suite.all_reduce(), confusion, sample, predictions)


def predict_run(
    path: str | Path, *, part: str = "test", data: DataOptions | None = None, passes: int | None = None
) -> Predictions:
    """The predictions of a run's best weights, or of the weights file named, on a part of its data or of other data.

    With ``passes``, by default as many as the run's recipe says, log-probabilities averaged over passes with dropout.
    """
    with isolated():
        session, meta = open_weights(path, data)
        recipe = session.recipe
        described = {"recipe": recipe.name, "loss": repr(session.loss), "part": part, **meta}
        passes = recipe.passes if passes is None else passes
        predictions = evaluate(session, session.data.parts()[part], meta=described, passes=passes).predictions
        assert predictions is not None
        return predictions


def open_weights(path: str | Path, data: DataOptions | None = None) -> tuple[Session, dict[str, str]]:
    """The session of a run with its best weights, or with those of the file named, and what is written beside them."""
    path = Path(path)
    folder, recipe = open_run(path if path.is_dir() else path.parent)
    weights = folder.best if path.is_dir() else path
    tensors, meta = load_tensors(weights)
    plain = replace(recipe.model, pretrained=False, weights=None)
    session = Session(replace(recipe, data=data or recipe.data, model=plain, limit_batches=None, ema=0.0))
    classes = json.loads(meta.get("classes", "[]"))
    if len(classes) != session.data.n_classes:
        raise InputError(
            f"{weights} is for {len(classes)} classes, but {session.recipe.data.name} has {session.data.n_classes}"
        )
    session.judged.load_state_dict(tensors)
    return session, meta


def _some_pixels(z: Tensor, y: Tensor, index: Tensor, pixels: int, void: int) -> tuple[Tensor, Tensor, Tensor]:
    """At most ``pixels`` labelled positions of each map, the same ones whatever the batch."""
    rows, labels, owners = [], [], []
    for logits, target, number in zip(z, y, index, strict=True):
        places = (target.reshape(-1) != void).nonzero()[:, 0]
        rank = uniform(0, int(number), places.cpu(), 1)[:, 0]
        chosen = places[rank.argsort()[:pixels].sort().values.to(places.device)]
        rows.append(logits.reshape(logits.shape[0], -1)[:, chosen].T)
        labels.append(target.reshape(-1)[chosen])
        owners.append(number.repeat(len(chosen)))
    return torch.cat(rows), torch.cat(labels), torch.cat(owners)
