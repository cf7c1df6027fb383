"""Import torchvision, timm and Pillow; no other module imports torchvision or Pillow.

A package index may provide a torchvision that was built for another torch, for example a CUDA build next to a CPU-only
torch. Then ``import torchvision`` fails, because operators of its compiled library are missing. All packages that
import torchvision, such as timm, torchmetrics and lightning, fail with it. Transforms, models and datasets do not use
those operators, so it is enough to declare them without an implementation. Call `torchvision()` before you import any
package that imports torchvision.
"""

import importlib
import sys
from types import ModuleType
from typing import Any

from acls.errors import require

_declared: list[Any] = []  # keeps each Library alive: its declarations are removed when it is collected


def torchvision() -> ModuleType:
    """Import torchvision, even if its compiled library does not match this torch.

    If it does not match, ``torchvision.io`` cannot read images and ``ops.nms`` cannot suppress boxes. acls reads images
    with Pillow.
    """
    try:
        return require("torchvision", extra="vision")
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
    if not _declared:
        import torch

        library = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
        for name in ("nms", "qnms"):  # the operators that torchvision's Python files use at import
            schema = f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            library.define(schema)  # type: ignore[no-untyped-call]
        _declared.append(library)
    for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        del sys.modules[name]
    return importlib.import_module("torchvision")


class Guard:
    """Pickle it before objects that may be torchvision's: the process that unpickles it imports torchvision safely."""

    def __getstate__(self) -> bool:
        return "torchvision" in sys.modules

    def __setstate__(self, needed: bool) -> None:
        if needed:
            torchvision()


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
