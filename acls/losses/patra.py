"""The auxiliary loss of Patra et al., including their pruning of training samples."""

from __future__ import annotations

from dataclasses import field

import torch
import torch.nn.functional as F
from torch import Tensor

from acls import distributed
from acls.losses.base import About, Epoch, Regularized
from acls.losses.crl import sample_means
from acls.losses.mdca import confidence_gap
from acls.losses.numerics import log_confidence
from acls.options import option
from acls.shapes import Positions, flatten


class Patra(Regularized):
    """A base loss plus weight Huber_alpha(mean confidence - accuracy) of the batch, with pruning of unsure samples.

    Huber(d) is d^2/2 up to alpha and alpha (|d| - alpha/2) beyond. The method keeps an exponential moving average of
    the confidence of each training sample, where ``ema`` is the weight of the newest value. ``prune_at`` lists
    fractions of the training: after each of them, the fraction ``prune_fraction`` of the remaining samples with the
    lowest average is removed from training permanently. The authors published no code. The defaults follow what is
    known about the paper and are unverified. Patra et al., WACV 2023.
    """

    weight: float = 10.0
    alpha: float = option(default=0.005, within="(0, inf)")
    ema: float = 0.3
    prune_at: tuple[float, ...] = option(default=(0.25, 0.5, 0.75), within="(0, 1]")
    prune_fraction: float = option(default=0.1, within="[0, 1)")

    couples_samples = True
    memory = ("confidence", "kept")
    about = About("Huber confidence loss with dynamic pruning", "Patra et al.", "WACV", 2023, kind="AR")

    confidence: Tensor = field(init=False)
    """The moving average of the confidence of each sample, ``(n_train,)``."""
    kept: Tensor = field(init=False)
    """Which samples are still in training, ``(n_train,)``."""

    def __post_init__(self) -> None:
        self.prune_at = tuple(self.prune_at)
        super().__post_init__()

    def penalty(self, at: Positions) -> dict[str, Tensor]:
        gap = confidence_gap(at)
        return {"huber": self.weight * F.huber_loss(gap, torch.zeros_like(gap), delta=self.alpha)}

    def prepare(self, *, n_train: int, n_classes: int) -> None:
        super().prepare(n_train=n_train, n_classes=n_classes)
        self.register_buffer("confidence", torch.zeros(n_train, dtype=torch.float64))
        self.register_buffer("kept", torch.ones(n_train, dtype=torch.bool))

    @torch.no_grad()
    def observe(self, logits: Tensor, target: Tensor, index: Tensor) -> None:
        self.check_prepared()
        super().observe(logits, target, index)
        if not self.training:
            return
        at = flatten(logits, target, ignore_index=self.ignore_index)
        newest = sample_means(log_confidence(at.logits)[0].exp(), at).double()
        index = distributed.all_gather(index).to(self.confidence.device)
        newest = distributed.all_gather(newest).to(self.confidence)
        self.confidence[index] = torch.lerp(self.confidence[index], newest, self.ema)

    def end_epoch(self, now: Epoch) -> None:
        self.check_prepared()
        super().end_epoch(now)
        if now.number + 1 in {max(1, round(share * now.total)) for share in self.prune_at}:
            still = self.kept.nonzero().squeeze(1)
            lowest = self.confidence[still].argsort(stable=True)[: int(self.prune_fraction * len(still))]
            self.kept[still[lowest]] = False

    def keep_mask(self) -> Tensor | None:
        return self.kept if hasattr(self, "kept") else None
