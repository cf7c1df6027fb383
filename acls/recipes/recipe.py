"""The definition of a run: a nested dataclass with a help text for every field. Does not need torch."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from acls.data import DataOptions
from acls.errors import InputError, require
from acls.models import ModelOptions
from acls.options import SEED, from_plain, option, to_plain
from acls.spec import Spec, fill
from acls.storage import write_text

if TYPE_CHECKING:
    from acls.losses import Loss


@dataclass(frozen=True)
class LossOptions:
    """The method and its fields: fields that the protocol sets for all methods that have them, and the user's own."""

    name: str = option("CE", "training method: one of `acls methods`")
    protocol: dict[str, Any] = option({}, "fields for each method that has them, such as a margin")
    fields: dict[str, Any] = option({}, "fields of the method, set by --loss.FIELD VALUE")

    @property
    def margin(self) -> float:
        """The protocol's margin, or else that of ACLS, which is also used to monitor methods without one."""
        from acls.losses import ACLS

        return float(self.protocol.get("margin", ACLS.margin))

    def build(self, **fields: Any) -> Loss:
        """Create the loss; ``fields``, such as ignore_index, are used unless the user has set them."""
        from acls.losses import REGISTRY, make_loss

        spec = fill(Spec.of({"name": self.name, **self.fields}), REGISTRY, "loss", self.protocol)
        return make_loss(Spec(spec.name, {**fields, **spec.fields}))

    def with_spec(self, spec: Spec) -> LossOptions:
        """Return the same protocol with another loss."""
        fields = spec.plain()
        return LossOptions(fields.pop("name"), self.protocol, fields)

    def complete(self) -> LossOptions:
        """Return the same loss with all settings written out, so that a later change of a default has no effect."""
        settings = Spec.of(self.build())
        own = {name: value for name, value in settings.fields.items() if name in self.fields or name != "ignore_index"}
        return self.with_spec(Spec(settings.name, own))


@dataclass(frozen=True)
class OptimOptions:
    """The optimiser."""

    name: str = option("sgd", "optimiser", choices=("sgd", "adamw"))
    lr: float = option(0.1, "learning rate at the start, or after the warm-up", within="[0, inf)")
    momentum: float = option(0.9, "momentum of sgd", within="[0, 1)")
    nesterov: bool = option(False, "Nesterov's momentum in sgd")
    beta1: float = option(0.9, "decay of adamw's first moment", within="[0, 1)")
    beta2: float = option(0.999, "decay of adamw's second moment", within="[0, 1)")
    eps: float = option(1e-8, "adamw's epsilon", within="(0, inf)")
    weight_decay: float = option(5e-4, "weight decay", within="[0, inf)")
    decay_all: bool = option(True, "decay biases and normalisation weights too")


@dataclass(frozen=True)
class ScheduleOptions:
    """The learning rate schedule."""

    name: str = option("steps", "shape", choices=("steps", "cosine", "constant"))
    milestones: tuple[int, ...] = option((), "epochs (from 0) at which steps applies the factor", within="[0, inf)")
    factor: float = option(0.1, "factor by which steps multiplies the learning rate", within="[0, inf)")
    warmup: int = option(0, "epochs of linear warm-up before the schedule", within="[0, inf)")
    warmup_lr: float = option(0.0, "learning rate at the start of the warm-up", within="[0, inf)")
    min_lr: float = option(0.0, "final learning rate of cosine", within="[0, inf)")
    per: str = option(
        "epoch", "update the learning rate per epoch or, for few epochs, per step", choices=("epoch", "step")
    )

    def rate(self, lr: float, epoch: int, epochs: int, done: float = 0.0) -> float:
        """Return the learning rate of an epoch (from 0) after the fraction ``done`` of it; no state to save."""
        now = epoch + done if self.per == "step" else epoch
        if now < self.warmup:
            return self.warmup_lr + (lr - self.warmup_lr) * now / self.warmup
        if self.name == "steps":
            return lr * self.factor ** sum(now >= milestone for milestone in self.milestones)
        if self.name == "cosine":
            share = (now - self.warmup) / max(epochs - self.warmup, 1)
            return self.min_lr + (lr - self.min_lr) * (1 + math.cos(math.pi * share)) / 2
        return lr


@dataclass(frozen=True)
class Recipe:
    """A complete experiment: run it with ``acls train NAME``, and change any field with ``--FIELD VALUE``."""

    name: str = option("custom", "name of the recipe")
    data: DataOptions = field(default_factory=DataOptions)
    model: ModelOptions = field(default_factory=ModelOptions)
    loss: LossOptions = field(default_factory=LossOptions)
    optim: OptimOptions = field(default_factory=OptimOptions)
    schedule: ScheduleOptions = field(default_factory=ScheduleOptions)
    epochs: int = option(10, "passes over the training samples", within="[1, inf)")
    batch: int = option(128, "samples per optimiser step, over all processes", within="[1, inf)")
    drop_last: bool = option(False, "skip the last batch of an epoch if it is smaller")
    accumulate: int = option(1, "parts into which a batch is divided, to save memory", within="[1, inf)")
    eval_batch: int = option(256, "samples per batch in evaluation", within="[1, inf)")
    clip: float | None = option(2.0, "maximum norm of the gradient; none: no limit", within="(0, inf)")
    ema: float = option(0.0, "decay of the averaged weights, which are evaluated; 0: none", within="[0, 1)")
    select: str = option("accuracy", "validation metric that selects the best checkpoint")
    patience: int | None = option(None, "stop after this many epochs without a better one", within="[1, inf)")
    save_every: int = option(0, "steps between saves of the resume state; 0: at epoch ends", within="[0, inf)")
    limit_batches: int | None = option(None, "maximum batches per part and epoch, for quick trials", within="[1, inf)")
    log: tuple[str, ...] = option(
        ("tensorboard",), "loggers in addition to metrics.csv: tensorboard, wandb:PROJECT, mlflow:EXPERIMENT"
    )
    passes: int = option(0, "passes with dropout to average (MC dropout); 0: none", within="[0, inf)")
    pixels: int = option(1000, "labelled pixels per image in saved segmentation predictions", within="[1, inf)")
    seed: int = option(1, "seed for the weights, the sample order and the augmentation", within=SEED)
    precision: str = option("fp32", "number format of the network's arithmetic", choices=("fp32", "bf16", "fp16"))
    accelerator: str = option("auto", "where to compute", choices=("auto", "cpu", "cuda", "mps"))
    devices: int = option(1, "devices, or processes on a CPU, per machine", within="[1, inf)")
    nodes: int = option(1, "machines; start one process group on each, as with torchrun", within="[1, inf)")
    threads: int | None = option(None, "CPU threads; none: OMP_NUM_THREADS, or else all cores", within="[1, inf)")
    compile: bool = option(False, "compile the network: slow to start, faster on a GPU")


STREAMED = DataOptions(memory=False, flip=True, normalise="imagenet")
"""Data whose files are read on demand, with the usual augmentation."""


def acls_with(margin: float) -> LossOptions:
    """Return ACLS, the default method of the recipes; the margin applies to every method that has one."""
    return LossOptions(name="ACLS", protocol={"margin": margin})


def recipe_text(recipe: Recipe, suffix: str = ".yaml") -> str:
    """Return a recipe as JSON or YAML text, depending on the file suffix."""
    plain = to_plain(recipe)
    if suffix == ".json":
        return json.dumps(plain, indent=2) + "\n"
    return str(require("yaml", extra="train").safe_dump(plain, sort_keys=False))


def save_recipe(recipe: Recipe, path: str | Path) -> None:
    """Write a recipe as JSON or YAML, depending on the file suffix."""
    write_text(path, recipe_text(recipe, Path(path).suffix))


def load_recipe(path: str | Path) -> Recipe:
    """Read a recipe from JSON or YAML; missing fields have their defaults."""
    json_file = Path(path).suffix == ".json"
    parse = json.loads if json_file else require("yaml", extra="train").safe_load
    try:
        values = parse(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read the recipe {path}: {error.strerror}") from error
    except Exception as error:  # not UTF-8, not JSON, or one of the errors of the YAML library
        raise InputError(f"{path} is not {'JSON' if json_file else 'YAML'} in UTF-8: {error}") from error
    if not isinstance(values, Mapping):
        raise InputError(f"{path} contains no settings: expected lines such as 'epochs: 10'")
    return from_plain(Recipe, values)
