"""Calibrated probability estimation (CaPE): training targets are the observed accuracies of the network."""

from __future__ import annotations

import itertools
from dataclasses import field

import torch
import torch.nn.functional as F
from torch import Tensor

from acls import distributed
from acls.losses.base import About, Epoch, Loss
from acls.options import option
from acls.shapes import Positions, flatten

# For dense maps, about this many evenly spaced positions per image are used to compute the targets.
_POSITIONS_AN_IMAGE = 1024


class CaPE(Loss):
    """Cross-entropy that uses the network's observed accuracy as the target in every ``every``-th epoch.

    Before each of these epochs, which include the first, the network predicts the training set. The samples are sorted
    by probability and split into ``bins`` groups of equal size. The target of a sample is the frequency of the label in
    its group. The authors define and implement this for two classes only. For more classes, ``mode="classwise"`` does
    so for every class and normalises the targets to sum to one; for two classes the result is the same. ``"toplabel"``
    groups by confidence, gives the predicted class the accuracy of its group, and divides the rest among the other
    classes in proportion to their probabilities. In dense maps augmentation moves the pixels, so the target of a
    position is looked up from its current probabilities. Liu et al., ICML 2022.
    """

    bins: int = option(default=5, within="[1, inf)")
    every: int = option(default=3, within="[1, inf)")
    mode: str = option(default="classwise", choices=("classwise", "toplabel"))

    refuses_soft_targets = True
    memory = ("targets", "borders", "shares")
    index_reason = "CaPE has a target for each sample"
    about = About("Calibrated probability estimation", "Liu et al.", "ICML", 2022)

    targets: Tensor = field(init=False)
    """One soft label per training sample, ``(n_train, K)``. A row is all 0 if the sample has no label yet."""
    borders: Tensor = field(init=False)
    """The inner borders of the groups, ``(K, bins - 1)``, or ``(1, bins - 1)`` for groups by confidence."""
    shares: Tensor = field(init=False)
    """The targets of the groups, ``(K, bins)`` or ``(1, bins)``."""
    calibrating: Tensor = field(init=False)
    """Whether this epoch trains towards the targets."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.register_buffer("calibrating", torch.tensor(False))

    def remembers_samples(self) -> bool:
        return True

    def prepare(self, *, n_train: int, n_classes: int) -> None:
        scores = n_classes if self.mode == "classwise" else 1
        self.register_buffer("targets", torch.zeros(n_train, n_classes))
        self.register_buffer("borders", torch.zeros(scores, self.bins - 1))
        self.register_buffer("shares", torch.zeros(scores, self.bins))

    @torch.no_grad()
    def start_epoch(self, now: Epoch) -> None:
        """Compute the targets from the network's predictions if this epoch uses them."""
        self.calibrating.fill_(now.number % self.every == 0)
        if not self.calibrating:
            return
        self.check_prepared()
        # A process without a batch must also take part in the gather, because the others wait for it.
        n_classes, numbers = self.targets.shape[1], self.calibrating.new_zeros(0, dtype=torch.int64)
        probabilities, labels, indices = [self.targets.new_zeros(0, n_classes)], [numbers], [numbers]
        dense = False
        for logits, target, index in now.predict("train"):
            dense = logits.ndim > 2
            at = flatten(logits, target, ignore_index=self.ignore_index)
            step = max(1, at.logits.shape[0] // max(1, at.shape[0]) // _POSITIONS_AN_IMAGE)
            kept = torch.arange(0, at.logits.shape[0], step, device=at.logits.device)
            if at.valid is not None:
                kept = kept[at.valid[kept]]
            probabilities.append(at.logits[kept].softmax(1).to(self.targets))
            labels.append(at.target[kept].to(self.targets.device))
            indices.append((kept if dense else index[kept]).to(self.targets.device))
        p, y, index = (distributed.all_gather(torch.cat(parts)) for parts in (probabilities, labels, indices))
        dense = bool(distributed.all_reduce(torch.tensor(float(dense), device=p.device)))
        if len(p):
            targets = self._set_targets(p, y)
            self.targets.zero_()
            if not dense:
                self.targets[index] = targets

    def data_term(self, at: Positions, weight: Tensor | None) -> Tensor:
        if not self.training:
            return F.cross_entropy(at.logits, at.target, weight=weight, reduction="none")
        label = F.one_hot(at.target, at.n_classes).to(at.logits.dtype)
        self.check_prepared()
        if len(at.shape) == 1:
            target = self.targets[at.sample_numbers()].to(label)
            known = target.sum(1, keepdim=True) > 0
        else:
            target = self._look_up(at.logits.detach().softmax(1))
            known = torch.ones_like(target[:, :1], dtype=torch.bool)
        label = torch.where(self.calibrating & known, target, label)
        return F.cross_entropy(at.logits, label, weight=weight, reduction="none")

    def _set_targets(self, p: Tensor, y: Tensor) -> Tensor:
        """Split the probabilities ``(n, K)`` into groups and return the target of each sample, ``(n, K)``."""
        if self.mode == "classwise":
            scores, hits = p, F.one_hot(y, p.shape[1]).to(p.dtype)
        else:
            confidence, predicted = p.max(1, keepdim=True)
            scores, hits = confidence, (predicted == y.unsqueeze(1)).to(p.dtype)
        group = torch.empty_like(scores, dtype=torch.int64)
        for column in range(scores.shape[1]):
            order = scores[:, column].argsort(stable=True)
            cuts = [rank * len(order) // self.bins for rank in range(self.bins + 1)]
            for b, members in enumerate(order[start:stop] for start, stop in itertools.pairwise(cuts)):
                group[members, column] = b
                self.shares[column, b] = hits[members, column].mean() if len(members) else 0.0
                if b and len(members):
                    self.borders[column, b - 1] = scores[members[0], column]
        return self._spread(self.shares.gather(1, group.T).T, p)

    def _look_up(self, p: Tensor) -> Tensor:
        scores = p if self.mode == "classwise" else p.amax(1, keepdim=True)
        group = torch.searchsorted(self.borders.to(p.dtype), scores.T.contiguous(), right=True)
        return self._spread(self.shares.to(p.dtype).gather(1, group).T, p)

    def _spread(self, share: Tensor, p: Tensor) -> Tensor:
        """Build soft labels from group targets ``(n, K)`` or ``(n, 1)`` and probabilities ``(n, K)``."""
        if self.mode == "classwise":
            total = share.sum(1, keepdim=True)
            return torch.where(total > 0, share / total.clamp(min=torch.finfo(p.dtype).tiny), p)
        predicted = p.argmax(1, keepdim=True)
        rest = p.scatter(1, predicted, 0.0)
        left = rest.sum(1, keepdim=True)
        even = torch.full_like(p, 1 / (p.shape[1] - 1)).scatter(1, predicted, 0.0)
        rest = torch.where(left > 0, rest / left.clamp(min=torch.finfo(p.dtype).tiny), even)
        return ((1 - share) * rest).scatter(1, predicted, share)
