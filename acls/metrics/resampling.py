"""Separate sums for groups of samples, and labels drawn from the model's own probabilities.

`Blocks` shows how a metric varies between units. `Redraws` shows the scores that a calibrated model would have.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from acls.errors import InputError
from acls.hashing import STEP, mix64
from acls.metrics.batch import Batch, sums
from acls.metrics.bins import BINS, bin_of, edges
from acls.metrics.cells import Cells, cell_edges
from acls.metrics.classwise import binned_probabilities
from acls.metrics.distributions import chi_squared_tail
from acls.metrics.ordered import adaptive_ece, ks_error
from acls.metrics.smooth import smooth_ece
from acls.metrics.tally import Tally

BLOCKS = 1024
"""The largest number of blocks. A standard error estimated from them is itself off by about 1 / √(2 · 1024) = 2 %."""
DRAWS = 199
"""The number of labels drawn for each sample."""
_COARSE = 256
_SMOOTHED = 200
_CLASSWISE = 1 << 21  # if there are more sums than this (16 MB), classwise bins use fewer blocks
_ROWS = 1 << 16  # labels are drawn for at most this many samples: more do not change the shape of a sum's distribution
_FEW_CLASSES = 32
_TINY = 1e-37


@dataclass(frozen=True, eq=False)
class Blocks(Tally):
    """The sums of each block of samples. Block b has the samples whose unit number has remainder b.

    Units are drawn independently: a unit is a sample, or an image with all its pixels. Samples of one unit share a
    block, so resampling of blocks keeps dependent samples together. Its cost does not depend on n.
    """

    cells: Tensor
    """``(blocks, G, 3)``: counts, sums of confidences and hits per cell of confidence. Each cell lies in one bin."""
    squares: Tensor
    """``(G,)``: the sum of the squared weights of the samples in each cell, or their number if there are no weights."""
    proper: Tensor | None
    """``(blocks, 3)``: the sums of the NLL, the Brier score and the labels among the first five."""
    classwise: Tensor | None
    """``(fewer blocks, K, B)``: the sum of probabilities minus the number of events, per class and bin."""
    bins: int
    shared: bool = False
    """Whether several samples may share a unit. If not, all samples are independent."""

    @classmethod
    def count(
        cls,
        batch: Batch,
        bins: int = BINS,
        *,
        unit: Tensor | None = None,
        shared: bool | None = None,
        first: int = 0,
        classwise: bool = False,
    ) -> Blocks:
        """Return the sums of one batch. ``unit`` is one number per sample or per pixel.

        By default, the unit is the position of the sample, counted from ``first``; all pixels of a map have the
        position of their map. Models are comparable if they are counted with the same units. ``shared`` says whether
        several samples may share a unit. By default they may if ``unit`` is given or if the batch has maps.
        """
        if shared is None:
            shared = unit is not None or batch.dense
        top, weight = batch.top, batch.weight
        units = batch.spread(batch.places(first) if unit is None else unit)
        block = units % BLOCKS
        inner = _cell_edges(bins, top.confidence)
        size = inner.shape[0] + 1
        cell = torch.bucketize(top.confidence, inner)
        index = block * size + cell
        values = (None, top.confidence, top.right)  # of None, the sums are counts
        cells = torch.stack([sums(index, BLOCKS * size, part, weight).double() for part in values], -1)
        scores = [part for part in (top.nll, top.brier, top.label_in_five) if part is not None]
        proper = torch.stack([sums(block, BLOCKS, part, weight).double() for part in scores], 1) if scores else None
        squares = sums(cell, size, None if weight is None else weight.double().square()).double()
        by_class = _classwise(batch, units, bins) if classwise else None
        return cls(cells.view(BLOCKS, size, 3), squares, proper, by_class, bins, shared)

    def summary(self) -> dict[str, float]:
        """Return the metrics of all blocks together. Metrics that depend on order use coarse cells: approximate."""
        return {name: float(value) for name, value in self.metrics().items()} if self.used else {}

    @property
    def units(self) -> Tensor:
        """The number of samples, or the sum of weights, of each block."""
        return self.cells[..., 0].sum(1)

    @property
    def used(self) -> int:
        """The number of blocks that contain samples."""
        return int((self.units > 0).sum())

    @property
    def pooled(self) -> Cells:
        """The cells summed over all blocks, ``(1, G)``."""
        return Cells(*self.cells.sum(0)[None].unbind(-1))

    @property
    def calibrated(self) -> Tensor:
        """The variance of each cell's residual ``(G,)``, if the samples are independent and the model is calibrated."""
        mean = self.pooled.mean[0]
        return self.squares * mean * (1 - mean)

    def lower(self) -> Tensor:
        """Return the smallest confidence that each cell can contain, in ascending order."""
        inner = _cell_edges(self.bins, self.cells)
        return torch.cat([inner.new_zeros(1), inner.nextafter(inner.new_tensor(2.0))])

    def bin_of_cell(self, *, adaptive: bool = False) -> Tensor:
        """Return the bin that contains each cell or, with ``adaptive``, its bin of nearly equal mass."""
        if adaptive:
            return self.pooled.equal_mass(self.bins)[0]
        inner = _cell_edges(self.bins, self.cells)
        return bin_of(torch.cat([inner, inner.new_ones(1)]), self.bins)

    def metrics(self, weights: Tensor | None = None) -> dict[str, Tensor]:
        """Return R values of each metric except SmoothECE. Each block counts ``weights`` times, ``(R, blocks)``."""
        if weights is None:
            weights = self.cells.new_ones(1, self.cells.shape[0])
        cells = Cells(*(weights @ self.cells.flatten(1)).view(-1, *self.cells.shape[1:]).unbind(-1))
        found = cell_metrics(cells, self.bin_of_cell(), self.bins, smooth=False)
        if self.proper is not None:
            found |= dict(zip(("nll", "brier", "top5"), (weights @ self.proper / cells.n[:, None]).T, strict=True))
        if self.classwise is not None:
            # These blocks are fewer. Each one merges several other blocks and uses the weight of the first one for all.
            fewer, n_classes, _ = self.classwise.shape
            held = weights[:, :fewer] @ self.units.view(-1, fewer).sum(0)
            residual = weights[:, :fewer] @ self.classwise.flatten(1)
            found["classwise_ece"] = residual.abs().sum(1) / held.clamp(min=1e-300) / n_classes
        return found


def cell_metrics(cells: Cells, bin_of_cell: Tensor, bins: int, *, smooth: bool = True) -> dict[str, Tensor]:
    """Return the metrics of the top label from cells ``(R, G)``. Each cell must lie within one bin.

    SmoothECE is by far the most expensive metric. It is computed for the first 200 rows only, and only with ``smooth``.
    """
    n, sums = cells.n, cells.binned(bin_of_cell, bins)
    samples, residual = sums.count, sums.residual
    gap = residual / samples.clamp(min=1e-300)
    found = {
        "accuracy": cells.right.sum(-1) / n,
        "ece": residual.abs().sum(-1) / n,
        "overconfidence": residual.clamp(min=0).sum(-1) / n,
        "underconfidence": (-residual).clamp(min=0).sum(-1) / n,
        "mce": gap.abs().amax(-1),
        "rmsce": ((samples * gap**2).sum(-1) / n).sqrt(),
        "aece": adaptive_ece(cells, bins)[0],
        "ks": ks_error(cells)[0],
    }
    if smooth:
        found["smece"] = smooth_ece(cells[:_SMOOTHED])[0]
    return found


def _cell_edges(bins: int, like: Tensor) -> Tensor:
    """Return the inner edges of the cells: the edges of the bins, and others that are finer towards 0 and 1."""
    coarse = cell_edges(_COARSE, like.device)[0][1:]
    return torch.cat([edges(bins, like)[1:-1], coarse.to(like.dtype)]).sort().values


def _classwise(batch: Batch, units: Tensor, bins: int) -> Tensor:
    n_classes = batch.scores.shape[1]
    blocks = BLOCKS
    while blocks > 64 and blocks * n_classes * bins > _CLASSWISE:
        blocks //= 2
    size = n_classes * bins
    table = torch.zeros(blocks * size, dtype=torch.float64, device=units.device)
    for part in binned_probabilities(batch, bins):
        block, weight = units[part.rows] % blocks, part.weight
        table.view(blocks, size)[:, ::bins].index_add_(0, block, part.p.double() * weight[:, None])
        # So far every probability is in the first bin of its class. Move those above the first bin to their own bins.
        place, above = block[part.row] * size, part.above * weight[part.row]
        table.index_add_(0, place + part.index // bins * bins, -above)
        table.index_add_(0, place + part.index, above)
        table.index_add_(0, block * size + part.own, -weight)
    return table.view(blocks, n_classes, bins)


def check_same_units(one: Blocks, other: Blocks) -> None:
    """Raise an error unless both have the same number of samples in every block, as for identical samples."""
    if not torch.equal(one.units, other.units):
        raise InputError(
            f"expected two models counted on the same samples, got {float(one.units.sum()):g} and "
            f"{float(other.units.sum()):g}, or different units: count both over the same rows in the same order"
        )


@dataclass(frozen=True, eq=False)
class Redraws(Tally):
    """K + 1 scores of the probabilities, and the same scores for labels drawn from those probabilities.

    There is one score Σ ([y = k] - q_k) for each class k. The last score is Σ (log q_y - Σ_k q_k log q_k). It is
    negative if the model is more confident than it should be. All scores have mean 0 if the model is calibrated.
    """

    whole = True

    scores: Tensor
    variance: Tensor
    """The variance of the scores if the model is calibrated."""
    drawn_variance: Tensor
    """The same variance over only the samples that labels were drawn for, the first 65,536."""
    draws: Tensor
    """``(DRAWS, K + 1)``: the scores of each draw."""

    @classmethod
    def count(cls, batch: Batch, first: int = 0) -> Redraws:
        """Return the scores of one batch. Its first sample has the number ``first`` in the data set.

        The draws depend on these numbers, so every split of a data set into batches gives the same draws. Weights are
        ignored.
        """
        n_classes, device = batch.scores.shape[1], batch.scores.device
        keys, multipliers = _keys(batch, first), mix64(torch.arange(1, DRAWS + 1, device=device) * STEP) | 1
        scores, variance, drawn_variance = torch.zeros(3, n_classes + 1, dtype=torch.float64, device=device)
        draws = torch.zeros(DRAWS, n_classes + 1, dtype=torch.float64, device=device)
        replicate = torch.arange(DRAWS, device=device) * (n_classes + 1)
        for part, q in batch.probabilities():
            target, log = batch.target[part], q.clamp(min=_TINY).log_()
            mean, spread = _moments(q, log)
            own = log.gather(1, target[:, None]).sum(dtype=torch.float64)
            scores += torch.cat([torch.bincount(target, minlength=n_classes), own[None]]) - mean
            variance += spread
            rows = max(0, min(q.shape[0], _ROWS - first - part.start))
            if 0 < rows < q.shape[0]:
                q, log = q[:rows], log[:rows]
                mean, spread = _moments(q, log)
            if rows:
                u = (keys[part.start : part.start + rows, None] * multipliers).bitwise_right_shift_(40).add_(1 << 23)
                reached = q.cumsum(1)
                place = u.to(q.dtype).mul_(2.0**-24).mul_(reached[:, -1:])
                if n_classes <= _FEW_CLASSES:  # a comparison per class is faster than a search
                    label = sum((place >= each[:, None]).byte() for each in reached[:, :-1].T).long()
                else:
                    label = torch.searchsorted(reached, place, right=True).clamp_(max=n_classes - 1)
                draws[:, -1] += log.gather(1, label).sum(0, dtype=torch.float64)
                index = label.add_(replicate).flatten()
                draws += torch.bincount(index, minlength=draws.numel()).view_as(draws) - mean
                drawn_variance += spread
        return cls(scores, variance, drawn_variance, draws)

    def summary(self) -> dict[str, float]:
        return {}

    def tests(self) -> dict[str, tuple[float, float]]:
        """Return a statistic and its p-value for ``log`` and ``classes``; both test whether the model is calibrated.

        ``log`` is the squared standardised last score. ``classes`` is the sum of those of the classes.
        """
        tiny = 1e-300
        observed = self.scores**2 / self.variance.clamp(min=tiny)
        drawn = self.draws**2 / self.drawn_variance.clamp(min=tiny)
        known = self.drawn_variance[:-1] > 0
        log, classes = float(observed[-1]), float(observed[:-1][known].sum())
        drawn_classes = drawn[:, :-1][:, known].sum(1)
        return {"log": (log, simulated_p(log, drawn[:, -1])), "classes": (classes, simulated_p(classes, drawn_classes))}


def _moments(q: Tensor, log: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and variance of the number of labels per class and of Σ log q_y, if labels are drawn from q."""
    entropy = q * log
    mean = entropy.sum(1, dtype=torch.float64)
    spread = entropy.mul_(log).sum(1, dtype=torch.float64).sub_(mean**2).clamp_(min=0).sum()
    number = q.sum(0, dtype=torch.float64)
    variance = number - q.square().sum(0, dtype=torch.float64)
    return torch.cat([number, mean.sum()[None]]), torch.cat([variance, spread[None]])


def simulated_p(statistic: float, simulated: Tensor) -> float:
    """Return the fraction of simulated statistics that are at least as large, including the statistic itself.

    If no simulated statistic is as large, use the tail of a gamma distribution with the same mean and variance.
    """
    draws = simulated.shape[0]
    beyond = int((simulated >= statistic * (1 - 1e-9)).sum())
    p = (beyond + 1) / (draws + 1)
    mean, variance = float(simulated.mean()), float(simulated.var())
    if beyond or variance <= 0:
        return p
    return min(p, chi_squared_tail(2 * statistic * mean / variance, 2 * mean**2 / variance))


def _keys(batch: Batch, first: int) -> Tensor:
    """Return a random number per sample that depends only on its position and its content."""
    top = batch.top
    place = torch.arange(first, first + len(batch), device=batch.target.device)
    content = top.confidence.double().view(torch.int64) + (0 if top.nll is None else top.nll.double().view(torch.int64))
    return mix64(mix64(place * STEP) + content + batch.target)
