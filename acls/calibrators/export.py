"""Deploy a calibrator: fold it into the last layer, or export it together with the model."""

from __future__ import annotations

import copy
from os import PathLike
from typing import Any

import torch
from torch import Tensor, nn

from acls.calibrators.base import Calibrator
from acls.errors import InputError, require
from acls.storage import atomic_write

TOLERANCE = 1e-6
"""The largest allowed difference from the original probabilities in the checks of this module."""


def fold(
    model: nn.Module, calibrator: Calibrator, *, layer: str | None = None, example: Tensor | None = None
) -> nn.Module:
    """Return a copy of the model whose last linear or 1x1 convolution layer includes the calibrator.

    The copy returns calibrated logits at no extra cost: their softmax is the calibrated probability. This works for
    `Temperature`, `Vector` and `Matrix`. By default it uses the last registered layer; ``layer`` selects another one by
    name. If an ``example`` input is given, the result is checked with a tolerance of 1e-6.
    """
    calibrator._check_fitted(None)
    affine = calibrator.affine()
    if affine is None:
        raise InputError(
            f"this {type(calibrator).__name__} is not an affine map of the logits, so it cannot be folded into a "
            "layer: fit Temperature(), Vector(space='logits') or Matrix() instead, or append it to the model with "
            "export(model, calibrator, ...)"
        )
    weight, bias = affine
    folded = copy.deepcopy(model)
    name, last = _last_layer(folded, layer, None if weight.ndim == 0 else len(bias))
    old = last.weight.detach()
    rows = old.flatten(1).double()
    own_bias = rows.new_zeros(len(rows)) if last.bias is None else last.bias.detach().double()
    weight, bias = weight.to(rows), bias.to(rows)
    times = torch.mul if weight.ndim == 0 else torch.matmul
    rows, own_bias = times(weight, rows), times(weight, own_bias) + bias
    last.weight = nn.Parameter(rows.to(old).view_as(old), requires_grad=last.weight.requires_grad)
    if last.bias is not None or own_bias.any():
        last.bias = nn.Parameter(own_bias.to(old), requires_grad=last.weight.requires_grad)
    if example is not None:
        with torch.no_grad():
            apart = float((calibrator(model(example)).exp() - folded(example).softmax(1)).abs().max())
        if not apart <= TOLERANCE:
            raise InputError(
                f"after folding into {name!r}, the probabilities differ by {apart:.1e}: that layer's output is not "
                "what the model returns, or the model is in training mode; pass the right layer as layer="
            )
    return folded


def _last_layer(model: nn.Module, layer: str | None, n_classes: int | None) -> tuple[str, nn.Linear | nn.Conv2d]:
    modules = dict(model.named_modules())
    if layer is not None:
        found = modules.get(layer)
        if not isinstance(found, nn.Linear | nn.Conv2d):
            raise InputError(f"expected layer= to name a linear or convolution layer of the model, got {layer!r}")
        return layer, found
    candidates = [
        (name, module)
        for name, module in modules.items()
        if isinstance(module, nn.Linear)
        or (isinstance(module, nn.Conv2d) and module.kernel_size == (1, 1) and module.groups == 1)
    ]
    if not candidates:
        raise InputError(
            "the model has no linear or 1x1 convolution layer: use export(model, calibrator, ...), which needs none"
        )
    name, last = candidates[-1]
    if n_classes is not None and len(last.weight) != n_classes:
        raise InputError(
            f"the last layer {name!r} has {len(last.weight)} outputs, but the calibrator has {n_classes} classes: "
            "pass the layer that returns the logits as layer="
        )
    return name, last


class Calibrated(nn.Module):
    """A model followed by a calibrator: returns log-probabilities, or probabilities."""

    def __init__(self, model: nn.Module, calibrator: Calibrator, *, probabilities: bool = False) -> None:
        super().__init__()
        self.model, self.calibrator, self.probabilities = model, calibrator, probabilities

    def forward(self, x: Tensor) -> Tensor:
        log_probs: Tensor = self.calibrator(self.model(x))
        return log_probs.exp() if self.probabilities else log_probs


def export(
    model: nn.Module, calibrator: Calibrator, example: Tensor, *, probabilities: bool = False
) -> torch.export.ExportedProgram:
    """Export model and calibrator as one program that returns (log-)probabilities for batches of any size."""
    both = Calibrated(model, calibrator, probabilities=probabilities).eval()
    if len(example) < 2:  # torch.export would treat a batch of one as a constant
        example = torch.cat([example, example])
    return torch.export.export(both, (example,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))


def export_onnx(
    model: nn.Module,
    calibrator: Calibrator,
    path: str | PathLike[str],
    example: Tensor,
    *,
    probabilities: bool = False,
    tolerance: float = 1e-5,
) -> float:
    """Write model and calibrator as one ONNX file, run it in onnxruntime, and return the largest difference.

    The input is named ``input``. The output is named ``log_probabilities`` or, with ``probabilities=True``,
    ``probabilities``. No file is written if the probabilities differ by more than the tolerance.
    """
    require("onnx", extra="export")
    require("onnxscript", extra="export")
    runtime = require("onnxruntime", extra="export")
    program: Any = torch.onnx.export(
        export(model, calibrator, example, probabilities=probabilities),
        input_names=["input"],
        output_names=["probabilities" if probabilities else "log_probabilities"],
        dynamo=True,
        verbose=False,
    )
    with atomic_write(path) as temporary:
        program.save(str(temporary))
        session = runtime.InferenceSession(str(temporary), providers=["CPUExecutionProvider"])
        found = torch.from_numpy(session.run(None, {"input": example.cpu().numpy()})[0])
        with torch.no_grad():
            wanted = Calibrated(model, calibrator).eval()(example).exp()
        apart = float(((found if probabilities else found.exp()) - wanted.cpu()).abs().max())
        if not apart <= tolerance:
            raise InputError(f"in onnxruntime the probabilities differ by {apart:.1e}, more than {tolerance:.0e}")
    return apart
