"""Histogram binning of the probabilities."""

from __future__ import annotations

from dataclasses import field

import torch
from torch import Tensor

from acls.calibrators.base import Calibrator, Outcome
from acls.calibrators.lookup import place
from acls.calibrators.odds import normalized
from acls.calibrators.rows import Rows
from acls.errors import InputError
from acls.metrics.bins import edges
from acls.modules import choose


class Histogram(Calibrator):
    """Replace a probability by how often its class was right in its bin, class by class, then normalise.

    Bins are (lo, hi], of equal ``width`` or of equal ``mass`` (edges at the class's own quantiles). An empty bin has
    its middle; a bin of n rows has no value below 1 / (n + 2), so that nothing becomes impossible. (Zadrozny and
    Elkan, ICML 2001)
    """

    paper = "Zadrozny and Elkan, ICML 2001"

    bins: int = 15
    kind: str = "width"

    edges: Tensor = field(init=False)
    value: Tensor = field(init=False)
    as_is: Tensor = field(init=False)
    """1 where the guard keeps the probabilities as they are, else 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        choose("kind", self.kind, ("width", "mass"))
        if self.bins < 1:
            raise InputError(f"bins is {self.bins}, but at least 1 is called for")
        self.streams = self.kind == "width"

    def _fit(self, rows: Rows) -> Outcome:
        some = rows.first()[0]
        if self.kind == "width":
            inner = edges(self.bins, some)[1:-1].expand(some.shape[1], -1).contiguous()
        else:
            probs = rows.all()[0].softmax(1).T.sort(dim=1).values
            at = torch.arange(1, self.bins, device=some.device) * probs.shape[1] // self.bins
            inner = probs[:, (at - 1).clamp(min=0)].contiguous()
        counts = torch.zeros((some.shape[1], self.bins), dtype=torch.float64, device=some.device)
        right = torch.zeros_like(counts)
        for logits, labels in rows:
            index = place(inner, logits.softmax(1).T.contiguous())
            hits = labels == torch.arange(logits.shape[1], device=logits.device)[:, None]
            counts.scatter_add_(1, index, torch.ones_like(index, dtype=torch.float64))
            right.scatter_add_(1, index, hits.double())
        outer = torch.nn.functional.pad(torch.nn.functional.pad(inner, (1, 0), value=0.0), (0, 1), value=1.0)
        middle = (outer[:, 1:] + outer[:, :-1]).double() / 2
        floor = 1 / (counts + 2)
        value = torch.where(counts > 0, (right / counts).clamp(min=floor, max=1 - floor), middle)
        self._learn(some, edges=inner, value=value, as_is=torch.zeros(()))
        return Outcome()

    def _transform(self, rows: Tensor) -> Tensor:
        probs = rows.softmax(1)
        index = place(self.edges, probs.T.contiguous())
        mapped = self.value.gather(1, index).T
        return normalized(torch.lerp(mapped, probs, self.as_is).clamp(min=torch.finfo(probs.dtype).tiny).log())

    def _reset(self, like: Tensor) -> None:
        self.as_is = torch.ones_like(self.as_is)

    def _n_classes(self) -> int:
        return len(self.value)
