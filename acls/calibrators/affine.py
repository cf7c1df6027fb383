"""Vector, matrix and Dirichlet scaling: affine maps of features, fitted by regularised softmax regression.

The map is ``softmax(x + A x + b)``, where x are the features scaled by their best temperature. A and b are therefore
small, and a ridge on them pulls towards temperature scaling. The problem is convex, and the ridge makes its minimum
unique.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import field
from functools import cache

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, linear

from acls.calibrators.base import Calibrator, Outcome
from acls.calibrators.calibration_set import CalibrationSet, Chunks, Passes, chunks
from acls.calibrators.lbfgs import lbfgs
from acls.calibrators.temperature import solve
from acls.options import option

FOLDS = 10
MOST_JUDGED = 2**19
"""Number of elements of logits that are used to compare strengths, in float32."""
HELD_IN_DOUBLE = 2**24
"""Features with up to this many elements are stored in float64. Larger ones are recomputed in each pass."""
STRENGTHS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
"""Ridge strengths that cross-validation chooses from."""
USUAL = 1.0
"""The default strength, which is used unless another one is clearly better."""
WHITEN_UP_TO = 1000
"""With more values than this, the solver uses only the diagonal of the Hessian to scale them."""
STEPS = 1000
CONVERGED = 1e-8
"""If a fit stays further above its minimum than this, the objective has no minimum."""
SAMPLE = 4096
"""Number of rows used to estimate the Hessian that whitens the problem."""

SEPARABLE = "the data is separable, or no better than chance: only the ridge penalty keeps the fit finite"

Strength = tuple[float, float]
"""Two ridge strengths: for the diagonal and the bias, and for the rest."""


class Diagonal:
    """Convert a flat vector of values to (A, b) for K classes. Here A is diagonal: K entries of A, then K of b."""

    def __init__(self, n_classes: int) -> None:
        self.n_classes = n_classes
        self.size = 2 * n_classes

    def penalty(self, strength: Strength, n: float) -> Tensor:
        """Return the ridge on each value. Like overfitting, it grows with the number of values per row."""
        return torch.full((2 * self.n_classes,), strength[0] * self.n_classes / n, dtype=torch.float64)

    def shift(self, values: Tensor, x: Tensor) -> Tensor:
        """Return ``A x + b`` for rows x."""
        diagonal, bias = Diagonal.matrix(self, values)
        return x * diagonal + bias

    def pull(self, residual: Tensor, x: Tensor) -> Tensor:
        """Return the gradient of ``sum(residual * shift)`` with respect to the values."""
        return torch.cat([(residual * x).sum(0), residual.sum(0)])

    def matrix(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return A and b. If A is diagonal, only its diagonal is returned."""
        return values[: self.n_classes], values[self.n_classes : 2 * self.n_classes]

    def curvature(self, probs: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        """Return the sum of the Hessians of the rows: ``(size, size)``, or only its diagonal ``(size,)``."""
        if self.size > WHITEN_UP_TO:
            return self._curvature_alone(probs, x, weight)
        outer = torch.cat([probs * x, probs], dim=1)
        hessian = -outer.T @ (weight * outer)
        k, probs = self.n_classes, probs * weight
        mixed = (probs * x).sum(0)
        blocks = torch.stack([(probs * x * x).sum(0), mixed, mixed, probs.sum(0)]).view(2, 2, k)
        hessian.view(2, k, 2, k).diagonal(dim1=1, dim2=3).add_(blocks)
        return hessian

    def _curvature_alone(self, probs: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        """Return the diagonal of the Hessian."""
        spread = weight * probs * (1 - probs)
        return torch.cat([(spread * x * x).sum(0), spread.sum(0)])


class LowRank(Diagonal):
    """A is a diagonal plus a small matrix between the directions in which the features vary most: ``D + Q M Q^T``.

    With K classes and r directions it has 2 K + r^2 values, while a full matrix has K^2 + K. It therefore does not
    overfit if K is large.
    """

    def __init__(self, features: Tensor, rank: int) -> None:
        super().__init__(features.shape[1])
        x = features - features.mean(1, keepdim=True)
        x = x - x.mean(0)
        self.directions: Tensor = torch.linalg.eigh(x.T @ x).eigenvectors[:, -rank:]
        self.rank = rank
        self.size += rank**2

    def penalty(self, strength: Strength, n: float) -> Tensor:
        mixing = torch.full((self.rank**2,), strength[1] * self.rank**2 / n, dtype=torch.float64)
        return torch.cat([super().penalty(strength, n), mixing])

    def shift(self, values: Tensor, x: Tensor) -> Tensor:
        directions = self.directions.to(x.dtype)
        return super().shift(values, x) + (x @ directions) @ self._mixing(values).T @ directions.T

    def pull(self, residual: Tensor, x: Tensor) -> Tensor:
        directions = self.directions.to(x.dtype)
        mixing = (residual @ directions).T @ (x @ directions)
        return torch.cat([super().pull(residual, x), mixing.flatten()])

    def matrix(self, values: Tensor) -> tuple[Tensor, Tensor]:
        diagonal, bias = super().matrix(values)
        return diagonal.diag() + self.directions @ self._mixing(values) @ self.directions.T, bias

    def curvature(self, probs: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        spread = weight * probs * (1 - probs)
        mixing = (spread @ self.directions.square()).T @ (x @ self.directions).square()
        return torch.cat([self._curvature_alone(probs, x, weight), mixing.flatten()])

    def _mixing(self, values: Tensor) -> Tensor:
        return values[2 * self.n_classes :].view(self.rank, self.rank)


class Full(Diagonal):
    """A is any matrix: the values are (A, b) as a ``(K, K + 1)`` array."""

    def __init__(self, n_classes: int) -> None:
        super().__init__(n_classes)
        self.size = n_classes * (n_classes + 1)

    def penalty(self, strength: Strength, n: float) -> Tensor:
        k = self.n_classes
        ridge = torch.full((k, k + 1), strength[1] * k * (k - 1) / n, dtype=torch.float64)
        ridge[:, k] = strength[0] * k / n
        ridge.diagonal()[:] = strength[0] * k / n
        return ridge.flatten()

    def shift(self, values: Tensor, x: Tensor) -> Tensor:
        off, bias = self.matrix(values)
        return torch.addmm(bias, x, off.T)

    def pull(self, residual: Tensor, x: Tensor) -> Tensor:
        return torch.cat([residual.T @ x, residual.sum(0)[:, None]], dim=1).flatten()

    def matrix(self, values: Tensor) -> tuple[Tensor, Tensor]:
        array = values.view(self.n_classes, self.n_classes + 1)
        return array[:, :-1], array[:, -1]

    def curvature(self, probs: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        k = self.n_classes
        inputs = torch.cat([x, torch.ones_like(x[:, :1])], dim=1)
        if self.size > WHITEN_UP_TO:
            return ((weight * probs * (1 - probs)).T @ inputs.square()).flatten()
        outer = (probs[:, :, None] * inputs[:, None, :]).flatten(1)
        hessian = (-outer.T @ (weight * outer)).view(k, k + 1, k, k + 1)
        for own in range(k):
            hessian[own, :, own, :] += (inputs * probs[:, own, None] * weight).T @ inputs
        return hessian.reshape(self.size, self.size)


def _choose_strength(design: Diagonal, data: CalibrationSet, features: Callable[[Tensor], Tensor]) -> Strength:
    """Choose the strengths by cross-validation: first for the diagonal and the bias, then for the other values."""
    logits, labels, weight = data.all()
    # The strength is defined per row, so a part of the rows is enough if there are many.
    fold = data.folds(FOLDS * -(-logits.numel() // MOST_JUDGED))
    own = [fold == i for i in range(FOLDS)]
    folds: list[Chunks] = [
        list(chunks(features(logits[one]).float(), labels[one], weight[one].float())) for one in own if one.any()
    ]
    if len(folds) < 2:
        return USUAL, USUAL
    few = Diagonal(design.n_classes)
    diagonal = _walk(lambda strength, starts: _held_out(few, folds, (strength, strength), starts))
    if type(design) is Diagonal:
        return diagonal, diagonal
    return diagonal, _walk(lambda strength, starts: _held_out(design, folds, (diagonal, strength), starts))


def _walk(held_out: Callable[[float, dict[int, Tensor]], Tensor]) -> float:
    """Move from the default strength in the direction of lower held-out NLL, as long as it falls.

    The new strength is used only if the gain exceeds its standard error over the folds. The smallest of several noisy
    losses is often due to chance, so the default strength is the better choice without clear evidence.
    """
    starts: dict[int, Tensor] = {}

    @cache
    def loss(index: int) -> Tensor:
        return held_out(STRENGTHS[index], starts)

    usual = index = STRENGTHS.index(USUAL)
    for direction in (1, -1):
        while 0 <= index + direction < len(STRENGTHS) and loss(index + direction).sum() < loss(index).sum():
            index += direction
    gains = loss(usual) - loss(index)
    return STRENGTHS[index] if gains.sum() > gains.std() * len(gains) ** 0.5 else USUAL


def _held_out(design: Diagonal, folds: list[Chunks], strength: Strength, starts: dict[int, Tensor]) -> Tensor:
    """Return the NLL of each fold, summed over its rows, for the fit to the other folds.

    ``starts`` holds the last fit of each fold. The next fits start from them.
    """
    totals = []
    basis: Tensor | None = None
    for i, fold in enumerate(folds):
        rest = [chunk for j, other in enumerate(folds) if j != i for chunk in other]
        # The Hessians of the folds are similar, so all folds use the first one for whitening.
        values, _, basis = minimize(design, rest, strength, starts.get(i), enough=1e-7, basis=basis)
        nll = (
            weight @ cross_entropy(x + design.shift(values.to(x.dtype), x), labels, reduction="none")
            for x, labels, weight in fold
        )
        totals.append(sum(map(float, nll)))
        starts[i] = values
    return torch.tensor(totals, dtype=torch.float64)


def minimize(
    design: Diagonal,
    data: Chunks,
    strength: Strength,
    start: Tensor | None = None,
    enough: float = 1e-13,
    basis: Tensor | None = None,
) -> tuple[Tensor, float, Tensor]:
    """Minimise mean NLL plus ridge by L-BFGS, in coordinates in which the Hessian is close to the identity.

    In these coordinates, half the squared gradient is the distance to the minimum (the certificate). Return the values,
    this distance, and the basis of the coordinates, which similar fits can reuse.
    """
    first = next(iter(data))[0]
    n = sum(float(weight.sum(dtype=torch.float64)) for _, _, weight in data)
    ridge = design.penalty(strength, n).to(first.device)
    origin = torch.zeros(design.size, dtype=torch.float64, device=first.device) if start is None else start
    basis = _whitening(design, data, origin, ridge) if basis is None else basis
    times = torch.mul if basis.ndim == 1 else torch.matmul

    def objective(point: Tensor) -> tuple[float, Tensor]:
        now = origin + times(basis, point)
        total, gradient = 0.0, torch.zeros_like(now)
        for x, labels, weight in data:
            log_probs = (x + design.shift(now.to(x.dtype), x)).log_softmax(1)
            index = labels[:, None]
            total -= float((log_probs.gather(1, index)[:, 0] * weight).sum(dtype=torch.float64))
            residual = log_probs.exp_()
            residual.scatter_add_(1, index, torch.full_like(index, -1, dtype=residual.dtype))
            gradient += design.pull(residual.mul_(weight[:, None]), x)
        gradient = gradient / n + 2 * ridge * now
        return total / n + float((ridge * now * now).sum()), times(gradient, basis)

    small = (2 * enough / design.size) ** 0.5
    point, _, gradient = lbfgs(objective, torch.zeros_like(origin), small_gradient=small, steps=STEPS)
    values = origin + times(basis, point)
    return values, float(gradient.square().sum()) / 2, basis


def _whitening(design: Diagonal, data: Chunks, values: Tensor, ridge: Tensor) -> Tensor:
    """Return the basis, or only its diagonal, of coordinates in which the Hessian is close to the identity."""
    hessian, seen, total = torch.zeros(()), 0, 0.0
    for x, _, weight in data:
        stride = max(1, -(-len(x) // SAMPLE))
        part, counts = x[::stride].double(), weight[::stride, None].double()
        hessian = hessian + design.curvature((part + design.shift(values, part)).softmax(1), part, counts)
        seen, total = seen + len(part), total + float(counts.sum())
        if seen >= SAMPLE:
            break
    hessian = hessian / total
    if hessian.ndim == 1:
        return (hessian + 2 * ridge).clamp(min=1e-12).rsqrt()
    hessian.diagonal().add_(2 * ridge + 1e-12 * float(hessian.diagonal().mean()) + 1e-30)
    # hessian = L L^T, so with values = L^-T point the Hessian with respect to point is the identity
    factor = torch.linalg.cholesky(hessian).T
    basis: Tensor = torch.linalg.solve_triangular(factor, torch.eye(len(ridge)).to(factor), upper=True)
    return basis


class Affine(Calibrator):
    """Base class of the affine maps: a weight, a bias, and a ridge that pulls them towards temperature scaling.

    The input is either the logits or log q. Here q are the probabilities after temperature scaling, mixed with a
    small part of the uniform distribution: the weight of one row in the fitting data. No log is then far below the
    smallest frequency that the data can show.

    ``strength`` is the ridge in units of values per row, so its effect decreases with more data. With None, 10-fold
    cross-validation on the fitting data chooses it; the data is then held in memory.
    """

    per_class = "bias"
    space = "logits"
    """The input of the map: logits, so that a layer can hold the map, or log-probabilities."""

    strength: float | None = option(default=None, within="[0, inf)")

    weight: Tensor = field(init=False)
    """``(K, K)``, or the diagonal ``(K,)``."""
    bias: Tensor = field(init=False)
    scale: Tensor = field(init=False)
    """The inverse temperature of q."""
    uniform: Tensor = field(init=False)
    """The share of the uniform distribution in q."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.streams = self.strength is not None
        if self.space == "logits":
            self.learned = ("weight", "bias")

    @abstractmethod
    def _design(self, features: Tensor) -> Diagonal:
        """Return the design (the parametrisation of A and b) for these features."""

    def _fit(self, data: CalibrationSet) -> Outcome:
        """Fit ``W x + b``, where x are the features of the logits at their best inverse temperature."""
        start = solve(data)
        some = data.all()[0] if data.held else data.first()[0]
        # A temperature at the boundary of its range carries no information about the scale of the logits.
        scale = 1 / float(some.double().std().clamp(min=1e-30)) if start.at_boundary else start.beta
        uniform = 0.0 if self.space == "logits" else 1 / (1 + data.total())

        def features(logits: Tensor) -> Tensor:
            z = logits.double()
            return z * scale if self.space == "logits" else _mixed_log_probs(z, scale, uniform)

        design = self._design(features(some[:: max(1, len(some) // SAMPLE)]))
        chosen = _choose_strength(design, data, features) if self.strength is None else (self.strength, self.strength)
        mapped: Chunks = Passes(lambda: ((features(logits), labels, weight) for logits, labels, weight in data))
        if data.held and some.numel() <= HELD_IN_DOUBLE:
            mapped = list(mapped)
        values, gap, _ = minimize(design, mapped, chosen)
        weight, bias = design.matrix(values)
        weight = weight + (1 if weight.ndim == 1 else torch.eye(len(bias)).to(weight))
        weight = weight * scale if self.space == "logits" else weight
        self._learn(some, weight=weight, bias=bias, scale=scale, uniform=uniform)
        at_boundary = start.at_boundary or gap > CONVERGED
        return Outcome(gap=gap, at_boundary=at_boundary, warnings=(SEPARABLE,) * at_boundary)

    def _transform(self, rows: Tensor) -> Tensor:
        features = rows if self.space == "logits" else _mixed_log_probs(rows, self.scale, self.uniform)
        if self.weight.ndim == 1:
            return (features * self.weight + self.bias).log_softmax(1)
        return linear(features, self.weight, self.bias).log_softmax(1)

    def _reset(self, like: Tensor) -> None:
        n_classes = like.shape[1]
        weight = torch.ones(n_classes) if self.weight.ndim == 1 else torch.eye(n_classes)
        self._learn(like, weight=weight, bias=torch.zeros(n_classes), scale=1.0, uniform=0.0)

    def _values(self, n_classes: int) -> int:
        return self._design(torch.zeros(1, n_classes, dtype=torch.float64)).size

    def affine(self) -> tuple[Tensor, Tensor] | None:
        if self.space != "logits":
            return None
        return self.weight.diag() if self.weight.ndim == 1 else self.weight, self.bias


class Vector(Affine):
    """Scale and shift each class's logit: ``softmax(w * z + b)``. (Guo et al., ICML 2017)

    ``space="log_probs"`` scales log-probabilities in place of logits: ``softmax(w * log q + b)``, with q as in
    `Dirichlet`. The result then does not depend on a constant added to the logits of a row, and on real networks the
    NLL is slightly lower, but a layer cannot hold the map.
    """

    paper = "Guo et al., ICML 2017"

    space: str = option(default="logits", choices=("logits", "log_probs"))

    def _design(self, features: Tensor) -> Diagonal:
        return Diagonal(features.shape[1])


def _mixed_log_probs(logits: Tensor, scale: Tensor | float, uniform: Tensor | float) -> Tensor:
    """Return the logs of ``(1 - uniform) softmax(scale z) + uniform / K``."""
    share = torch.as_tensor(uniform, dtype=logits.dtype, device=logits.device)
    return torch.logaddexp((logits * scale).log_softmax(1) + (-share).log1p(), (share / logits.shape[1]).log())


MANY_CLASSES = 100


class Matrix(Affine):
    """Map the logits by a matrix: ``softmax(W z + b)``. (Guo et al., ICML 2017)

    A ridge on the off-diagonal entries and on the bias (ODIR; Kull et al., NeurIPS 2019) prevents overfitting.
    ``structure="low-rank"``, the default for 100 or more classes, learns a diagonal and a small matrix between the
    ``rank`` directions in which the logits vary most, instead of K^2 values.
    """

    paper = "Guo et al., ICML 2017"

    structure: str = option(default="auto", choices=("auto", "full", "low-rank"))
    rank: int = option(default=16, within="[1, inf)")

    def _design(self, features: Tensor) -> Diagonal:
        n_classes = features.shape[1]
        if self.structure == "full" or (self.structure == "auto" and n_classes < MANY_CLASSES):
            return Full(n_classes)
        return LowRank(features, min(self.rank, n_classes - 1))


class Dirichlet(Matrix):
    """Map the log-probabilities by a matrix: ``softmax(W log q + b)``.

    This is the map to class probabilities if the probabilities of each class follow a Dirichlet distribution. Unlike
    `Matrix`, it does not change if a constant is added to the logits of a row. q are the probabilities after
    temperature scaling, mixed with a small part of the uniform distribution (the weight of one row in the fitting
    data), because a log of 0 would dominate the fit. The ridge is the same as in `Matrix`. (Kull et al., NeurIPS 2019)
    """

    paper = "Kull et al., NeurIPS 2019"
    space = "log_probs"
