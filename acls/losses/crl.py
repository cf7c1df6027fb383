"""Correctness ranking loss (CRL), and its memory of how often each training sample was classified correctly."""

from __future__ import annotations

import math
from dataclasses import field

import torch
from torch import Tensor, nn

from acls import distributed
from acls.errors import InputError
from acls.losses.base import About, Epoch, Regularized
from acls.losses.numerics import correctness, log_confidence
from acls.losses.rule import Rule, Side, View
from acls.options import option
from acls.shapes import Positions, flatten, labelled_mean


class RankedByHistory(Regularized):
    """A regulariser that can rank samples by their history. It keeps a history only if `remembers_samples` is true.

    The history holds ``hits``, the number of correct classifications per sample, and ``epochs``, the number of epochs
    that were counted. Dense maps have one entry per image: each epoch adds the fraction of correct pixels.
    """

    memory = ("history.hits", "history.epochs")

    history: nn.Module = field(init=False, default_factory=nn.Module)

    def prepare(self, *, n_train: int, n_classes: int) -> None:
        super().prepare(n_train=n_train, n_classes=n_classes)
        if self.remembers_samples():
            self.history.register_buffer("hits", torch.zeros(n_train, dtype=torch.float64))
            self.history.register_buffer("epochs", torch.zeros((), dtype=torch.int64))

    @torch.no_grad()
    def observe(self, logits: Tensor, target: Tensor, index: Tensor) -> None:
        """Count the hits of one batch. If several processes train, count the hits of all their batches."""
        super().observe(logits, target, index)
        if not self.training or not self.remembers_samples():
            return
        self.check_prepared()
        at, hits = flatten(logits, target, ignore_index=self.ignore_index, index=index), self.history.get_buffer("hits")
        correct = sample_means(correctness(at, log_confidence(at.logits)[1]), at).double()
        everyone, correct = distributed.all_gather(at.sample_numbers()), distributed.all_gather(correct)
        hits.index_add_(0, everyone.to(hits.device), correct.to(hits))

    def end_epoch(self, now: Epoch) -> None:
        super().end_epoch(now)
        if self.remembers_samples():
            self.check_prepared()
            self.history.get_buffer("epochs").add_(1)

    def rank_value(self, at: Positions) -> Tensor:
        """Return how often the batch's samples were correct: 0 for the least correct of all samples, 1 for always.

        All values are 0 while the history is empty, and also if every sample was always correct.
        """
        self.check_prepared()
        hits, epochs = (self.history.get_buffer(name) for name in ("hits", "epochs"))
        least = hits.min()
        span = epochs.clamp(min=1) - least
        above = hits[at.sample_numbers()] - least
        return torch.where(span > 0, above / torch.where(span > 0, span, 1.0), 0.0)

    def leads(self, at: Positions, confidence: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Compare each sample with the next one of the batch, given the confidence of each position.

        Returns by how much it leads in `rank_value` and in mean confidence, and whether it is valid; ``(N,)`` each.
        """
        correct, confidence = self.rank_value(at).to(at.logits.dtype), sample_means(confidence, at)
        other, counts = next_in_batch(at)
        return correct - correct[other], confidence - confidence[other], counts


def sample_means(values: Tensor, at: Positions) -> Tensor:
    """Return the mean per sample over its valid positions, ``(N,)``. It is 0 if a sample has no valid position."""
    values = values.reshape(*at.shape, 1).flatten(1)
    if at.valid is None:
        return values.mean(1)
    valid = at.valid.reshape_as(values)
    return torch.where(valid, values, 0.0).sum(1) / valid.sum(1).clamp(min=1)


def next_in_batch(at: Positions) -> tuple[Tensor, Tensor]:
    """Return for each sample the index of the next valid sample, and whether the sample is valid; both ``(N,)``.

    The last valid sample is paired with the first. A sample is valid if it has at least one position that is not
    ignored.
    """
    n, device = at.shape[0], at.logits.device
    if at.valid is None:
        return torch.arange(1, n + 1, device=device) % max(n, 1), torch.ones(n, dtype=torch.bool, device=device)
    counts = at.valid.reshape(n, -1).any(1)
    order = torch.argsort(~counts, stable=True)  # valid samples first, in their original order
    after = torch.arange(1, n + 1, device=device) % counts.sum().clamp(min=1)
    return torch.zeros_like(order).scatter(0, order, order[after.clamp(max=max(n - 1, 0))]), counts


class CRL(RankedByHistory):
    """Cross-entropy plus a ranking loss: samples that were correct more often should have a higher confidence.

    Each sample i is compared with the next one in the batch: weight mean_i max(0, -t (k_i - k_{i+1}) + m). Here c is
    the correctness so far on a scale from 0 to 1, t = sgn(c_i - c_{i+1}), and m = |c_i - c_{i+1}| (0 with
    ``margin=False``, the ACLS paper's Eq. 18). k is the confidence: the largest probability (``target="softmax"``), the
    difference of the two largest (``"margin"``), or the negative entropy divided by log K (``"entropy"``). Samples with
    equal correctness are not compared, so the first epoch is plain cross-entropy. For dense maps, images are ranked by
    their mean confidence.

    ``condition="margin"`` is an ablation of the ACLS paper: the same smoothing function acts if
    z_ŷ - z_j > ``logit_margin``. It needs no history. Its gradient is not the gradient of any loss, so the reported
    value is only that of the samples it acts on. Moon et al., ICML 2020.
    """

    weight: float = 1.0
    target: str = option(default="softmax", choices=("softmax", "margin", "entropy"))
    margin: bool = True
    condition: str = option(default="ranking", choices=("ranking", "margin"))
    logit_margin: float = 10.0

    couples_samples = True
    refuses_soft_targets = True
    index_reason = "CRL ranks samples by their history"
    about = About("Correctness ranking loss", "Moon et al.", "ICML", 2020, kind="ACR")

    def __post_init__(self) -> None:
        if not isinstance(self.margin, bool):
            raise InputError(
                f"expected margin=True or margin=False, got {self.margin!r}: set the distance of logits as logit_margin"
            )
        super().__post_init__()

    def remembers_samples(self) -> bool:
        return self.condition == "ranking"

    def penalty(self, at: Positions) -> dict[str, Tensor]:
        if self.condition == "margin":
            return {"ranking": labelled_mean(self._margin_values(at), at.valid)}
        lead, surer, counts = self.leads(at, self._confidence(at.logits))
        margin = lead.abs() if self.margin else 0.0
        values = torch.where(lead != 0, margin - lead.sign() * surer, 0.0).relu()
        return {"ranking": self.weight * labelled_mean(values, counts)}

    def rule(self, n_classes: int) -> Rule | None:
        return self.rule_on_cross_entropy(self._margin_rule()) if self.condition == "margin" else None

    def _confidence(self, z: Tensor) -> Tensor:
        if self.target == "softmax":
            return log_confidence(z)[0].exp()
        log_p = z.log_softmax(1)
        if self.target == "margin":
            first, second = log_p.exp().topk(2, dim=1).values.unbind(1)
            return first - second
        return (log_p.exp() * log_p).sum(1) / math.log(z.shape[1])

    def _margin_rule(self) -> Rule:
        above = f"> {self.logit_margin:g}"
        return Rule(
            down=Side(
                lambda view: self.weight * view.confidence * (1 - view.p),
                when=lambda view: (view.gap.amax(1, keepdim=True) > self.logit_margin).expand_as(view.z),
                formula="w p_ŷ (1 - p_ŷ)",
                condition=f"z_ŷ - min z {above}",
            ),
            up=Side(
                lambda view: self.weight * view.confidence * view.p,
                when=lambda view: view.gap > self.logit_margin,
                formula="w p_ŷ p_j",
                condition=f"z_ŷ - z_j {above}",
            ),
        )

    def _margin_values(self, at: Positions) -> Tensor:
        z = at.logits.detach()
        acts = View(z, at.target).gap.amax(1) > self.logit_margin
        value = torch.where(acts, self.weight * log_confidence(z)[0].exp(), 0.0)
        return value + self._margin_rule().pull(at.logits, at.target)
