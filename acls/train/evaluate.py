"""Evaluate a part of the data: tallies that merge over batches and processes, predictions, metrics of an epoch.

The effective label q' = softmax(z) - dL/dz is the label towards which the loss really trains a position. With the
one-hot label q, the regulariser subtracts q - q' from the label of each class.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from acls import distributed
from acls.calibrators import Temperature
from acls.data import DataOptions
from acls.data.dataset import Part, SampleBatch
from acls.data.keyed_random import uniform
from acls.errors import InputError
from acls.losses import Loss, effective_label
from acls.metrics import Suite
from acls.predictions import Predictions
from acls.shapes import flatten
from acls.storage import load_tensors
from acls.train.folder import open_run
from acls.train.guards import isolated
from acls.train.session import Session

SAMPLE = 2**24
"""Number of logits kept per evaluation, over all processes: enough for all of ImageNet's validation part."""
ACTIVE = 1e-6
"""The smallest change of a label for which the regulariser counts as active: above float32 rounding errors."""


class Sample:
    """A sample of the logits and targets of an evaluation; of dense maps, a grid of pixels, to bound the memory."""

    def __init__(self, samples: int) -> None:
        """Set the number of samples over all processes."""
        self.samples = samples
        self.batches: list[SampleBatch] = []

    def add(self, logits: Tensor, target: Tensor, index: Tensor) -> None:
        if logits.ndim == 4:
            stride = max(math.ceil((self.samples * logits[0].numel() / SAMPLE) ** 0.5), 1)
            logits, target = logits[:, :, ::stride, ::stride], target[:, ::stride, ::stride]
        self.batches.append((logits, target, index))

    def rows(self, void: int) -> tuple[Tensor, Tensor]:
        """Return the labelled positions of all processes."""
        flat = [flatten(logits, target, ignore_index=void).compact() for logits, target, _ in self.batches]
        logits, target = torch.cat([at.logits for at in flat]), torch.cat([at.target for at in flat])
        return distributed.all_gather(logits), distributed.all_gather(target)


@dataclass(frozen=True)
class Evaluation:
    """The tallies of a part over all processes, and a sample of the logits of this process."""

    suite: Suite
    """With a confusion matrix for label maps, without one for one label per sample."""
    sample: Sample
    predictions: Predictions | None = None
    """Predictions in sample order (random labelled pixels of each label map); None unless requested."""

    def summary(self) -> dict[str, float]:
        """Return every metric by name; for label maps also the mean IoU, over all classes and without class 0."""
        result = self.suite.summary()
        if self.suite.confusion is not None:
            del result["class_accuracy"]  # the records of a run do not have it
            result["miou_foreground"] = self.suite.confusion.miou(without=0)
        return result


def evaluate(session: Session, part: Part, *, passes: int = 0, meta: dict[str, str] | None = None) -> Evaluation:
    """Evaluate the judged network on a part; each process evaluates its own share, and no sample twice.

    With ``passes``, probabilities are averaged over this many passes with dropout. With ``meta``, the predictions are
    kept; ``meta`` is stored with them, together with the recipe name and the loss.
    """
    data, n_classes = session.data, session.data.n_classes
    device = session.fabric.device
    # If there are more processes than samples, a process may add nothing, but it still takes part in the sums.
    nothing, none = torch.zeros(0, n_classes, device=device), torch.zeros(0, dtype=torch.int64, device=device)
    suite, sample = Suite.of(nothing, none, kind="logits", confusion=data.segmentation), Sample(len(part))
    kept = [(nothing.cpu(), none.cpu(), none.cpu())]
    for logits, target, index in session.outputs(part, passes=passes):
        suite += Suite.of(logits, target, kind="logits", ignore_index=data.void, confusion=data.segmentation)
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
        described = {"recipe": session.recipe.name, "loss": repr(session.loss), **meta}
        predictions = Predictions(scores[order], labels[order], kind, image=owner, meta=described)
    return Evaluation(suite.all_reduce(), sample, predictions)


def predict_run(
    path: str | Path, *, part: str = "test", data: DataOptions | None = None, passes: int | None = None
) -> Predictions:
    """Return the predictions of a run's best weights, or of a weights file, on a part of its data or of other data.

    With ``passes`` (default: as in the recipe of the run), log-probabilities are averaged over passes with dropout.
    """
    with isolated():
        session, meta = open_weights(path, data)
        passes = session.recipe.passes if passes is None else passes
        found = evaluate(session, session.data.parts()[part], meta={"part": part, **meta}, passes=passes)
        assert found.predictions is not None  # they were requested
        return found.predictions


def open_weights(path: str | Path, data: DataOptions | None = None) -> tuple[Session, dict[str, str]]:
    """Return the session of a run with its best weights or those of a weights file, and the metadata to store."""
    path = Path(path)
    folder, recipe = open_run(path if path.is_dir() else path.parent)
    weights = folder.best if path.is_dir() else path
    tensors, meta = load_tensors(weights)
    plain = replace(recipe.model, pretrained=False, weights=None)
    session = Session(replace(recipe, data=data or recipe.data, model=plain, devices=1, limit_batches=None, ema=0.0))
    classes = json.loads(meta.get("classes", "[]"))
    if len(classes) != session.data.n_classes:
        raise InputError(
            f"{weights} has {len(classes)} classes, {session.recipe.data.name} has {session.data.n_classes}"
        )
    session.judged.load_state_dict(tensors)
    return session, meta


def _some_pixels(z: Tensor, y: Tensor, index: Tensor, pixels: int, void: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return at most ``pixels`` labelled positions of each map; the choice does not depend on the batch."""
    rows, labels, owners = [], [], []
    for logits, target, number in zip(z, y, index, strict=True):
        places = (target.reshape(-1) != void).nonzero()[:, 0]
        rank = uniform(0, int(number), places.cpu(), 1)[:, 0]
        chosen = places[rank.argsort()[:pixels].sort().values.to(places.device)]
        rows.append(logits.reshape(logits.shape[0], -1)[:, chosen].T)
        labels.append(target.reshape(-1)[chosen])
        owners.append(number.repeat(len(chosen)))
    return torch.cat(rows), torch.cat(labels), torch.cat(owners)


# -- metrics of an epoch: calibration while the network trains ---------------------------------------------------------


def above_margin(logits: Tensor, margin: float) -> dict[str, float]:
    """Return the fractions of positions on which a regulariser with this margin acts.

    ``gap_above_margin``: the largest logit minus the smallest is above the margin, as in the ACLS paper;
    ``top_above_margin``: the largest logit itself is above the margin, as in the released code.
    """
    low, high = logits.aminmax(dim=1)
    mean = {"gap_above_margin": high - low > margin, "top_above_margin": high > margin}
    return {name: float(above.double().mean()) for name, above in mean.items()}


def outlook(sample: Sample, void: int, margin: float) -> dict[str, float]:
    """Return the mean largest logit, its mean distance from the smallest, fractions above the margin, and fitted T.

    ``ece_after_temperature`` is the ECE after scaling by this T, on the same samples that T was fitted on.
    """
    logits, target = sample.rows(void)
    scaling = Temperature().fit(logits, target) if len(target) else None
    low, high = logits.aminmax(dim=1)
    return {
        "top_logit": float(high.mean()),
        "logit_gap": float((high - low).mean()),
        **above_margin(logits, margin),
        "temperature": math.nan if scaling is None else float(scaling.temperature),
        "ece_after_temperature": math.nan if scaling is None else scaling.report.after.ece,
    }


def regulariser(loss: Loss, batches: Iterable[SampleBatch], void: int) -> dict[str, float]:
    """Measure how the regulariser changes the labels of some batches, over all processes.

    ``regulariser_active``: fraction of positions where the label changes. ``regulariser_flips``: fraction where
    moving the logits by the change of the label, z + q' - q, changes the prediction. ``smoothing_predicted``: mean of
    q - q' at the predicted class; ``smoothing_others``: mean of q' - q over the other classes.
    """
    sums = torch.zeros(5, dtype=torch.float64)
    for logits, target, index in batches:
        label = effective_label(loss, logits, target, index=index if loss.needs_index else None)
        at, aim = (flatten(part, target, ignore_index=void).compact() for part in (logits, label))
        z, change = at.logits, aim.logits - F.one_hot(at.target, at.n_classes)
        predicted = z.argmax(1, keepdim=True)
        taken = -change.gather(1, predicted)[:, 0]
        given = (change.sum(1) + taken) / max(at.n_classes - 1, 1)
        active = (change.abs() > ACTIVE).any(1)
        flips = (z + change).argmax(1) != predicted[:, 0]
        parts = (active.sum(), flips.sum(), taken.double().sum(), given.double().sum(), torch.tensor(len(z)))
        sums += torch.stack([part.double().cpu() for part in parts])
    sums = distributed.all_reduce(sums)
    means = (sums[:4] / sums[4].clamp(min=1)).tolist()
    names = ("regulariser_active", "regulariser_flips", "smoothing_predicted", "smoothing_others")
    return dict(zip(names, means, strict=True))
