"""Predictions, run folders and studies made without training."""

import json
from dataclasses import replace

import numpy as np
import torch

from acls.options import override
from acls.predictions import Predictions
from acls.recipes import find, save_recipe
from acls.report.page.sources import of_file

CLASSES = 4


def predictions(seed=0, n=600, classes=CLASSES, sharpness=2.0, **more):
    """Overconfident outputs: labels are drawn from the softmax of logits that are then sharpened."""
    random = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, classes, generator=random)
    labels = torch.multinomial(logits.softmax(1), 1, generator=random)[:, 0]
    return Predictions(sharpness * logits, labels, "logits", **more)


def file(folder, name="outputs.npz", **settings):
    path = folder / name
    predictions(**settings).save(path)
    return path


def subject(folder, *, replicates=20, images=None, title=None, **settings):
    """A measured file; few replicates, as intervals are tested elsewhere."""
    return of_file(file(folder, **settings), replicates=replicates, images=images, title=title)


def run(folder, *, loss="ACLS(margin=6.0)", seed=1, n=300, draw=None, recipe="digits_cnn", **settings):
    """A finished run's folder with everything that a report reads, on the embedded digits' first test samples.

    Runs with the same ``draw``, by default the seed, have the same labels.
    """
    folder.mkdir(parents=True, exist_ok=True)
    meta = {"loss": loss, "classes": json.dumps([f"digit {k}" for k in range(10)])}
    for number, part in enumerate(("test", "val")):
        (folder / "predictions").mkdir(exist_ok=True)
        drawn = predictions(seed=10 * (seed if draw is None else draw) + number, n=n, classes=10, meta=meta)
        drawn.save(folder / "predictions" / f"{part}.safetensors")
    names = ("epoch", "train/loss", "train/accuracy", "val/accuracy", "val/nll", "val/ece", "val/temperature")
    rows = [[e, 2 / (e + 1), e / 5, e / 6, 2 / (e + 1), 0.2 / (e + 1 + seed), 1 + e / 4] for e in range(5)]
    lines = [",".join(names), *(",".join(map(str, row)) for row in rows)]
    (folder / "metrics.csv").write_text("\n".join(lines) + "\n")
    (folder / "environment.json").write_text(json.dumps({"versions": {"torch": "2.0"}}))
    made = override(find(recipe), {"seed": seed, **settings})
    save_recipe(replace(made, loss=made.loss.complete()), folder / "recipe.yaml")
    return folder


def confidences(p):
    """Confidence and correctness in float64, by NumPy."""
    z = p.scores.numpy().astype(np.float32)
    shifted = np.exp(z - z.max(1, keepdims=True))
    soft = shifted / shifted.sum(1, keepdims=True)
    return soft.max(1), z.argmax(1) == p.labels.numpy()
