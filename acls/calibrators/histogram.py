"""Histogram binning of the probabilities."""

from __future__ import annotations

from dataclasses import field

import torch
from torch import Tensor

from acls.calibrators.base import Calibrator, Outcome
from acls.calibrators.calibration_set import CalibrationSet
from acls.calibrators.isotonic_tables import place
from acls.calibrators.logistic import one_vs_rest
from acls.metrics.bins import edges
from acls.options import option


class Histogram(Calibrator):
    """Replace a probability by how often its class was right in its bin, class by class, then normalise.

    Bins are (lo, hi], of equal ``width`` or of equal ``mass`` (edges at the class's own quantiles). The
    value of an empty bin is its middle, that of a bin of n rows at least 1 / (n + 2): no class becomes impossible.
    (Zadrozny and Elkan, ICML 2001)
    """

    paper = "Zadrozny and Elkan, ICML 2001"

    bins: int = option(default=15, within="[1, inf)")
    kind: str = option(default="width", choices=("width", "mass"))

    edges: Tensor = field(init=False)
    value: Tensor = field(init=False)
    as_is: Tensor = field(init=False)
    """1 where the guard keeps the probabilities as they are, else 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.streams = self.kind == "width"

    def _fit(self, data: CalibrationSet) -> Outcome:
        some = data.first()[0]
        if self.kind == "width":
            inner = edges(self.bins, some)[1:-1].expand(some.shape[1], -1).contiguous()
        else:
            logits, _, weight = data.all()
            probs, order = logits.softmax(1).T.sort(dim=1)
            below = weight.double()[order].cumsum(1)
            wanted = torch.arange(1, self.bins, device=some.device) * below[:, -1:] / self.bins
            # A rounding above a whole number is none.
            at = torch.searchsorted(below, wanted * (1 - 1e-12)).clamp(max=probs.shape[1] - 1)
            inner = probs.gather(1, at)
        counts = torch.zeros((some.shape[1], self.bins), dtype=torch.float64, device=some.device)
        right = torch.zeros_like(counts)
        for logits, labels, weight in data:
            index = place(inner, logits.softmax(1).T.contiguous())
            each = weight.double().expand(index.shape)
            counts.scatter_add_(1, index, each)
            right.scatter_add_(1, index, each * one_vs_rest(labels, logits.shape[1]).T)
        outer = torch.nn.functional.pad(torch.nn.functional.pad(inner, (1, 0), value=0.0), (0, 1), value=1.0)
        middle = (outer[:, 1:] + outer[:, :-1]).double() / 2
        floor = 1 / (counts + 2)
        value = torch.where(counts > 0, (right / counts).clamp(min=floor, max=1 - floor), middle)
        self._learn(some, edges=inner, value=value, as_is=0.0)
        return Outcome()

    def _transform(self, rows: Tensor) -> Tensor:
        probs = rows.softmax(1)
        index = place(self.edges, probs.T.contiguous())
        mapped = self.value.gather(1, index).T
        return torch.lerp(mapped, probs, self.as_is).clamp(min=torch.finfo(probs.dtype).tiny).log().log_softmax(1)

    def _reset(self, like: Tensor) -> None:
        self.as_is = torch.ones_like(self.as_is)

    def _n_classes(self) -> int:
        return len(self.value)
