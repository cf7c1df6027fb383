"""How each metric is written: its title, its scale and its decimals."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Metric:
    """How a metric is written."""

    title: str
    scale: float = 100.0
    decimals: int = 2

    def show(self, value: float, *, sign: bool = False) -> str:
        return f"{self.scale * value:{'+' if sign else ''}.{self.decimals}f}"


METRICS = {
    "accuracy": Metric("accuracy %"),
    "ece": Metric("ECE %"),
    "ece_floor": Metric("floor %"),
    "aece": Metric("adaptive ECE %"),
    "classwise_ece": Metric("classwise ECE %"),
    "smece": Metric("SmoothECE %"),
    "ks": Metric("KS %"),
    "mce": Metric("MCE %"),
    "rmsce": Metric("RMSCE %"),
    "overconfidence": Metric("overconfidence %"),
    "underconfidence": Metric("underconfidence %"),
    "confidence": Metric("confidence %"),
    "nll": Metric("NLL", 1.0, 4),
    "brier": Metric("Brier", 1.0, 4),
    "aurc": Metric("AURC %"),
    "auroc": Metric("AUROC %"),
    "miou": Metric("mIoU %"),
    "miou_foreground": Metric("foreground mIoU %"),
    "temperature": Metric("temperature", 1.0),
}
"""How the metrics of `Suite.summary` are written; what is not here is shown by its name with four decimals."""


def metric(name: str) -> Metric:
    """How to write the metric of that name."""
    return METRICS.get(name, Metric(name, 1.0, 4))
