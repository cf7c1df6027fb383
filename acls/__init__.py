"""Train, measure, fix, compare and report the calibration of neural networks.

Public names are imported on first use, so that ``acls --help`` does not have to import torch.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.2.0.dev0"

_HOME = {
    "Predictions": "acls.predictions",
    **dict.fromkeys(("apply", "apply_file", "calibrate", "compare", "evaluate", "fit", "write_report"), "acls.front"),
    "Suite": "acls.metrics",
    "effective_label": "acls.losses",
    "make_loss": "acls.losses",
    "make_calibrator": "acls.calibrators",
}
_SUBPACKAGES = ("calibrators", "data", "integrations", "losses", "metrics", "models", "recipes", "report")

__all__ = ["__version__", *_HOME, *_SUBPACKAGES]


def __getattr__(name: str) -> Any:
    if name in _SUBPACKAGES:
        return importlib.import_module(f"acls.{name}")
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    # The losses and calibrators are public by their class names: acls.ACLS, acls.Temperature, ...
    for registry in ("losses", "calibrators"):
        found = importlib.import_module(f"acls.{registry}").REGISTRY.get(name)
        if found is not None:
            return found
    raise AttributeError(f"module 'acls' has no attribute {name!r}")


def __dir__() -> list[str]:
    registries = (importlib.import_module(f"acls.{name}").REGISTRY for name in ("losses", "calibrators"))
    return sorted({*__all__, *(name for registry in registries for name in registry)})
