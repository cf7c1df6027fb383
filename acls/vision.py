"""The one place that imports torchvision, and Pillow beside it.

An index may hand out a torchvision built against another torch (its CUDA build beside a CPU-only torch, say). Then
``import torchvision`` fails because operators of its compiled library are missing, and with it fail timm, torchmetrics,
lightning and all else that imports torchvision. Transforms, models and datasets need none of those operators:
declaring them, without a body, is enough. Call `torchvision()` before importing any package that imports it.
"""

import importlib
import sys
from types import ModuleType
from typing import Any

from acls.errors import require

_declared: list[Any] = []  # a Library takes its declarations with it when it is collected


def torchvision() -> ModuleType:
    """Import torchvision, whether or not its compiled library fits this torch.

    Where it does not, images cannot be read by ``torchvision.io`` and boxes not suppressed by ``ops.nms``; Pillow reads
    the images here.
    """
    try:
        return require("torchvision", extra="vision")
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
    if not _declared:
        import torch

        library = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
        for name in ("nms", "qnms"):  # which torchvision's Python files refer to when they are imported
            schema = f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            library.define(schema)  # type: ignore[no-untyped-call]
        _declared.append(library)
    for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        del sys.modules[name]
    return importlib.import_module("torchvision")


class Guard:
    """Pickle one before objects that may be torchvision's: a process that unpickles it imports torchvision safely."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _guarded, ("torchvision" in sys.modules,)


def _guarded(needed: bool) -> Guard:
    if needed:
        torchvision()
    return Guard()


def submodule(name: str) -> Any:
    """Import ``torchvision.name``, such as ``transforms.v2``."""
    torchvision()
    return importlib.import_module(f"torchvision.{name}")


def timm() -> ModuleType:
    """Import timm, which imports torchvision."""
    torchvision()
    return require("timm", extra="vision")


def pillow() -> Any:
    """Import Pillow's Image module."""
    return require("PIL.Image", extra="vision")
