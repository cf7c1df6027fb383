"""The paper's tables as experiments: which networks, which methods, what was printed and what is claimed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from acls.recipes import find
from acls.reproduce import published
from acls.reproduce.claims import Claim
from acls.reproduce.published import Published


@dataclass(frozen=True)
class Line:
    """A row of a table: a method as one writes it, and what is done afterwards."""

    method: str
    """As `acls.study.methods` reads it, ``{margin}`` being the recipe's; a method with a margin gets that anyway."""
    posthoc: str = "none"


@dataclass(frozen=True)
class Experiment:
    """A table of the paper."""

    title: str
    lines: Mapping[str, Line]
    printed: Mapping[str, Mapping[str, Published]]
    """By the recipe of the paper's size, then by row."""
    claims: tuple[Claim, ...]
    split: str = "test"
    accuracy: str = "accuracy"
    """The metric that stands where the paper prints accuracy."""


LINES = {
    "CE": Line("CE"),
    "CE + TS": Line("CE", posthoc="Temperature"),
    "MMCE": Line("MMCE"),
    "ECP": Line("ECP"),
    "LS": Line("LabelSmoothing"),
    "FL": Line("Focal"),
    "FLSD": Line("FLSD"),
    "MDCA": Line("MDCA"),
    "CPC": Line("CPC"),
    "MbLS": Line("MbLS"),
    "CRL": Line("CRL"),
    "ACLS": Line("ACLS"),
    "ACLS, AR only": Line("ACLS(condition=always)"),
    "ACLS, CR only": Line("ACLS(smoothing=constant)"),
    "CRL, ranking": Line("CRL"),
    "CRL, margin": Line("CRL(condition=margin, logit_margin={margin})"),
    "ACLS, ranking": Line("ACLS(condition=ranking)"),
    "ACLS, margin": Line("ACLS"),
    "CutMix": Line("CutMix"),
    "CaPE": Line("CaPE"),
    "MC dropout": Line("MCDropout"),
    "Patra": Line("Patra(base=Focal(gamma=1.0))"),
}


def _chosen(names: Mapping[str, Any]) -> dict[str, Line]:
    return {name: LINES[name] for name in names}


def _beats(best: str, others: Mapping[str, Any]) -> tuple[Claim, ...]:
    return tuple(Claim(best, other) for other in others if other != best)


EXPERIMENTS = {
    "table1": Experiment(
        "Table 1: regularisation-based methods on Tiny-ImageNet",
        _chosen(published.TABLE_1["tiny_imagenet_resnet50"]),
        published.TABLE_1,
        _beats("ACLS", published.TABLE_1["tiny_imagenet_resnet50"]),
    ),
    "table3": Experiment(
        "Table 3: CIFAR-10, Tiny-ImageNet and ImageNet",
        _chosen(published.TABLE_3["cifar10_resnet50"]),
        published.TABLE_3,
        _beats("ACLS", published.TABLE_3["cifar10_resnet50"]),
    ),
    "table4": Experiment(
        "Table 4: segmentation of PASCAL VOC",
        _chosen(published.TABLE_4["voc_deeplabv3_resnet50"]),
        published.TABLE_4,
        _beats("ACLS", published.TABLE_4["voc_deeplabv3_resnet50"]),
        accuracy="miou_foreground",
    ),
    "table5": Experiment(
        "Table 5: adaptive and conditional regularisation apart and together",
        _chosen(published.TABLE_5["tiny_imagenet_resnet50"]),
        published.TABLE_5,
        (
            Claim("ACLS, AR only", "LS"),
            Claim("ACLS, CR only", "LS"),
            Claim("ACLS, AR only", "MDCA"),
            Claim("ACLS, CR only", "MbLS"),
            Claim("ACLS", "ACLS, AR only"),
            Claim("ACLS", "ACLS, CR only"),
        ),
    ),
    "table6": Experiment(
        "Table 6: ranking or margin as the condition",
        _chosen(published.TABLE_6["tiny_imagenet_resnet50"]),
        published.TABLE_6,
        (
            Claim("CRL, margin", "CRL, ranking"),
            Claim("ACLS, margin", "ACLS, ranking"),
            Claim("ACLS, ranking", "CRL, ranking"),
            Claim("ACLS, margin", "CRL, margin"),
        ),
    ),
    "tableA": Experiment(
        "Table A: the grid of λ1 and λ2, on the validation split",
        {
            f"λ1 {first:g}, λ2 {second:g}": Line(f"ACLS(lambda1={first}, lambda2={second})")
            for first in published.LAMBDA_1
            for second in published.LAMBDA_2
        },
        published.TABLE_A,
        (
            Claim("λ1 0.1, λ2 0.01", "λ1 0, λ2 0"),
            Claim("λ1 0.1, λ2 0.01", "λ1 0.1, λ2 0"),
            Claim("λ1 0.1, λ2 0.01", "λ1 0, λ2 0.01"),
        ),
        split="val",
    ),
    "tableB": Experiment(
        "Table B: methods that do not smooth labels",
        _chosen(published.TABLE_B["tiny_imagenet_resnet50"]),
        published.TABLE_B,
        _beats("ACLS", published.TABLE_B["tiny_imagenet_resnet50"]),
    ),
}

MARGINS = (2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 14.0, 16.0)
"""Of Figure A; the paper does not print which it tried."""

SMALL = {
    "cifar10_resnet50": "cifar10_mini",
    "tiny_imagenet_resnet50": "tiny_imagenet_mini",
    "voc_deeplabv3_resnet50": "voc_mini",
}
"""The CPU-sized sibling of each recipe; those without one are left out at that size."""
EMBEDDED = {
    "cifar10_resnet50": "digits_cnn",
    "tiny_imagenet_resnet50": "digits_cnn",
    "voc_deeplabv3_resnet50": "synthetic_unet",
}
"""What stands in for a data set that is not at hand: the embedded digits, or images with known truth."""


def data_sets() -> tuple[str, ...]:
    """The data sets of the paper's experiments, by their names in recipes."""
    recipes = dict.fromkeys(paper for experiment in EXPERIMENTS.values() for paper in experiment.printed)
    return tuple(dict.fromkeys(find(paper).data.name for paper in recipes))
