"""Check a recipe and set up its devices, processes and precision (with Lightning Fabric), and its optimiser."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import nn

from acls import options
from acls.data import load
from acls.data.dataset import Data
from acls.errors import InputError, require, suggest
from acls.metrics.catalogue import selectable
from acls.recipes import OptimOptions, Recipe
from acls.train.loggers import LOGGERS

_FORMATS = {"fp32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}
_PROBE = """
import torch
with torch.autocast("cpu", dtype=torch.bfloat16):
    x = torch.randn(64, 64, requires_grad=True)
    ((x @ x).sum() + torch.nn.Conv2d(8, 8, 3)(torch.randn(4, 8, 16, 16)).sum()).backward()
"""


@dataclass(frozen=True)
class Given:
    """Objects that the caller passes in Python instead of naming them in the recipe."""

    data: Callable[..., Data] = load
    """Creates the data; called with ``options=`` (`DataOptions`) and ``seed=``."""
    model: Callable[..., Any] | None = None


def check(recipe: Recipe, data: Data) -> None:
    """Raise an error for values out of range, and for settings that the data, the model or acls do not support."""
    options.check(recipe)
    known = selectable(maps=data.segmentation)
    if recipe.select not in known:
        raise InputError(f"the best checkpoint cannot be chosen by {recipe.select!r}{suggest(recipe.select, known)}")
    for name in (entry.partition(":")[0] for entry in recipe.log):
        if name not in LOGGERS:
            raise InputError(f"there is no logger {name!r}{suggest(name, LOGGERS)}")
    if recipe.passes and not recipe.model.dropout:
        raise InputError("passes with dropout need a model with dropout: pass --model.dropout, for example 0.5")
    for name, part in data.parts().items():
        if len(part) == 0:
            raise InputError(f"the {name} part of {recipe.data.name} is empty: check --data.val and the data set")


def build_optimizer(optim: OptimOptions, model: nn.Module) -> torch.optim.Optimizer:
    """Create the optimiser; parameters with one axis (biases, normalisation) are decayed only with ``decay_all``."""
    decayed = [weight for weight in model.parameters() if optim.decay_all or weight.ndim > 1]
    plain = [weight for weight in model.parameters() if not optim.decay_all and weight.ndim <= 1]
    parts = ((decayed, optim.weight_decay), (plain, 0.0))
    groups = [{"params": part, "weight_decay": decay} for part, decay in parts if part]
    if optim.name == "adamw":
        return torch.optim.AdamW(groups, lr=optim.lr, betas=(optim.beta1, optim.beta2), eps=optim.eps)
    return torch.optim.SGD(groups, lr=optim.lr, momentum=optim.momentum, nesterov=optim.nesterov)


def make_fabric(recipe: Recipe) -> Any:
    """Set up the processes of the recipe or of the launcher; they start with ``fabric.launch()``."""
    lightning = require("lightning_fabric", extra="train")
    seen = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not seen.get(recipe.accelerator, True):
        raise InputError(f"torch finds no {recipe.accelerator} device: pass --accelerator auto or cpu")
    on_cpu = recipe.accelerator == "cpu" or (recipe.accelerator == "auto" and not any(seen.values()))
    if recipe.precision == "bf16" and on_cpu:
        check_bf16()
    devices, nodes = recipe.devices, recipe.nodes
    if "LOCAL_WORLD_SIZE" in os.environ:  # started by torchrun, whose settings take precedence
        devices = int(os.environ["LOCAL_WORLD_SIZE"])
        nodes = int(os.environ["WORLD_SIZE"]) // devices
    if not on_cpu and devices > (most := max(1, torch.cuda.device_count())):
        raise InputError(f"--devices: expected at most {most}, the GPUs that torch sees here, got {devices}")
    settings: dict[str, Any] = {"precision": _FORMATS[recipe.precision]}
    if recipe.precision == "fp16" and on_cpu:
        # Fabric replaces fp16 by bf16 on a CPU, although autocast and torch's scaler work there.
        plugins = require("lightning_fabric.plugins", extra="train")
        settings = {"plugins": [plugins.MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu"))]}
    return lightning.Fabric(
        accelerator="cpu" if on_cpu else recipe.accelerator,
        devices=devices,
        num_nodes=nodes,
        strategy="ddp" if devices * nodes > 1 else "auto",
        **settings,
    )


@cache
def check_bf16() -> None:
    """Test bfloat16 in another process: on some virtual CPUs it ends the process without an error message."""
    probe = subprocess.run([sys.executable, "-c", _PROBE], capture_output=True, check=False)
    if probe.returncode == 0:
        return
    how = f"ended by signal {-probe.returncode}" if probe.returncode < 0 else "it failed"
    raise InputError(
        f"bfloat16 does not work on this CPU ({how} when tried): use --precision fp32, "
        "or set ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 in the environment"
    )
