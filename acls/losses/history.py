"""How often each training sample was classified correctly: the memory of CRL and of ACLS with its ranking condition."""

from __future__ import annotations

from dataclasses import field

import torch
from torch import Tensor, nn

from acls import distributed
from acls.losses.base import Epoch, Regularized, check_prepared
from acls.losses.numerics import correctness, log_confidence
from acls.shapes import Positions, flatten


class CorrectnessHistory(nn.Module):
    """Counts of correct classifications by sample, and how many epochs they cover.

    Dense maps have one entry per image: its share of correct pixels is what an epoch adds.
    """

    hits: Tensor
    epochs: Tensor

    def prepare(self, n_train: int) -> None:
        """Start an empty history of ``n_train`` samples."""
        self.register_buffer("hits", torch.zeros(n_train, dtype=torch.float64))
        self.register_buffer("epochs", torch.zeros((), dtype=torch.int64))

    @torch.no_grad()
    def observe(self, at: Positions) -> None:
        """Count the hits of one batch; where several processes train, of all their batches."""
        check_prepared(self, "hits")
        _, predicted = log_confidence(at.logits)
        hits = sample_means(correctness(at, predicted), at).double()
        everyone, hits = distributed.all_gather(at.sample_numbers()), distributed.all_gather(hits)
        self.hits.index_add_(0, everyone.to(self.hits.device), hits.to(self.hits))

    def end_epoch(self) -> None:
        check_prepared(self, "hits")
        self.epochs += 1

    def rank_value(self, at: Positions) -> Tensor:
        """Return how correct the batch's samples were: 0 for the least correct of all samples, 1 for always correct.

        0 for all of them while the history is empty, and when every sample was always correct.
        """
        check_prepared(self, "hits")
        least = self.hits.min()
        span = self.epochs.clamp(min=1) - least
        above = self.hits[at.sample_numbers()] - least
        return torch.where(span > 0, above / torch.where(span > 0, span, 1.0), 0.0)


class Ranked(Regularized):
    """A regulariser that may rank samples by their history, and keeps one where it does (`remembers_samples`)."""

    memory = {"history.hits": ("n_train",)}  # noqa: RUF012

    history: CorrectnessHistory = field(init=False, default_factory=CorrectnessHistory)

    def prepare(self, *, n_train: int, n_classes: int) -> None:
        super().prepare(n_train=n_train, n_classes=n_classes)
        if self.remembers_samples():
            self.history.prepare(n_train)

    def observe(self, logits: Tensor, target: Tensor, index: Tensor) -> None:
        super().observe(logits, target, index)
        if self.training and self.remembers_samples():
            self.history.observe(flatten(logits, target, ignore_index=self.ignore_index, index=index))

    def end_epoch(self, now: Epoch) -> None:
        super().end_epoch(now)
        if self.remembers_samples():
            self.history.end_epoch()


def sample_means(values: Tensor, at: Positions) -> Tensor:
    """Average one value per position over each sample's positions that count, ``(N,)``; 0 for a sample without any."""
    if len(at.shape) == 1:
        return values if at.valid is None else torch.where(at.valid, values, 0.0)
    values = values.reshape(at.shape[0], -1)
    if at.valid is None:
        return values.mean(1)
    valid = at.valid.reshape(at.shape[0], -1)
    return torch.where(valid, values, 0.0).sum(1) / valid.sum(1).clamp(min=1)


def next_in_batch(at: Positions) -> tuple[Tensor, Tensor]:
    """Return for each sample the one it is compared with, the next that counts, the first for the last; and who counts.

    Both ``(N,)``.
    """
    n = at.shape[0]
    device = at.logits.device
    if at.valid is None:
        return torch.arange(1, n + 1, device=device) % max(n, 1), torch.ones(n, dtype=torch.bool, device=device)
    counts = at.valid.reshape(n, -1).any(1)
    order = torch.argsort(~counts, stable=True)  # those that count come first, in their order
    after = torch.arange(1, n + 1, device=device) % counts.sum().clamp(min=1)
    return torch.zeros_like(order).scatter(0, order, order[after.clamp(max=max(n - 1, 0))]), counts
