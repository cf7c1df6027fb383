"""SmoothECE: the calibration error of kernel-smoothed residuals, with a bandwidth that chooses itself."""

from __future__ import annotations

import torch
from torch import Tensor

from acls.metrics.quantiles import Cells

_LEAST_WIDTH = 0.001
_HALVINGS = 10
_EMPTY = 1e-4  # added to the density, as the reference does


def smooth_ece(cells: Cells) -> tuple[Tensor, Tensor, Tensor]:
    """SmoothECE, the bandwidth it chose, and the error bound (Błasiok & Nakkiran, ICLR 2024).

    smECE_s = ∫ |Σ_i (conf_i - hit_i) K_s(t, conf_i)| dt / n with a Gaussian reflected at 0 and 1, on the grids of its
    authors' code (relplot); s is the smallest multiple of 1/1024 found by bisection with smECE_s <= s. Like there, mass
    on the very ends of [0, 1] counts half, since the reflection does not repeat the end points.

    Moving a sample by w inside its cell changes the smoothed residual by at most |residual| w ∫|K_s'| with
    ∫|K_s'| = √(2/π)/s, and the density likewise, hence the bound.
    """
    rows = cells.count.flatten(0, -2) if cells.count.ndim > 1 else cells.count[None]
    smoother = _Smoother(Cells(rows, cells.confidence.view_as(rows), cells.right.view_as(rows)))
    high = torch.ones(rows.shape[0], dtype=torch.float64, device=rows.device)
    low = torch.zeros_like(high)
    # Even the widest kernel may not be wide enough; then it is what is reported.
    settled = smoother.error(high) > high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        too_narrow = (middle < _LEAST_WIDTH) | (middle < smoother.error(middle))
        low, high = torch.where(too_narrow, middle, low), torch.where(too_narrow, high, middle)
    width = torch.where(settled, 1.0, high)
    value = smoother.error(width)
    bound = torch.zeros_like(value)
    if cells.lower is not None and cells.upper is not None:
        wrong = cells.count - cells.right
        moved = ((cells.right * (1 - cells.lower) + wrong * cells.upper) * (cells.upper - cells.lower)).sum(
            -1
        ) / cells.n
        bound = 2 * (2 / torch.pi) ** 0.5 / width * moved.view_as(value)
    shape = cells.count.shape[:-1]
    return value.view(shape), width.view(shape), bound.view(shape)


class _Smoother:
    """Smooths the residuals of many sets of cells, each with its own bandwidth."""

    def __init__(self, cells: Cells) -> None:
        count = cells.count
        self._count = count
        self._residual = cells.residual
        self._place = (cells.confidence / count.clamp(min=1)).clamp(0, 1)
        self._spectra: dict[int, tuple[Tensor, Tensor]] = {}

    def error(self, width: Tensor) -> Tensor:
        """SmECE at the given bandwidths, one a set."""
        result = torch.empty_like(width)
        for s in set(width.tolist()):
            chosen = width == s
            result[chosen] = self._error(s, chosen)
        return result

    def _error(self, s: float, chosen: Tensor) -> Tensor:
        points = max(2000, round(20 / s)) // 4 * 2 + 1  # odd, so that the kernel has a middle
        residual, mass = (spectrum[chosen] for spectrum in self._spectrum(points))
        half = points // 2
        step = torch.arange(-half, half + 1, dtype=torch.float64, device=mass.device) / (points - 1)
        kernel = torch.exp(-(step**2) / (2 * s * s)) / ((2 * torch.pi) ** 0.5 * s)
        ring = kernel.new_zeros(2 * (points - 1))
        ring[: half + 1] = kernel[half:]
        ring[-half:] = kernel[:half]
        answer = torch.fft.rfft(ring)
        mesh = torch.linspace(0, 1, max(round(10 / s), 200), dtype=torch.float64, device=mass.device) * (points - 1)
        index = mesh.long().clamp(max=points - 2)
        fraction = mesh - index
        smooth_residual, smooth_mass = (
            torch.fft.irfft(spectrum * answer, n=ring.shape[0])[:, :points] for spectrum in (residual, mass)
        )
        at_mesh = torch.lerp(smooth_residual[:, index], smooth_residual[:, index + 1], fraction)
        density = torch.lerp(smooth_mass[:, index], smooth_mass[:, index + 1], fraction) + _EMPTY
        return at_mesh.abs().sum(-1) / density.sum(-1)

    def _spectrum(self, points: int) -> tuple[Tensor, Tensor]:
        """The Fourier transforms of residuals and counts on a grid, mirrored at both ends."""
        if points not in self._spectra:
            place = self._place * (points - 1)
            index = place.long().clamp(max=points - 2)
            fraction = place - index
            on_grid = []
            for values in (self._residual, self._count):
                grid = values.new_zeros(values.shape[0], points)
                grid.scatter_add_(1, index, values * (1 - fraction))
                grid.scatter_add_(1, index + 1, values * fraction)
                on_grid.append(torch.fft.rfft(torch.cat([grid, grid[:, 1:-1].flip(1)], 1)))
            self._spectra[points] = (on_grid[0], on_grid[1])
        return self._spectra[points]
