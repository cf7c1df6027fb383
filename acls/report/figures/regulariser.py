"""Figures of regularisers: the labels that they train towards (Figure 1) and how often they are active (Figure 3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from acls.errors import InputError
from acls.losses import ACLS, CRL, MDCA, LabelSmoothing, Loss, MbLS, effective_label
from acls.report.figures.style import LEGEND, PALETTE, SMALL, canvas, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


BINS = 20
LARGEST = 0.1
"""Larger values are counted in the last bin, as in the paper."""
NOTHING = 1e-12
"""The regulariser is inactive for a sample if its value is at most this."""


@dataclass(frozen=True)
class Activity:
    """A histogram of the values of a regulariser, one per sample."""

    title: str
    edges: list[float]
    shares: list[float]
    inactive: float
    """The share of samples for which the regulariser is 0."""
    n: int


def prepare_activity(values: Tensor, title: str = "") -> Activity:
    """Compute the histogram of the values of a regulariser, one per sample. The last bin includes larger values."""
    values = values.detach().double().flatten()
    if values.numel() == 0 or not bool(torch.isfinite(values).all()):
        raise InputError(f"expected one finite value per sample, got {values.numel()} values that are not all finite")
    index = (values.clamp(0, LARGEST) / LARGEST * BINS).long().clamp(max=BINS - 1)
    shares = torch.bincount(index, minlength=BINS).double() / values.numel()
    inactive = float((values <= NOTHING).double().mean())
    return Activity(title, [LARGEST * k / BINS for k in range(BINS + 1)], shares.tolist(), inactive, values.numel())


def penalties(loss: Loss, logits: Tensor, target: Tensor, index: Tensor | None = None) -> Tensor:
    """Return the sum of the regularisers of a loss with ``reduction="none"`` per position, ``(N, *D)``."""
    parts = loss.terms(logits, target, index)
    total = [value for name, value in parts.items() if name != loss.stack()[-1].data_name]
    if not total:
        raise InputError(f"{loss!r} has no regulariser")
    if any(value.ndim == 0 for value in total):
        raise InputError(
            f'{loss!r} has no value per sample: pass reduction="none", which losses over pairs do not support'
        )
    return torch.stack(total).sum(0)


def draw_activity(data: Activity, ax: Axes) -> None:
    """Draw the histogram, with the share of inactive samples in the legend."""
    ax.stairs(data.shares, data.edges, fill=True, color=PALETTE[5])
    ax.stairs([data.inactive], data.edges[:2], fill=True, color=PALETTE[1], label=f"0 for {100 * data.inactive:.1f} %")
    ax.set(xlim=(0, data.edges[-1]), ylim=(0, 1), xlabel="regulariser", ylabel="share of samples", title=data.title)
    title = f"n = {data.n:,}"
    ax.legend(loc="upper right", fontsize=SMALL, title=title, title_fontsize=SMALL, alignment="left", **LEGEND)
    ticks = [data.edges[-1] * part / 4 for part in range(5)]
    ax.set_xticks(ticks, [*(f"{tick:g}" for tick in ticks[:-1]), f"≥ {ticks[-1]:g}"])
    tidy(ax)


DEFAULT_LOGITS = (3.0, 0.0, -2.0, 7.0)


@dataclass(frozen=True)
class SmoothingBehaviour:
    """A prediction, its label, and the smoothed labels of several methods."""

    probabilities: list[float]
    onehot: list[float]
    labels: dict[str, list[float]]
    """The smoothed labels by panel title."""
    gap: list[float]
    """The difference between the logit of the predicted class and the other logits, which are all equal."""
    confidence: list[float]
    """The confidence for each gap."""
    lowered: dict[str, list[float]]
    """By method, how much the label of the predicted class is lowered for each gap."""
    raised: list[float]
    """How much MDCA raises the label of each other class for each gap."""


def prepare_smoothing(logits: Sequence[float] = DEFAULT_LOGITS, label: int | None = None) -> SmoothingBehaviour:
    """Compute the smoothed labels of a prediction by autograd. By default, the predicted class is correct.

    MDCA and CRL depend on other samples. As in the paper, the batch is one in which they are active: for MDCA, the
    class is predicted more often than it occurs; for CRL, another sample was correct more often.
    """
    z = torch.tensor(list(logits), dtype=torch.float64)
    y = int(z.argmax()) if label is None else label
    k = len(z)
    mdca, crl, acls = MDCA(), CRL(), ACLS(form="paper", margin=6.0, lambda1=0.03, lambda2=0.05)
    panels: dict[str, Loss] = {
        "LS": LabelSmoothing(epsilon=0.2),
        "AR (MDCA)": mdca,
        "CR (MbLS)": MbLS(weight=0.4, margin=6.0),
        "ACLS, Eq. 13": acls,
    }
    labels = {title: smoothed_label(loss, z, y).tolist() for title, loss in panels.items()}
    compared: dict[str, Loss] = {"AR (MDCA)": mdca, "ACR (CRL)": crl, "ACLS, Eq. 13": acls}
    gap = torch.linspace(0.02, 12.0, 100, dtype=torch.float64)
    leading = torch.zeros(len(gap), k, dtype=torch.float64)
    leading[:, 0] = gap
    lowered = {name: [float(1 - smoothed_label(loss, row, 0)[0]) for row in leading] for name, loss in compared.items()}
    raised = [float(smoothed_label(mdca, row, 0)[1]) for row in leading]
    onehot = [float(c == y) for c in range(k)]
    confidence = leading.softmax(1)[:, 0].tolist()
    return SmoothingBehaviour(z.softmax(0).tolist(), onehot, labels, gap.tolist(), confidence, lowered, raised)


def smoothed_label(loss: Loss, z: Tensor, y: int) -> Tensor:
    """Return the label ``(K,)`` that a method trains a prediction towards, in a batch in which the method is active."""
    k = len(z)
    loss.prepare(n_train=k, n_classes=k)
    if isinstance(loss, CRL):
        loss.history.get_buffer("hits")[1:] = 1.0
        loss.history.get_buffer("epochs").fill_(1)
    batch = z.expand(k, k)
    classes = (torch.arange(k) + y) % k  # the first is y; each class occurs once
    return effective_label(loss, batch, classes, index=torch.arange(k) if loss.needs_index else None)[0]


def draw_smoothing(data: SmoothingBehaviour, axes: Sequence[Axes]) -> None:
    """Draw panels (a) to (f) of the paper, ACLS, and the smoothing by confidence and by logit gap on nine axes."""
    panels = {"Probabilities p": data.probabilities, "Labels q": data.onehot, **data.labels}
    curves, by_confidence, by_gap = axes[4], *axes[len(panels) + 1 :]
    curves.set_title("(e) Undesirable behaviour of AR", fontsize=SMALL + 1)
    curves.axis("off")
    rest = [(1 - p) / (len(data.onehot) - 1) for p in data.confidence]
    for height, p, f, name in ((0.7, data.confidence, data.lowered["AR (MDCA)"], "ŷ"), (0.0, rest, data.raised, "j")):
        part = curves.inset_axes((0, height, 1, 0.3))
        part.plot(p, f, color=PALETTE[2], linewidth=1.2)
        part.set(xlabel=f"p at {name}", ylabel=f"f at {name}")
        tidy(part)
    for ax, letter, (title, values) in zip((*axes[:4], *axes[5:7]), "abcdfg", panels.items(), strict=True):
        classes = range(1, len(values) + 1)
        ax.bar(classes, values, color=PALETTE[0] if letter in "ab" else PALETTE[2], width=0.7)
        if letter not in "ab":
            ax.bar(classes, data.onehot, fill=False, edgecolor=PALETTE[6], linewidth=0.6, linestyle="--", width=0.7)
        ax.set_title(f"({letter}) {title}", fontsize=SMALL + 1)
        ax.axhline(0, color=PALETTE[6], linewidth=0.5)
        ax.set_ylim(min(0, *values) - 0.02, 1.08)
        ax.set_xticks(list(classes))
        ax.set(xlabel="class", ylabel="probability" if letter == "a" else "label")
        tidy(ax)
    for colour, (name, amounts) in zip(PALETTE, data.lowered.items(), strict=False):
        by_gap.plot(data.gap, amounts, color=colour, label=name, linewidth=1.2)
        if name != "ACLS, Eq. 13":  # it rises only at confidence 1
            by_confidence.plot(data.confidence, amounts, color=colour, linewidth=1.2)
    for letter, ax, x in (("h", by_confidence, "confidence"), ("i", by_gap, "logit gap")):
        ax.set_title(f"({letter}) Smoothing by {x}", fontsize=SMALL + 1)
        ax.set(xlabel=x, ylabel="label of ŷ lowered by")
        tidy(ax)
    by_gap.legend(fontsize=SMALL - 1, frameon=False)


def smoothing_figure(logits: Sequence[float] = DEFAULT_LOGITS, label: int | None = None) -> Figure:
    """Return the figure with all nine panels."""
    drawn, axes = canvas(3, 3, width=7.2, height=5.2)
    draw_smoothing(prepare_smoothing(logits, label), axes)
    return drawn
