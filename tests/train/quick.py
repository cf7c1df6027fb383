"""Recipes that train in a blink, and what to compare of two runs."""

import csv
from dataclasses import replace

import torch

from acls.losses import REGISTRY
from acls.recipes import LossOptions, find
from acls.storage import load_tensors
from acls.train.folder import load_state

# A few settings of a method are methods of their own.
STATEFUL = {
    "CRL": LossOptions(name="CRL"),
    "AdaFocal": LossOptions(name="AdaFocal"),
    "CaPE": LossOptions(name="CaPE"),
    "Patra": LossOptions(name="Patra"),
    "ACLS-ranking": LossOptions(name="ACLS", fields={"condition": "ranking", "margin": 1.0}),
}
ALL = {name: LossOptions(name=name, protocol={"margin": 1.0}) for name in REGISTRY} | STATEFUL


def digits(**changes):
    """Digits with the small network: by default two epochs of three steps."""
    fast = {"epochs": 2, "limit_batches": 3, "log": (), "accelerator": "cpu"}
    return replace(find("digits_cnn"), **(fast | changes))


def maps(**changes):
    """Synthetic segmentation with the small encoder-decoder."""
    fast = {"epochs": 2, "limit_batches": 2, "log": (), "accelerator": "cpu"}
    same = find("synthetic_unet")
    return replace(same, **({"data": replace(same.data, n_samples=80)} | fast | changes))


def assert_same_runs(one, other):
    """The same bits: weights, what loss and optimiser remember, numbers but for the time they took."""
    for name in ("best.safetensors", "last.safetensors"):
        mine, theirs = (load_tensors(folder / name)[0] for folder in (one, other))
        assert mine.keys() == theirs.keys()
        assert [key for key in mine if not torch.equal(mine[key], theirs[key])] == []
    mine, theirs = (load_state(folder / "resume.safetensors") for folder in (one, other))
    for part in ("model", "average", "loss"):
        assert [key for key in mine[part] if not torch.equal(mine[part][key], theirs[part][key])] == []
    assert torch.equal(mine["generators"], theirs["generators"])
    assert mine["scaler"] == theirs["scaler"]
    rows = []
    for folder in (one, other):
        with open(folder / "metrics.csv") as file:
            rows.append([{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(file)])
    assert rows[0] == rows[1]
