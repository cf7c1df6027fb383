"""Devices, processes and number formats, by Lightning Fabric."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from typing import Any

import torch

from acls.errors import InputError, require
from acls.recipes import Recipe

_FORMATS = {"fp32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}
_PROBE = """
import torch
with torch.autocast("cpu", dtype=torch.bfloat16):
    x = torch.randn(64, 64, requires_grad=True)
    ((x @ x).sum() + torch.nn.Conv2d(8, 8, 3)(torch.randn(4, 8, 16, 16)).sum()).backward()
"""


def make_fabric(recipe: Recipe) -> Any:
    """Set up the processes that a recipe, or the launcher around us, asks for; they start with ``fabric.launch()``."""
    lightning = require("lightning_fabric", extra="train")
    on_cpu = recipe.accelerator == "cpu" or (recipe.accelerator == "auto" and not _has_accelerator())
    missing = {"cuda": not torch.cuda.is_available(), "mps": not torch.backends.mps.is_available()}
    if missing.get(recipe.accelerator, False):
        raise InputError(f"torch sees no {recipe.accelerator} device here: pass --accelerator auto or cpu")
    if recipe.precision == "bf16" and on_cpu:
        check_bf16()
    devices, nodes = recipe.devices, recipe.nodes
    if "LOCAL_WORLD_SIZE" in os.environ:  # started by torchrun, which knows better
        devices = int(os.environ["LOCAL_WORLD_SIZE"])
        nodes = int(os.environ["WORLD_SIZE"]) // devices
    settings: dict[str, Any] = {"precision": _FORMATS[recipe.precision]}
    if recipe.precision == "fp16" and on_cpu:
        # Fabric turns fp16 into bf16 on a CPU, though autocast and torch's scaler work there.
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
    """Try bfloat16 in another process: on some virtual CPUs it ends the process without a word."""
    probe = subprocess.run([sys.executable, "-c", _PROBE], capture_output=True, check=False)
    if probe.returncode == 0:
        return
    how = f"ended by signal {-probe.returncode}" if probe.returncode < 0 else "it failed"
    raise InputError(
        f"bfloat16 does not work on this CPU ({how} when tried): use --precision fp32, "
        "or set ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 in the environment"
    )


def _has_accelerator() -> bool:
    return torch.cuda.is_available() or torch.backends.mps.is_available()
