"""The picture of a method: the label that it really trains towards, found by autograd."""

from __future__ import annotations

import io
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from matplotlib import rc_context
from matplotlib.axes import Axes
from torch import Tensor

from acls.losses import Epoch, Loss, effective_label
from acls.report.figures.style import LEGEND, PALETTE, SMALL, canvas, tidy

MODEST, SURE = (2.0, 1.0, 0.0, -1.0), (12.0, 6.0, 2.0, -1.0)
LEADS = torch.linspace(0.0, 16.0, 41, dtype=torch.float64)
CROWD = 1000
"""Predictions of an overconfident network, for the methods that look at a whole data set between epochs."""


def label_of(kind: type[Loss], row: Tensor, true_class: int) -> Tensor:
    """The label ``(K,)`` of a prediction ``(K,)`` in the middle of training, in a batch where the method acts.

    The batch holds the same prediction once for each true class. The other samples have been right so far, this one
    wrong. What methods ask for between epochs comes from an overconfident network.
    """
    n_classes = len(row)
    batch, index = row.expand(n_classes, n_classes), torch.arange(n_classes)
    classes = (index + true_class) % n_classes
    loss = kind().double()
    loss.prepare(n_train=n_classes + CROWD, n_classes=n_classes)

    def predict(_split: str) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        logits, labels = _crowd(n_classes)
        yield torch.cat([batch, logits]), torch.cat([classes, labels]), torch.arange(n_classes + CROWD)

    guessed = torch.where(index == 0, (classes + 1) % n_classes, classes)
    loss.start_epoch(Epoch(number=0, total=6, predict=predict))
    loss.observe(5 * F.one_hot(guessed, n_classes).double(), classes, index)
    loss.end_epoch(Epoch(number=0, total=6, predict=predict))
    loss.start_epoch(Epoch(number=3, total=6, predict=predict))
    return effective_label(loss, batch, classes, index=index if loss.needs_index else None)[0]


def _crowd(n_classes: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    truth = 2 * torch.randn(CROWD, n_classes, generator=generator, dtype=torch.float64)
    return 2.5 * truth, torch.multinomial(truth.softmax(1), 1, generator=generator)[:, 0]


def svg(kind: type[Loss]) -> bytes:
    """The picture: the label at a modest and at an overconfident prediction, and at ŷ by how far it leads."""
    figure, (modest, sure, by_lead) = canvas(1, 3, width=7.4, height=2.3)
    _bars(modest, kind, torch.tensor(MODEST, dtype=torch.float64))
    _bars(sure, kind, torch.tensor(SURE, dtype=torch.float64))
    sure.set_ylabel("")
    for true_class, name, colour in ((0, "ŷ is right", PALETTE[0]), (1, "ŷ is wrong", PALETTE[1])):
        rows = F.pad(LEADS[:, None], (0, len(SURE) - 1))
        label = [float(label_of(kind, row, true_class)[0]) for row in rows]
        by_lead.plot(LEADS, label, color=colour, linewidth=1.3, label=name)
    by_lead.set(xlabel="lead of ŷ over the other logits", title="label at ŷ")
    by_lead.legend(fontsize=SMALL, **LEGEND)
    for ax in (modest, sure, by_lead):
        tidy(ax)
    buffer = io.BytesIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": kind.__name__}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


def _bars(ax: Axes, kind: type[Loss], row: Tensor) -> None:
    classes = range(len(row))
    ax.bar(classes, label_of(kind, row, 0), width=0.7, color=PALETTE[2], label="label")
    ax.plot(classes, row.softmax(0), "o", color=PALETTE[6], markersize=3.5, label="softmax")
    ax.axhline(0, color=PALETTE[6], linewidth=0.5)
    ax.set(title=f"z = {', '.join(f'{z:g}' for z in row.tolist())};  y = 0", xlabel="class", ylabel="label")
    ax.set_xticks(list(classes))
    ax.legend(fontsize=SMALL, **LEGEND)
