"""SmoothECE: the calibration error of kernel-smoothed residuals, with an automatic bandwidth."""

from __future__ import annotations

import math
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from acls.metrics.cells import Cells

_STEPS = 1024  # bandwidths are multiples of 1/1024, and at least 2/1024
_POINTS = 1001  # number of grid points for bandwidths of at least 0.01
_EMPTY = 1e-4  # added to the density, as in the reference code
_ROWS = 64  # number of sets smoothed at once, to limit the memory of their transforms


def smooth_ece(cells: Cells) -> tuple[Tensor, Tensor, Tensor]:
    """Return SmoothECE, its chosen bandwidth, and the error bound (Błasiok & Nakkiran, ICLR 2024).

    smECE_s = ∫ |Σ_i (conf_i - hit_i) K_s(t, conf_i)| dt / n, where K_s is a Gaussian reflected at 0 and 1. It uses the
    grids of the authors' code (relplot). The bandwidth s is the smallest multiple of 1/1024 above 0.001 with
    smECE_s <= s.

    That code reflects its grid without repeating the end points. So mass on the end points counts half, and errors
    among saturated confidences have up to twice the weight that the definition gives them.

    The bound follows from the width of the cells. Moving a sample by w inside its cell changes the smoothed residual by
    at most |residual| w ∫|K_s'|, where ∫|K_s'| = √(2/π)/s. The density changes likewise.
    """
    shape, last = cells.count.shape[:-1], cells.count.shape[-1]
    rows = cells.map(lambda part: part.reshape(-1, last))
    found = [_Smoother(rows[start : start + _ROWS]).search() for start in range(0, len(rows.count), _ROWS)]
    value, width = (torch.cat(parts).view(shape) for parts in zip(*found, strict=True))
    if cells.lower is None or cells.upper is None:
        return value, width, torch.zeros_like(value)
    residual = cells.right * (1 - cells.lower) + (cells.count - cells.right) * cells.upper
    moved = (residual * (cells.upper - cells.lower)).sum(-1) / cells.n
    return value, width, 2 * (2 / torch.pi) ** 0.5 / width * moved


def smooth_errors(cells: Cells, residual: Tensor, width: float) -> Tensor:
    """Return the approximate smoothed error, at one bandwidth, of other residuals ``(R, G)`` of cells ``(1, G)``."""
    place = cells.mean[0].float()
    s = max(width, 2 / _STEPS)
    mesh = torch.linspace(0, 1, max(round(10 / s), 200), dtype=place.dtype, device=place.device)
    kernel = sum(torch.exp(((mesh - image[:, None]) / s).square_().mul_(-0.5)) for image in (place, -place, 2 - place))
    on_end = (1 - torch.minimum(place, 1 - place) * (_POINTS - 1)).clamp(min=0)
    kernel = kernel * (1 - on_end / 2)[:, None]
    density = (cells.count.float() @ kernel).sum() / (s * math.sqrt(2 * math.pi)) + _EMPTY * mesh.shape[0]
    return ((residual.float() @ kernel).abs_().sum(1) / (s * math.sqrt(2 * math.pi)) / density).double()


class _Smoother:
    """Smooth the residuals of many sets of cells, each with its own bandwidth."""

    def __init__(self, cells: Cells) -> None:
        count = cells.count
        self.rows = count.shape[0]
        self._place = cells.mean[:, None]
        self._values = torch.stack([cells.residual, count], 1)
        self._guess = (cells.reached[:, -1] / cells.n).abs()

    def search(self) -> tuple[Tensor, Tensor]:
        """Return the error of each set at its chosen bandwidth, and that bandwidth.

        The chosen bandwidth is the smallest one that is not less than its error. Wider kernels give smaller errors. So
        if the error at s is e, the chosen bandwidth lies between e and s. This narrows the search much faster than
        bisection.
        """
        too_narrow, enough = [1] * self.rows, [_STEPS] * self.rows
        known: list[dict[int, float]] = [{} for _ in range(self.rows)]
        tries = [round(_STEPS * guess) for guess in self._guess.tolist()]
        open_rows = list(range(self.rows))
        while open_rows:
            for row in open_rows:
                tries[row] = min(max(tries[row], too_narrow[row] + 1), enough[row])
            for step in {tries[row] for row in open_rows}:
                rows = [row for row in open_rows if tries[row] == step]
                for row, error in zip(rows, self._error(step / _STEPS, rows).tolist(), strict=True):
                    known[row][step] = error
                    between = math.ceil(_STEPS * error)
                    if step / _STEPS < error:
                        too_narrow[row], enough[row] = step, max(min(enough[row], between), step + 1)
                    else:
                        too_narrow[row], enough[row] = max(too_narrow[row], min(between, step) - 1), step
                    tries[row] = between
            open_rows = [row for row in open_rows if enough[row] not in known[row] or enough[row] - too_narrow[row] > 1]
        value = [known[row][enough[row]] for row in range(self.rows)]
        return self._place.new_tensor(value), self._place.new_tensor(enough) / _STEPS

    def _error(self, s: float, rows: list[int]) -> Tensor:
        points = max(2000, round(20 / s)) // 4 * 2 + 1  # odd, so that the kernel has a middle point
        spectrum = self._spectrum(points, rows) if points > _POINTS else self._usual[rows]
        smooth = torch.fft.irfft(spectrum * _kernel(s, points, spectrum.device), n=2 * (points - 1))
        index, fraction = _mesh(max(round(10 / s), 200), points, spectrum.device)
        at_mesh = torch.lerp(smooth[..., index], smooth[..., index + 1], fraction)
        residual, density = at_mesh.abs_().sum(-1).unbind(-1)
        return residual / (density + _EMPTY * fraction.shape[0])

    @cached_property
    def _usual(self) -> Tensor:
        """The transforms of all sets on the grid that is used for all bandwidths except the smallest ones."""
        return self._spectrum(_POINTS, list(range(self.rows)))

    def _spectrum(self, points: int, rows: list[int]) -> Tensor:
        """Return the Fourier transforms of residuals and counts on a grid that is mirrored at both ends."""
        values, place = self._values[rows], self._place[rows] * (points - 1)
        index = place.long().clamp_(max=points - 2)
        right = values * (place - index)
        ring = right.new_zeros(len(rows), 2, 2 * (points - 1))
        index = index.expand_as(right)
        ring.scatter_add_(-1, index, values - right).scatter_add_(-1, index + 1, right)
        ring[..., points:] = ring[..., 1 : points - 1].flip(-1)
        spectrum: Tensor = torch.fft.rfft(ring)
        return spectrum


@lru_cache(maxsize=64)
def _kernel(s: float, points: int, device: torch.device) -> Tensor:
    """Return the Fourier transform of a Gaussian with bandwidth s, truncated at half the width of the grid."""
    half = points // 2
    step = torch.arange(half + 1, dtype=torch.float64, device=device) / (points - 1)
    tail = torch.exp(-(step**2) / (2 * s * s)) / ((2 * torch.pi) ** 0.5 * s)
    ring = tail.new_zeros(2 * (points - 1))
    ring[: half + 1] = tail
    ring[-half:] = tail[1:].flip(0)
    spectrum: Tensor = torch.fft.rfft(ring).real
    return spectrum.contiguous()


@lru_cache(maxsize=64)
def _mesh(size: int, points: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return where to read the smoothed values: the grid point to the left, and the distance from it in grid steps."""
    place = torch.linspace(0, 1, size, dtype=torch.float64, device=device) * (points - 1)
    index = place.long().clamp(max=points - 2)
    return index, place - index
