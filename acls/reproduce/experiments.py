"""The paper's tables as experiments: which networks, which methods, what was printed and what is claimed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from acls.calibrators import Calibrator, Temperature
from acls.recipes import find
from acls.reproduce import published
from acls.reproduce.claims import Claim
from acls.reproduce.published import Published
from acls.spec import Spec


@dataclass(frozen=True)
class Line:
    """A row of a table: a method, and the calibrator that is fitted afterwards."""

    method: Spec
    """Without the recipe's margin, which a method that has one gets anyway."""
    posthoc: Calibrator | None = None
    margin_field: str = ""
    """Another field that the recipe's margin is for."""


def _line(name: str, posthoc: Calibrator | None = None, margin_field: str = "", **fields: Any) -> Line:
    return Line(Spec(name, fields), posthoc, margin_field)


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
    "CE": _line("CE"),
    "CE + TS": _line("CE", Temperature()),
    "MMCE": _line("MMCE"),
    "ECP": _line("ECP"),
    "LS": _line("LabelSmoothing"),
    "FL": _line("Focal"),
    "FLSD": _line("FLSD"),
    "MDCA": _line("MDCA"),
    "CPC": _line("CPC"),
    "MbLS": _line("MbLS"),
    "CRL": _line("CRL"),
    "ACLS": _line("ACLS"),
    "ACLS, AR only": _line("ACLS", condition="always"),
    "ACLS, CR only": _line("ACLS", smoothing="constant"),
    "CRL, ranking": _line("CRL"),
    "CRL, margin": _line("CRL", condition="margin", margin_field="logit_margin"),
    "ACLS, ranking": _line("ACLS", condition="ranking"),
    "ACLS, margin": _line("ACLS"),
    "CutMix": _line("CutMix"),
    "CaPE": _line("CaPE"),
    "MC dropout": _line("MCDropout"),
    "Patra": _line("Patra", base=Spec("Focal", {"gamma": 1.0})),
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
            f"λ1 {first:g}, λ2 {second:g}": _line("ACLS", lambda1=first, lambda2=second)
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
