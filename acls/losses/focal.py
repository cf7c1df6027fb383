"""Focal loss and its variants: cross-entropy times a weight that depends on the probability of the true class."""

from __future__ import annotations

import math
from dataclasses import field

import torch
from torch import Tensor

from acls import distributed
from acls.losses.base import About, Epoch, Loss
from acls.losses.numerics import correctness, log_confidence, target_logs
from acls.losses.rule import Rule, gradient_rule
from acls.options import option
from acls.shapes import Positions, flatten


def mix(values: Tensor, at: Positions, weight: Tensor | None) -> Tensor:
    """Apply class weights to values ``(M,)`` of the true class; with soft labels, average ``(M, K)`` by the labels."""
    if at.soft:
        return (values * (at.target if weight is None else at.target * weight)).sum(1)
    return values if weight is None else values * weight[at.target]


class FocalFamily(Loss):
    """A loss of the form w(p_y) (-log p_y). Subclasses implement the factor w.

    The gradient is g(p_y) (softmax(z) - onehot(y)), with g = w - p_y w'(p_y) (-log p_y) if w carries a gradient. It is
    collinear with the gradient of cross-entropy: this is label smoothing towards the model's own prediction.
    """

    data_name = "focal"

    def factor(self, log_p: Tensor, log_rest: Tensor) -> Tensor:
        """Return w elementwise, computed from log p and log(1 - p) of a class."""
        raise NotImplementedError

    def data_term(self, at: Positions, weight: Tensor | None) -> Tensor:
        log_p, log_rest = target_logs(at)
        return mix(-self.factor(log_p, log_rest) * log_p, at, weight)

    def rule(self, n_classes: int) -> Rule:
        return gradient_rule(self.excess, "(1 - g(p_y)) (1 - p_y)", "(1 - g(p_y)) p_j", pivot="true")


class Focal(FocalFamily):
    """Cross-entropy with a smaller weight for samples that are already learnt: -(1 - p_y)^gamma log p_y.

    With ``gamma=0`` it is cross-entropy. ``detach=True`` stops the gradient through the weight, like the code of
    Wang et al. (2021). Lin et al., ICCV 2017; for calibration Mukhoti et al., NeurIPS 2020.
    """

    gamma: float = option(default=3.0, within="[0, inf)")
    detach: bool = False

    about = About("Focal loss", "Lin et al.", "ICCV", 2017)

    def factor(self, log_p: Tensor, log_rest: Tensor) -> Tensor:
        weight = torch.exp(self.gamma * log_rest)
        return weight.detach() if self.detach else weight


class InverseFocal(FocalFamily):
    """Cross-entropy with a larger weight for samples that are already learnt: -(1 + p_y)^gamma log p_y.

    It trains towards sharper outputs, which post-hoc calibration then corrects. ``detach=True`` stops the gradient
    through the weight. Wang et al., NeurIPS 2021.
    """

    gamma: float = option(default=2.0, within="[0, inf)")
    detach: bool = False

    about = About("Inverse focal loss", "Wang et al.", "NeurIPS", 2021)

    def factor(self, log_p: Tensor, log_rest: Tensor) -> Tensor:
        weight = (1 + log_p.exp()) ** self.gamma
        return weight.detach() if self.detach else weight


class FLSD(FocalFamily):
    """Focal loss whose gamma depends on p_y, the true class's probability: 5 below 0.2, 3 below 0.5, then ``gamma``.

    The default ``gamma=3`` gives FLSD-53. No gradient flows through gamma, and p_y = 0.2 uses 3. The paper writes the
    probability of the predicted class, but the reference code uses that of the true class.
    Mukhoti et al., NeurIPS 2020.
    """

    gamma: float = 3.0

    about = About("Sample-dependent focal loss", "Mukhoti et al.", "NeurIPS", 2020)

    def factor(self, log_p: Tensor, log_rest: Tensor) -> Tensor:
        gamma = torch.where(log_p.detach() < math.log(0.5), 3.0, self.gamma)
        return torch.exp(torch.where(log_p.detach() < math.log(0.2), 5.0, gamma) * log_rest)


class AdaFocal(FocalFamily):
    """Focal loss with one gamma for each of ``bins`` ranges of p_y: -(1 - sgn(gamma) p_y)^|gamma| log p_y.

    After each epoch the validation confidences are split into bins of equal mass. With E_b = confidence - accuracy of
    bin b, its gamma becomes gamma exp(sgn(gamma) rate E_b), so it grows where the network is overconfident. If the size
    of a gamma falls below ``switch``, it changes sign, from focal to inverse focal or back. All gammas stay within
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
    """The borders of the bins, ``(bins + 1,)``. The first and the last bin are unbounded."""
    gammas: Tensor = field(init=False)
    """One gamma per bin, ``(bins,)``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.register_buffer("edges", torch.linspace(0, 1, self.bins + 1, dtype=torch.float64))
        self.register_buffer("gammas", torch.full((self.bins,), float(self.gamma), dtype=torch.float64))

    def factor(self, log_p: Tensor, log_rest: Tensor) -> Tensor:
        p = log_p.detach().exp().contiguous()
        gamma = self.gammas.to(p.dtype)[torch.searchsorted(self.edges[1:-1].to(p.dtype), p, right=True)]
        # torch.where of two powers would let NaN through its gradient. Instead, the exponent of the unused one is 0.
        focal = torch.exp(gamma.clamp(min=0) * log_rest)
        inverse = torch.exp((-gamma).clamp(min=0) * torch.log1p(log_p.exp()))
        return focal * inverse

    @torch.no_grad()
    def end_epoch(self, now: Epoch) -> None:
        """Split the validation confidences into new bins and update the gamma of each bin by its gap."""
        found = [self.gammas.new_zeros(2, 0).double()]  # also gathered without a batch: the others wait
        for logits, target, _ in now.predict("val"):
            at = flatten(logits, target, ignore_index=self.ignore_index).compact()
            log_r, predicted = log_confidence(at.logits)
            found.append(torch.stack([log_r.exp(), correctness(at, predicted)]).double())
        self.update(*(distributed.all_gather(column) for column in torch.cat(found, 1)))

    @torch.no_grad()
    def update(self, confidence: Tensor, correct: Tensor) -> None:
        """Set the bins from confidences ``(n,)``, and the gammas from the gaps to ``correct`` ``(n,)``."""
        if confidence.numel() == 0:
            return
        edges = _equal_mass_edges(confidence.double(), self.bins).to(self.edges)
        confidence, correct = confidence.to(edges), correct.to(edges)
        # Bin b is (edge b-1, edge b]. Only the minimum itself is at 0, and it is in no bin. A weighted torch.bincount
        # has no deterministic algorithm on CUDA.
        index = torch.bucketize(confidence, edges).clamp(max=self.bins)
        sums = self.gammas.new_zeros(2, self.bins + 1)
        sums.index_add_(1, index, torch.stack([confidence - correct, torch.ones_like(confidence)]))
        total, count = sums[:, 1:]
        self.move(total / count.clamp(min=1))
        self.edges.copy_(edges)

    def move(self, gap: Tensor) -> None:
        """Update the gammas by the gaps, confidence minus accuracy, ``(bins,)``."""
        # 0 counts as inverse focal. Otherwise a gamma of 0 would stay 0.
        side = torch.where(self.gammas > 0, 1.0, -1.0).to(self.gammas)
        gamma = self.gammas * torch.exp(side * self.rate * gap)
        gamma = torch.where(gamma.abs() < self.switch, -self.switch * side, gamma)
        self.gammas.copy_(gamma.clamp(self.gamma_min, self.gamma_max))


def _equal_mass_edges(confidence: Tensor, bins: int) -> Tensor:
    """Return the borders at the fractional ranks k n / bins of the sorted confidences, like the reference code."""
    ordered = confidence.sort().values
    last = ordered.numel() - 1
    rank = (torch.arange(bins + 1, dtype=ordered.dtype, device=ordered.device) * (last + 1) / bins).clamp(max=last)
    low = rank.floor().long()
    return torch.lerp(ordered[low], ordered[(low + 1).clamp(max=last)], rank - low)


class DualFocal(Loss):
    """Focal loss on the lead over the next class: -(1 - p_y + p_j)^gamma log p_y, p_j the largest below p_y.

    If no probability is below p_y, p_j is 0. The authors tune gamma for each network and data set; the default 5 is
    their value for a ResNet-50 on CIFAR-10. Tao et al., ICML 2023.
    """

    gamma: float = option(default=5.0, within="[1, inf)")  # below 1 the gradient is unbounded

    data_name = "focal"
    about = About("Dual focal loss", "Tao et al.", "ICML", 2023)

    def data_term(self, at: Positions, weight: Tensor | None) -> Tensor:
        log_p = at.logits.log_softmax(1)
        if at.soft:
            next_below = _next_below_each(log_p.exp())
        else:
            p, log_p = log_p.exp(), log_p.gather(1, at.target.unsqueeze(1))
            next_below = torch.where(p < log_p.exp(), p, 0.0).amax(1)
            log_p = log_p.squeeze(1)
        left = (1 - log_p.exp() + next_below).clamp(min=0)
        return mix(-(left**self.gamma) * log_p, at, weight)

    def rule(self, n_classes: int) -> Rule:
        return gradient_rule(self.excess, "1 - p_y + dL/dz_y", "p_j - dL/dz_j", pivot="true")


def _next_below_each(p: Tensor) -> Tensor:
    """Return for every class the largest probability in its row below its own, ``(M, K)``; 0 if there is none."""
    ordered, _ = p.sort(1)
    rank = torch.searchsorted(ordered.detach(), p.detach().contiguous())  # the number of entries strictly below
    padded = torch.cat([torch.zeros_like(p[:, :1]), ordered], dim=1)
    return padded.gather(1, rank)
