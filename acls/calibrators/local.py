"""Local temperature scaling for dense maps: each position's temperature depends on its neighbourhood."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import field, replace
from functools import reduce
from itertools import islice
from operator import add
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn.functional import conv2d, nll_loss, pad

from acls.calibrators.base import Calibrator, Outcome
from acls.calibrators.calibration_set import Batches, CalibrationSet, ScoreTally, finite, sum_over
from acls.calibrators.temperature import scale_each, solve
from acls.errors import InputError
from acls.hashing import codes
from acls.shapes import check_logits, flatten, two_class_logits

KERNEL, DILATION = 5, 2
REACH = DILATION * (KERNEL // 2)
FOLDS = 3
FEWEST_MAPS = 12
"""Cross-validation chooses the number of passes if there are at least this many maps."""
BATCH = 2**20
"""The number of positions times classes in one training step."""

WEIGHTS = ("logit_weight", "logit_bias", "image_weight", "image_bias")
"""The names of the trained buffers."""

Part = tuple[Tensor, Tensor, "Tensor | None"]
"""Some maps of logits (n, K, H, W), their targets (n, H, W), and their images."""


class LTS(Calibrator):
    """Divide each position's logits by its own temperature, from 5 x 5 convolutions (dilation 2) of logits and image.

    A tree of gates mixes four maps of the logits, and one more gate mixes the result with a map of the image. This
    gives m in ``T = T0 exp(m)``, where T0 is the best common temperature and m starts close to 0. If
    ``fit(logits, target, image=...)`` gets no image, the image branch is omitted, also in later calls. Rows ``(N, K)``
    are treated as maps with one position. Cross-validation over maps chooses the number of passes. If training does not
    lower the NLL in every fold, only T0 is used. (Ding et al., ICCV 2021. Their weights all start at 0, so the four
    maps stay equal. Here a small random start, set by ``seed``, makes them differ, and exp instead of relu keeps T
    positive.)
    """

    keeps_ranking = True
    pointwise = False
    per_class = "center"
    no_weights = "it trains on batches of whole maps of equal weight; repeat maps instead, or fit Temperature"
    paper = "Ding et al., ICCV 2021"

    steps: int = 200
    learning_rate: float = 0.01
    weight_decay: float = 0.1
    seed: int = 0

    temperature: Tensor = field(init=False)
    center: Tensor = field(init=False)
    scale: Tensor = field(init=False)
    logit_weight: Tensor = field(init=False)
    logit_bias: Tensor = field(init=False)
    image_weight: Tensor = field(init=False)
    image_bias: Tensor = field(init=False)

    @torch.no_grad()
    def fit(
        self,
        logits: Tensor | Batches,
        target: Tensor | None = None,
        sample_weight: Tensor | None = None,
        *,
        group: Tensor | None = None,
        image: Tensor | None = None,
    ) -> Self:
        """Learn from maps ``(N, K, H, W)``, targets ``(N, H, W)`` and, optionally, images ``(N, C, H, W)``.

        An iterable of batches holds (logits, target) or (logits, target, image).
        """
        whole = hasattr(logits, "shape")
        self._maps: list[Any] = [(logits, target, image)] if whole else list(logits)
        return super().fit(logits if whole else [maps[:2] for maps in self._maps], target, sample_weight)

    def forward(self, logits: Tensor, image: Tensor | None = None) -> Tensor:
        """Return calibrated log-probabilities of maps. Pass the images if the calibrator was fitted with images."""
        logits = two_class_logits(logits)
        check_logits(logits)
        self._check_fitted(logits.shape[1])
        if image is None and self.image_weight.numel():
            raise InputError(f"{type(self).__name__} was fitted with images: pass them as the second argument")
        maps, fitted = self._as_wide(_as_map(logits))
        image = None if image is None else image.to(maps.dtype)
        return fitted._map(maps, image, fitted._weights()).reshape(logits.shape)

    def _fit(self, data: CalibrationSet) -> Outcome:
        parts = [part for maps in self._maps for part in _split(*maps)]
        self._maps = []
        solved = solve(data)
        some = data.first()[0]
        n_classes, image = some.shape[1], parts[0][2]
        center, scale = _moments(data)
        generator = torch.Generator().manual_seed(self.seed)

        def small(*shape: int) -> Tensor:
            return 1e-2 * torch.randn(shape, generator=generator) / math.sqrt(n_classes * KERNEL**2)

        weight = small(8, n_classes, KERNEL, KERNEL)
        self.image_weight = small(1, 0 if image is None else image.shape[1], KERNEL, KERNEL)
        self._learn(some, image_weight=self.image_weight, image_bias=torch.zeros(1), logit_bias=torch.zeros(8))
        self._learn(some, temperature=solved.temperature, center=center, scale=scale, logit_weight=weight)
        self._train(parts)
        maps = ((self._map(logits, image, self._weights()), target) for logits, target, image in parts)
        rows = (flatten(*both, ignore_index=self.ignore_index).compact() for both in maps)
        tallies = (ScoreTally.of_log_probs(one.logits, one.target, torch.ones_like(one.target)) for one in rows)
        return replace(solved, gap=None, after=reduce(add, tallies))

    def _train(self, parts: list[Part]) -> None:
        """Train for the number of passes with the lowest held-out NLL; do not train unless every fold improves."""
        start = self._weights()
        number = max(1, -(-self.steps // len(parts)))
        passes = self._passes(parts, number)
        if sum(len(logits) for logits, _, _ in parts) >= FEWEST_MAPS:
            folds = (_parted(parts, fold) for fold in range(FOLDS))
            losses = [[self._nll(held, some) for some in (start, *self._passes(rest, number))] for rest, held in folds]
            held_out = torch.tensor(losses, dtype=torch.float64)
            chosen = int(held_out.sum(0).argmin())
            passes = islice(passes, chosen if bool((held_out[:, chosen] < held_out[:, 0]).all()) else 0)
        best = min((start, *passes), key=lambda weights: self._nll(parts, weights))
        self._learn(best[0], **dict(zip(WEIGHTS, best, strict=True)))

    def _passes(self, parts: list[Part], number: int) -> Iterator[list[Tensor]]:
        """Train with Adam, one batch of maps per step, and yield the weights after each pass over the maps."""
        weights = [weight.clone().requires_grad_(True) for weight in self._weights()]
        adam = torch.optim.Adam(weights, self.learning_rate)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(adam, number * len(parts))
        for _ in range(number):
            for logits, target, image in parts:
                with torch.enable_grad():
                    nll = self._part_nll(logits, target, image, weights)
                    decay = self.weight_decay * (weights[0].square().sum() + weights[2].square().sum())
                    loss = nll / (target != self.ignore_index).sum().clamp(min=1) + decay
                adam.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                adam.step()
                schedule.step()
            yield [weight.detach().clone() for weight in weights]

    def _nll(self, parts: list[Part], weights: list[Tensor]) -> float:
        return sum(float(self._part_nll(*part, weights).double()) for part in parts)

    def _part_nll(self, logits: Tensor, target: Tensor, image: Tensor | None, weights: list[Tensor]) -> Tensor:
        log_probs = self._map(logits, image, weights)
        return nll_loss(log_probs, target, ignore_index=self.ignore_index, reduction="sum")

    def _weights(self) -> list[Tensor]:
        return [getattr(self, name) for name in WEIGHTS]

    def _map(self, logits: Tensor, image: Tensor | None, weights: list[Tensor]) -> Tensor:
        logits = finite(logits)
        shape = (1, -1, 1, 1)
        inputs = (logits - self.center.view(shape)) / self.scale.view(shape)
        # The input of the network is clipped at ten standard deviations.
        maps = _conv(inputs.clamp(-10, 10), weights[0], weights[1])
        t1, t2, t3, t4 = maps[:, 0:4].unbind(1)
        g1, g2, g3, g4 = maps[:, 4:8].sigmoid().unbind(1)
        local = g3 * (g1 * t1 + (1 - g1) * t2) + (1 - g3) * (g2 * t3 + (1 - g2) * t4)
        if image is not None and weights[2].numel():
            local = g4 * local + (1 - g4) * _conv(image.to(logits.dtype), weights[2], weights[3])[:, 0]
        return scale_each(logits, self.temperature, self._spread(local))

    def _spread(self, local: Tensor) -> Tensor:
        return local

    def _transform(self, rows: Tensor) -> Tensor:
        return self._map(rows[:, :, None, None], None, self._weights())[:, :, 0, 0]

    def _reset(self, like: Tensor) -> None:
        n_classes = like.shape[1]
        self._learn(like, temperature=1.0, center=torch.zeros(n_classes), scale=torch.ones(n_classes))
        self._learn(like, logit_weight=torch.zeros(8, n_classes, KERNEL, KERNEL), logit_bias=torch.zeros(8))
        self._learn(like, image_weight=torch.zeros_like(self.image_weight), image_bias=torch.zeros(1))


class IBTS(LTS):
    """Divide all logits of a map by one temperature that depends on the map: the mean of the local values of `LTS`.

    (Ding et al., ICCV 2021. The mean is over the positions of each image, not over the batch as in their code.)
    """

    def _spread(self, local: Tensor) -> Tensor:
        return local.mean((1, 2), keepdim=True).expand_as(local)


def _as_map(logits: Tensor) -> Tensor:
    """Return logits (N, K), (N, K, L) or (N, K, H, W) as maps (N, K, H, W), in float32 or wider."""
    if logits.ndim > 4:
        raise InputError(f"expected logits of shape (N, K, H, W), got {tuple(logits.shape)}")
    logits = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
    return logits.reshape(logits.shape + (1,) * (4 - logits.ndim))


def _split(logits: Tensor, target: Tensor, image: Tensor | None = None) -> Iterator[Part]:
    """Yield batches of maps. The content of the maps, not their order, determines which maps share a batch."""
    maps = _as_map(two_class_logits(logits)).detach()
    target = target.reshape(maps[:, 0].shape).long()
    order = codes(maps.flatten(1), torch.zeros_like(target.flatten(1)[:, 0])).argsort(stable=True)
    for own in torch.split(order, max(1, BATCH // maps[0].numel())):
        yield maps[own], target[own], None if image is None else image[own]


def _parted(parts: list[Part], fold: int) -> tuple[list[Part], list[Part]]:
    """Split the maps into one fold and the rest, batch by batch."""
    rest: list[Part] = []
    held: list[Part] = []
    seen = 0
    for logits, target, image in parts:
        own = (torch.arange(len(logits), device=logits.device) + seen) % FOLDS == fold
        seen += len(logits)
        for chosen, into in ((~own, rest), (own, held)):
            if chosen.any():
                into.append((logits[chosen], target[chosen], None if image is None else image[chosen]))
    return rest, held


def _moments(data: CalibrationSet) -> tuple[Tensor, Tensor]:
    """Return the mean and the standard deviation of the logits of each class."""
    n = data.total()
    mean = sum_over(data, lambda z, _labels, _weight: z.double().sum(0)) / n
    scale = (sum_over(data, lambda z, _labels, _weight: (z.double() - mean).square().sum(0)) / n).sqrt()
    return mean, scale.clamp(min=1e-6 * float(scale.max()) + 1e-30)


def _conv(inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    height, width = inputs.shape[2:]
    if height == width == 1:  # borders are repeated, so all taps see the same position
        return torch.einsum("nkhw,ok->nohw", inputs, weight.sum((2, 3))) + bias[:, None, None]
    mode = "reflect" if min(height, width) > REACH else "replicate"
    return conv2d(pad(inputs, (REACH,) * 4, mode=mode), weight, bias, dilation=DILATION)
