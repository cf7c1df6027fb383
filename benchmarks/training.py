"""The runner against a bare loop, and ACLS against cross-entropy: time per epoch as ratios, in one run.

    python benchmarks/training.py [--epochs 5] [--samples 2048]

The bare loop is what one would write by hand on the same data, model, loss and optimiser: index the tensors, augment,
forward, backward, clip, step, and at the end of the epoch evaluate accuracy and NLL on the validation part. The runner
does that and the live calibration, the history and the checkpoints. Epochs of the contenders alternate, and the best of
each counts, so that other work on the machine hurts none of them more than another. Exits with 1 above the limit.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F

from acls.data import DataOptions
from acls.data.dataset import Data, InMemory, Part
from acls.losses import ACLS, CE
from acls.models import ModelOptions, build_model
from acls.recipes import LossOptions, find
from acls.train.folder import RunFolder, TrainState
from acls.train.loop import run_epochs
from acls.train.session import Session
from acls.train.setup import Given

LIMIT = 1.05


def images(samples: int) -> Data:
    """Noise in the shape of CIFAR-10: what is in an image does not change the time."""
    random = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (samples + samples // 5, 3, 32, 32), dtype=torch.uint8, generator=random)
    y = torch.randint(0, 10, (len(x),), generator=random)
    from acls.data.augment import Augment

    source = InMemory(x, y, Augment(DataOptions(pad=4, flip=True, normalise="cifar10")))
    held = Part(source, torch.arange(samples, len(x)))
    return Data(Part(source, torch.arange(samples), seed=1), held, held, tuple("0123456789"))


MODEL = ModelOptions(name="resnet8")


class Bare:
    """A loop written by hand for one data set, one model, one loss."""

    def __init__(self, data: Data, loss: torch.nn.Module, batch: int) -> None:
        torch.manual_seed(1)
        self.data, self.loss, self.batch = data, loss, batch
        self.model = build_model(MODEL, n_classes=10).to(memory_format=torch.channels_last)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
        self.mean = torch.tensor([0.4914, 0.4822, 0.4465])[:, None, None]
        self.deviation = torch.tensor([0.2023, 0.1994, 0.2010])[:, None, None]
        source = data.train.source
        self.x, self.y = source.x[data.train.chosen], source.y[data.train.chosen]
        self.val_x, self.val_y = source.x[data.val.chosen], source.y[data.val.chosen]

    def normalised(self, x: torch.Tensor) -> torch.Tensor:
        return ((x.float() / 255 - self.mean) / self.deviation).contiguous(memory_format=torch.channels_last)

    def augmented(self, x: torch.Tensor) -> torch.Tensor:
        padded = F.pad(x, (4, 4, 4, 4))
        shifts = torch.randint(0, 9, (len(x), 2)).tolist()
        cut = torch.stack([image[:, r : r + 32, c : c + 32] for image, (r, c) in zip(padded, shifts, strict=True)])
        return torch.where(torch.rand(len(x))[:, None, None, None] < 0.5, cut.flip(-1), cut)

    def epoch(self) -> float:
        began = time.perf_counter()
        self.model.train()
        for rows in torch.randperm(len(self.x)).split(self.batch):
            logits = self.model(self.normalised(self.augmented(self.x[rows])))
            loss = self.loss(logits, self.y[rows])
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 2.0)
            self.optimizer.step()
            self.optimizer.zero_grad()
            loss.item()
        self.model.eval()
        right = nll = 0.0
        with torch.no_grad():
            for x, y in zip(self.val_x.split(256), self.val_y.split(256), strict=True):
                logits = self.model(self.normalised(x))
                right += (logits.argmax(1) == y).sum().item()
                nll += F.cross_entropy(logits, y, reduction="sum").item()
        return time.perf_counter() - began


class Runner:
    """The package's loop, an epoch at a time."""

    def __init__(self, data: Data, loss: str, batch: int, folder: Path) -> None:
        recipe = replace(
            find("cifar10_mini"),
            model=MODEL,
            loss=LossOptions(name=loss, protocol={"margin": 6.0}),
            data=DataOptions(pad=4, flip=True, normalise="cifar10"),
            batch=batch,
            drop_last=False,
            epochs=1000,
            accelerator="cpu",
            log=(),
        )
        # The recipe names a data set; here its place is taken by the noise.
        self.session = Session(recipe, given=Given(data=lambda **_: data))
        self.folder = RunFolder(folder)
        self.folder.start(recipe, data)
        self.epochs = run_epochs(self.session, self.folder, TrainState())

    def epoch(self) -> float:
        began = time.perf_counter()
        next(self.epochs)
        return time.perf_counter() - began


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=7, help="epochs of each contender; the best one counts")
    parser.add_argument("--samples", type=int, default=4096)
    parser.add_argument("--batch", type=int, default=128)
    args = parser.parse_args()
    data = images(args.samples)
    with tempfile.TemporaryDirectory() as folder:
        contenders = {
            "bare loop, CE": Bare(data, CE(), args.batch),
            "runner, CE": Runner(data, "CE", args.batch, Path(folder) / "ce"),
            "bare loop, ACLS": Bare(data, ACLS(margin=6.0), args.batch),
            "runner, ACLS": Runner(data, "ACLS", args.batch, Path(folder) / "acls"),
        }
        for contender in contenders.values():
            contender.epoch()  # warm up
        times: dict[str, list[float]] = {name: [] for name in contenders}
        for _ in range(args.epochs):
            for name, contender in contenders.items():
                times[name].append(contender.epoch())
    print(f"ResNet-8, {args.samples:,} images of 32x32, batch {args.batch}, {torch.get_num_threads()} threads")
    for name, seconds in times.items():
        print(f"{name:<16} best {min(seconds):.3f} s  median {statistics.median(seconds):.3f} s  n {len(seconds)}")
    best = {name: min(seconds) for name, seconds in times.items()}
    ratios = {
        "runner / bare loop, CE": best["runner, CE"] / best["bare loop, CE"],
        "runner / bare loop, ACLS": best["runner, ACLS"] / best["bare loop, ACLS"],
        "ACLS / CE, runner": best["runner, ACLS"] / best["runner, CE"],
    }
    for name, ratio in ratios.items():
        print(f"{name:<26} {ratio:.3f}  (limit {LIMIT})")
    return int(max(ratios.values()) > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
