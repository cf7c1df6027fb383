"""The tables of the paper as experiments: networks, methods, printed numbers and claims."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from acls.calibrators import Calibrator, Temperature
from acls.metrics.protocols import Protocol, protocol
from acls.recipes import find
from acls.reproduce import published
from acls.reproduce.claims import Claim
from acls.reproduce.published import Published
from acls.spec import Spec

FORMS = {"authors' code": "released", "Eq. 13": "paper"}
"""The forms of ACLS in every table; claims are judged on the first, which gave the published numbers."""


@dataclass(frozen=True)
class MethodLine:
    """A method and the calibrator that is fitted afterwards, for comparison with a row of the paper."""

    method: Spec
    """The method without the recipe's margin, which is added to methods that have one."""
    posthoc: Calibrator | None = None
    margin_field: str = ""
    """Another field that gets the recipe's margin."""
    row: str = ""
    """The row of the paper's table."""
    form: str = ""
    """For ACLS, one of `FORMS`."""


@dataclass(frozen=True)
class Experiment:
    """A table of the paper."""

    title: str
    printed: Mapping[str, Mapping[str, Published]]
    """The printed numbers by recipe (of the paper's size) and row."""
    pairs: tuple[tuple[str, str], ...] = ()
    """Pairs of rows; the paper claims that the first is better calibrated. By default, ACLS and each other row."""
    split: str = "test"
    accuracy: str = "accuracy"
    """The metric that the paper prints as accuracy."""
    protocol: Protocol | None = None
    """The protocol of the paper, if it differs from `acls evaluate`; both are shown."""
    ten_bins: Mapping[str, Published] = field(default_factory=dict)
    """Numbers with 10 bins, if the paper prints them too."""

    def lines(self, form: str | None = None) -> dict[str, MethodLine]:
        """Return the lines for the rows of the paper, as in `lines_of`."""
        return lines_of(next(iter(self.printed.values())), form)

    def claims(self, paper: str) -> list[Claim]:
        """Return the claims of the printed numbers for a recipe: lower errors without a loss of accuracy."""
        found = []
        for lower, higher in self.pairs or _beats("ACLS", self.printed[paper]):
            mine, theirs = (self.printed[paper][row] for row in (lower, higher))
            for metric in ("ece", "aece"):
                first, second = getattr(mine, metric), getattr(theirs, metric)
                if second is None and self.ten_bins:
                    first, second = (getattr(self.ten_bins[row], metric) for row in (lower, higher))
                if first is not None and second is not None and first < second:
                    found.append(Claim(lower, higher, metric))
            # Temperature scaling does not change predictions, so the accuracy stays the same.
            if mine.accuracy is not None and theirs.accuracy is not None and higher != "CE + TS":
                found.append(Claim(lower, higher, self.accuracy))
        return found


def _line(name: str, margin_field: str = "", **fields: Any) -> MethodLine:
    return MethodLine(Spec(name, fields), margin_field=margin_field)


_SAME_NAME = ("CE", "MMCE", "ECP", "FLSD", "MDCA", "CPC", "MbLS", "CRL", "ACLS", "CutMix", "CaPE")
"""The rows that the paper names as this package names the method."""
LINES = {
    **{name: _line(name) for name in _SAME_NAME},
    "LS": _line("LabelSmoothing"),
    "FL": _line("Focal"),
    "ACLS, AR only": _line("ACLS", condition="always"),
    "ACLS, CR only": _line("ACLS", smoothing="constant"),
    "CRL, ranking": _line("CRL"),
    "CRL, margin": _line("CRL", condition="margin", margin_field="logit_margin"),
    "ACLS, ranking": _line("ACLS", condition="ranking"),
    "ACLS, margin": _line("ACLS"),
    "MC dropout": _line("MCDropout"),
    "Patra": _line("Patra", base=Spec("Focal", {"gamma": 1.0})),
    **{
        f"λ1 {first:g}, λ2 {second:g}": _line("ACLS", lambda1=first, lambda2=second) if first or second else _line("CE")
        for first in published.LAMBDA_1
        for second in published.LAMBDA_2
    },
}
SCALINGS = {"grid": Temperature(objective="ece", grid=True), "NLL": Temperature()}
"""Temperature scaling as in the paper (a grid of 0.1, by ECE), which is used to judge claims, and as in acls."""


def lines_of(rows: Iterable[str], form: str | None = None) -> dict[str, MethodLine]:
    """Return the lines for the rows of the paper, by label; ACLS has one line per form in `FORMS` and for ``form``."""
    found: dict[str, MethodLine] = {}
    for row in rows:
        if row == "CE + TS":
            found |= {f"{row} ({name})": MethodLine(Spec("CE"), scaling, row=row) for name, scaling in SCALINGS.items()}
        else:
            found |= in_forms(row, replace(LINES[row], row=row), form)
    return found


def in_forms(label: str, line: MethodLine, form: str | None = None) -> dict[str, MethodLine]:
    """Return a line of ACLS in each form of `FORMS` and in ``form``; a line of another method is unchanged."""
    if line.method.name != "ACLS":
        return {label: line}
    forms = dict(FORMS) if form is None or form in FORMS.values() else {**FORMS, form: form}
    return {
        f"{label} ({name})": replace(line, method=Spec("ACLS", {**line.method.fields, "form": form}), form=name)
        for name, form in forms.items()
    }


def label_of(lines: Mapping[str, MethodLine], row: str, form: str) -> str:
    """Return the label of a row's line in a form of ACLS; for another method, of its first line."""
    return next(label for label, line in lines.items() if line.row == row and line.form in ("", form))


def _beats(best: str, others: Iterable[str]) -> tuple[tuple[str, str], ...]:
    return tuple((best, other) for other in others if other != best)


_CHOSEN = "λ1 0.1, λ2 0.01"
EXPERIMENTS = {
    "table1": Experiment("Table 1: regularisation-based methods on Tiny-ImageNet", published.TABLE_1),
    "table3": Experiment("Table 3: CIFAR-10, Tiny-ImageNet and ImageNet", published.TABLE_3),
    "table4": Experiment(
        "Table 4: segmentation of PASCAL VOC",
        published.TABLE_4,
        accuracy="miou_foreground",
        protocol=protocol("mbls-segmentation"),
    ),
    "table5": Experiment(
        "Table 5: adaptive and conditional regularisation apart and together",
        published.TABLE_5,
        (
            ("ACLS, AR only", "LS"),
            ("ACLS, CR only", "LS"),
            ("ACLS, AR only", "MDCA"),
            ("ACLS, CR only", "MbLS"),
            ("ACLS", "ACLS, AR only"),
            ("ACLS", "ACLS, CR only"),
        ),
    ),
    "table6": Experiment(
        "Table 6: ranking or margin as the condition",
        published.TABLE_6,
        (
            ("CRL, margin", "CRL, ranking"),
            ("ACLS, margin", "ACLS, ranking"),
            ("ACLS, ranking", "CRL, ranking"),
            ("ACLS, margin", "CRL, margin"),
        ),
    ),
    "tableA": Experiment(
        "Table A: the grid of λ1 and λ2, on the validation split",
        published.TABLE_A,
        _beats(_CHOSEN, ("λ1 0, λ2 0", "λ1 0.1, λ2 0", "λ1 0, λ2 0.01")),
        split="val",
    ),
    "tableB": Experiment(
        "Table B: methods that do not smooth labels", published.TABLE_B, ten_bins=published.TABLE_B_10
    ),
}

MARGINS = (2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 14.0, 16.0)
"""The margins of Figure A; the paper does not print which values it used."""

SMALL = {
    "cifar10_resnet50": ("cifar10_mini", "digits_cnn"),
    "tiny_imagenet_resnet50": ("tiny_imagenet_mini", "digits_cnn"),
    "voc_deeplabv3_resnet50": ("voc_mini", "synthetic_unet"),
}
"""The CPU-sized version of each recipe, and its replacement if the data set is not available: the embedded digits, or
images with known truth. Recipes without a version are left out at that size."""


def data_sets() -> set[str]:
    """Return the names of the data sets of the paper's experiments, as used in recipes."""
    return {find(paper).data.name for experiment in EXPERIMENTS.values() for paper in experiment.printed}
