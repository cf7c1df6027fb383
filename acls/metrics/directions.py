"""Which end of a metric is the better one."""

from __future__ import annotations

OF_LABEL_MAPS = ("miou", "miou_foreground")
"""For segmentation only."""
HIGHER_IS_BETTER = ("accuracy", "top5", "auroc", *OF_LABEL_MAPS)
LOWER_IS_BETTER = (
    "nll", "brier", "top_brier", "ece", "aece", "mce", "rmsce", "rmsce_debiased", "ks", "smece", "aurc",
    "overconfidence", "underconfidence", "ece_after_temperature",
)  # fmt: skip
