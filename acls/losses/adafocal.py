"""AdaFocal: focal loss whose gammas follow the calibration of the validation set."""

from __future__ import annotations

from dataclasses import field

import torch
from torch import Tensor

from acls import distributed
from acls.losses.base import About, Epoch
from acls.losses.focal import FocalFamily
from acls.losses.numerics import correctness, log_confidence
from acls.options import option
from acls.shapes import flatten


class AdaFocal(FocalFamily):
    """Focal loss with a gamma for each of ``bins`` ranges of p_y: -(1 - sgn(gamma) p_y)^|gamma| log p_y.

    After each epoch the validation confidences are cut into bins of equal mass, and with E_b = confidence - accuracy
    of bin b its gamma becomes gamma exp(sgn(gamma) rate E_b): stronger where the network is overconfident. A gamma
    that shrinks below ``switch`` changes sign, from focal to inverse focal or back; all stay within
    ``gamma_min..gamma_max``. A bin without samples keeps its gamma. Ghosh et al., NeurIPS 2022.
    """

    bins: int = option(default=15, within="[1, inf)")
    rate: float = 1.0
    gamma: float = 1.0
    switch: float = 0.2
    gamma_min: float = -2.0
    gamma_max: float = 20.0

    about = About("AdaFocal", "Ghosh et al.", "NeurIPS", 2022)

    edges: Tensor = field(init=False)
    """The bins' borders, ``(bins + 1,)``; the first and the last bin are open."""
    gammas: Tensor = field(init=False)
    """One gamma per bin, ``(bins,)``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.register_buffer("edges", torch.linspace(0, 1, self.bins + 1, dtype=torch.float64))
        self.register_buffer("gammas", torch.full((self.bins,), float(self.gamma), dtype=torch.float64))

    def factor(self, log_p: Tensor, log_rest: Tensor) -> Tensor:
        gamma = self._gamma(log_p.detach().exp())
        # A masked power would let NaN through its gradient; the exponent is 0 on the branch that is not taken.
        focal = torch.exp(gamma.clamp(min=0) * log_rest)
        inverse = torch.exp((-gamma).clamp(min=0) * torch.log1p(log_p.exp()))
        return focal * inverse

    @torch.no_grad()
    def end_epoch(self, now: Epoch) -> None:
        """Cut the validation confidences into bins anew and move each bin's gamma by its gap."""
        confidences, hits = [], []
        for logits, target, _ in now.predict("val"):
            at = flatten(logits, target, ignore_index=self.ignore_index).compact()
            log_r, predicted = log_confidence(at.logits)
            confidences.append(log_r.exp())
            hits.append(correctness(at, predicted))
        # A process without a batch gathers too: the others wait for it.
        nothing = self.gammas.new_zeros(0)
        confidence, hit = (
            distributed.all_gather(torch.cat([nothing, *parts]).double()) for parts in (confidences, hits)
        )
        self.update(confidence, hit)

    @torch.no_grad()
    def update(self, confidence: Tensor, correct: Tensor) -> None:
        """Set the bins by confidences ``(n,)``, and the gammas by how far they exceed ``correct`` ``(n,)``."""
        if confidence.numel() == 0:
            return
        edges = _equal_mass_edges(confidence.double(), self.bins).to(self.edges)
        confidence, correct = confidence.to(edges), correct.to(edges)
        bin_of = torch.bucketize(confidence, edges) - 1  # (lower, upper]: the minimum itself falls in none
        inside = bin_of >= 0
        bin_of = bin_of[inside].clamp(max=self.bins - 1)
        total = torch.zeros_like(self.gammas).index_add_(0, bin_of, (confidence - correct)[inside])
        count = torch.zeros_like(self.gammas).index_add_(0, bin_of, torch.ones_like(confidence)[inside])
        self.move(total / count.clamp(min=1))
        self.edges.copy_(edges)

    def move(self, gap: Tensor) -> None:
        """Move the gammas by the gaps, confidence minus accuracy, ``(bins,)``."""
        # 0 counts as inverse focal, or a gamma that got there would stay.
        side = torch.where(self.gammas > 0, 1.0, -1.0).to(self.gammas)
        gamma = self.gammas * torch.exp(side * self.rate * gap)
        gamma = torch.where(gamma.abs() < self.switch, -self.switch * side, gamma)
        self.gammas.copy_(gamma.clamp(self.gamma_min, self.gamma_max))

    def _gamma(self, p: Tensor) -> Tensor:
        inner = self.edges[1:-1].to(p.dtype)
        return self.gammas.to(p.dtype)[torch.searchsorted(inner, p.contiguous(), right=True)]


def _equal_mass_edges(confidence: Tensor, bins: int) -> Tensor:
    """Return the borders at the fractional ranks k n / bins of the sorted confidences, as the reference code does."""
    ordered = confidence.sort().values
    last = ordered.numel() - 1
    rank = (torch.arange(bins + 1, dtype=ordered.dtype, device=ordered.device) * (last + 1) / bins).clamp(max=last)
    low = rank.floor().long()
    return torch.lerp(ordered[low], ordered[(low + 1).clamp(max=last)], rank - low)
