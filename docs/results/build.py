"""Write the results' pages, tables and figures from the stored studies: ``make results``. Nothing is trained.

``python docs/results/build.py accurate`` writes only the pages of the accurate networks and the README's table.

Every number on these pages, and in the table of the project's README, is computed here from ``studies/``; what no store
can tell is in ``text/recommendation.md``, which holds no number.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import torch

from acls.metrics.significance import SeedDifference
from acls.report.figures import reliability, sweeps
from acls.report.figures.style import canvas, save
from acls.report.page.build import write
from acls.report.page.sources import of_study
from acls.report.results import RANKED, marks_of, metric, results_table
from acls.report.tables import Table, spread
from acls.reproduce.claims import verdict_on
from acls.reproduce.published import LAMBDA_1, LAMBDA_2
from acls.storage import write_text
from acls.study.advisor import Point
from acls.study.ranking import difference, rank
from acls.study.runs import NONE, detailed
from acls.study.store import MAPS, Row, RunFiles, Store
from acls.train.folder import SUMMARY

HERE = Path(os.path.relpath(Path(__file__).parent))  # pages say where their studies are: not on which machine
README = HERE / ".." / ".." / "README.md"
BEGIN, END = "<!-- results: written by make results -->", "<!-- end of results -->"
COLUMNS = ("accuracy", "miou", "ece", "ece_floor", "aece", "classwise_ece", "nll")
T = "Temperature"
ACLS, RELEASED, AUTO = "ACLS(margin=6.0, form='paper')", "ACLS(margin=6.0)", "AutoACLS(margin=6.0)"
ORDER = (
    "CE", "LabelSmoothing", "Focal", "FLSD", "ECP", "MMCE", "MDCA", "CPC", "MbLS", "MbLS(margin=6.0)", "CRL",
    "AdaFocal", "InverseFocal", "CaPE", "CutMix", "MCDropout", "ACLS", "ACLS(form='paper')", ACLS, RELEASED,
    AUTO, "AutoACLS", "AutoACLS(margin=6.0, rate=1.0)", "AutoACLS(rate=1.0)",
)  # fmt: skip
PUBLISHED = (ACLS, RELEASED, "ACLS(form='paper')", "ACLS")
"""ACLS at the published margin."""
RIVALS = {"CE": "CE", "LS": "LabelSmoothing", "MbLS": "MbLS(margin=6.0)", "CRL": "CRL"}


class Study:
    """A stored study: its rows by method and post-hoc method, and what it takes to compare them."""

    def __init__(self, name: str, title: str, commands: Sequence[str], samples: str = "test images") -> None:
        self.name, self.title, self.commands, self.samples = name, title, commands, samples
        self.folder = HERE / "studies" / name

    @cached_property
    def rows(self) -> list[Row]:
        """As they are stored."""
        return Store(self.folder).rows()

    @cached_property
    def detailed(self) -> list[Row]:
        """With what intervals of differences and diagrams are made of, which takes most of the time."""
        return detailed(self.folder, self.rows)

    def of(self, method: str, posthoc: str = NONE, *, details: bool = False) -> list[Row]:
        rows = self.detailed if details else self.rows
        return [row for row in rows if (row.method, row.posthoc) == (method, posthoc)]

    @cached_property
    def methods(self) -> list[str]:
        """Of the plain losses first, ACLS last, so that tables do not depend on which run ended first."""
        order = [*ORDER, *sorted({row.method for row in self.rows})]
        return sorted({row.method for row in self.rows}, key=lambda name: order.index(name))

    @property
    def has_outputs(self) -> bool:
        return (self.folder / "outputs.safetensors").is_file()

    def minus(self, one: tuple[str, str], other: tuple[str, str], name: str) -> SeedDifference:
        """A metric of one (method, post-hoc method) minus the other's."""
        found = difference(self.of(*one, details=True), self.of(*other, details=True), name)
        assert found is not None, (one, other)
        return found

    def mean(self, method: str, name: str, posthoc: str = NONE) -> float:
        return statistics.fmean(row.result.get(name) or 0.0 for row in self.of(method, posthoc))

    def how(self) -> str:
        """What was run, with what it took."""
        runs = [row for row in self.rows if row.posthoc == NONE]
        seconds = [row.seconds for row in runs]
        seeds = sorted({len(self.of(method)) for method in self.methods})
        newline = "\n"
        return (
            f"{len(runs)} networks, {' to '.join(map(str, {seeds[0]: 0, seeds[-1]: 0}))} seeds a method, "
            f"n = {runs[0].n:,} {self.samples}. Training took "
            f"{sum(seconds) / 3600:.1f} hours of one core in all (two runs at a time on two cores, shared with other "
            f"work), {statistics.median(seconds):.0f} s a run in the middle.\n\n```\n{newline.join(self.commands)}\n```"
        )


CIFAR = Study(
    "cifar10_mini",
    "CIFAR-10",
    (
        'acls compare cifar10_mini --root cifar10_train.zip --out studies/cifar10_mini --seeds 3 --methods "CE, '
        "LabelSmoothing, Focal, FLSD, ECP, MMCE, MDCA, CPC, MbLS, CRL, ACLS(form=paper), ACLS(form=released), "
        "AdaFocal, InverseFocal, CaPE, CutMix, MCDropout, AutoACLS, AutoACLS(margin=10), AutoACLS(rate=1), "
        'AutoACLS(margin=10, rate=1)"',
        'acls compare cifar10_mini --root cifar10_train.zip --out studies/cifar10_mini --seeds 5 --methods "CE, '
        'LabelSmoothing, MbLS, CRL, ACLS(form=paper), ACLS(form=released), AutoACLS, AutoACLS(rate=1)"',
        "acls share studies/cifar10_mini docs/results/studies/cifar10_mini",
    ),
)
MARGINS = (4, 6, 8, 10, 15)
_OTHERS = [margin for margin in MARGINS if margin != 6]
_SWEEP = [f"ACLS(form={form}, margin={m})" for form in ("paper", "released") for m in _OTHERS]
_CELLS = [(a, b) for a in LAMBDA_1 for b in LAMBDA_2 if (a, b) not in ((0.0, 0.0), (0.1, 0.01))]
_GRID = [f"ACLS(form=paper, lambda1={a:g}, lambda2={b:g})" for a, b in _CELLS]
_VARY = "acls compare cifar10_mini --root cifar10_train.zip --out studies/acls_variants"
VARIANTS = Study(
    "acls_variants",
    "Ablations, margins and lambdas of ACLS on CIFAR-10",
    (
        f'{_VARY} --seeds 2 --methods "ACLS(form=paper, condition=always), ACLS(form=paper, smoothing=constant), '
        'ACLS(form=paper, condition=ranking), CRL(condition=margin, logit_margin=6.0), AutoACLS, AutoACLS(rate=0.5)"',
        f'{_VARY} --seeds 1 --methods "{", ".join(_SWEEP)}"',
        f'{_VARY} --seeds 1 --methods "{", ".join(_GRID)}"',
        "acls share studies/acls_variants docs/results/studies/acls_variants --no-outputs",
    ),
)
TINY = Study(
    "tiny_imagenet_mini",
    "Tiny-ImageNet, 20 classes",
    (
        "acls compare tiny_imagenet_mini --root tiny_imagenet_20c.zip --out studies/tiny_imagenet_mini --seeds 3 "
        '--methods "CE, LabelSmoothing, Focal, MbLS, ACLS(form=paper)"',
        "acls share studies/tiny_imagenet_mini docs/results/studies/tiny_imagenet_mini",
    ),
)
VOC = Study(
    "voc_mini",
    "PASCAL VOC, segmentation of 240 images",
    (
        "acls compare voc_mini --root voc2012_animals_small.zip --out studies/voc_mini --seeds 3 "
        '--methods "CE, LabelSmoothing, Focal, ECP, MbLS, ACLS(form=paper)"',
        "acls share studies/voc_mini docs/results/studies/voc_mini --no-outputs",
    ),
    samples="pixels of 60 test images",
)
STUDIES = (CIFAR, VARIANTS, TINY, VOC)


# -- sentences ---------------------------------------------------------------------------------------------------------


def points(found: SeedDifference, name: str = "ece") -> str:
    """A difference in the unit that tables have, with its interval."""
    shown = metric(name)
    unit = " points" if shown.scale == 100 else ""
    value, low, high = (f"{shown.scale * part:+.{shown.decimals}f}" for part in (found.value, found.low, found.high))
    return f"{value}{unit} ({low} to {high}, {found.seeds} seeds)"


def told(found: SeedDifference, name: str = "ece") -> str:
    """Whether it is lower, higher, or cannot be told, with the difference."""
    word = {-1: "lower", 0: "not told apart", 1: "higher"}[found.sign]
    return f"**{word}**: {points(found, name)}"


def verdict(form: str, rival: tuple[str, str]) -> tuple[str, str]:
    """Whether the claim that a form of ACLS has the lower ECE is borne out, and the difference."""
    found = CIFAR.minus((form, NONE), rival, "ece")
    return verdict_on(found), points(found)


def page(name: str, *parts: str) -> None:
    """Write a page."""
    write_text(HERE / f"{name}.md", "\n\n".join(parts) + "\n")


def picture(name: str, about: str) -> str:
    """A figure in Markdown."""
    return f"![{about}](figures/{name}.png)"


def keep(drawn: object, name: str) -> None:
    """Save a figure in both forms."""
    for form in ("png", "svg"):
        save(drawn, HERE / "figures" / f"{name}.{form}")  # type: ignore[arg-type]


# -- tables ------------------------------------------------------------------------------------------------------------


def study_table(study: Study) -> str:
    """Mean and spread over seeds, before and after temperature scaling; the best is marked where that is sure."""
    wanted = study.methods
    rows = [row for posthoc in (NONE, T) for method in wanted for row in study.of(method, posthoc, details=True)]
    columns = [name for name in COLUMNS if any(row.result.get(name) is not None for row in rows)]
    return results_table(rows, columns, marks=marks_of(rank(rows, RANKED))).markdown()


def against(study: Study, method: str, rivals: Mapping[str, str], names: Sequence[str]) -> str:
    """The differences of one method from others, as they are and after temperature scaling."""
    table = Table(["minus", "post-hoc", *(f"{metric(name).title} (95 %)" for name in names), "seeds"], align="ll")
    for title, rival in rivals.items():
        for posthoc in (NONE, T):
            found = [study.minus((method, posthoc), (rival, posthoc), name) for name in names]
            cells = [
                points(one, name).replace(" points", "").split(",")[0] + ")"
                for one, name in zip(found, names, strict=True)
            ]
            table.add(title, posthoc, *cells, str(found[0].seeds))
    return table.markdown()


def paper_claims() -> str:
    """The paper's claim that ACLS has the lowest ECE, against each method that its tables compare it with."""
    rivals = {
        **RIVALS, "FL": "Focal", "FLSD": "FLSD", "ECP": "ECP", "MMCE": "MMCE", "MDCA": "MDCA", "CPC": "CPC",
        "CutMix": "CutMix", "CaPE": "CaPE", "MC dropout": "MCDropout",
    }  # fmt: skip
    table = Table(
        ["the paper says: a lower ECE than", "form `paper`", "difference", "form `released`", "difference"],
        align="lllll",
    )
    against = {title: (rival, NONE) for title, rival in rivals.items()} | {"CE + temperature": ("CE", T)}
    for title, rival in against.items():
        table.add(title, *verdict(ACLS, rival), *verdict(RELEASED, rival))
    return table.markdown()


# -- pages -------------------------------------------------------------------------------------------------------------


def cifar_page() -> None:
    """Every method on CIFAR-10."""
    keep(_pareto(CIFAR), "cifar10-pareto")
    keep(_overlay(), "cifar10-reliability")
    page(
        "cifar10",
        "# CIFAR-10: every method",
        f"{CIFAR.how()}\n\n10,000 training images without augmentation, four convolutions, 12 epochs: training "
        f"accuracy ends at {100 * _training_accuracy(CIFAR):.1f} % with cross-entropy. Mean ± standard deviation "
        "over seeds; *floor*: the ECE that a calibrated network with the same confidences would show at this n. All "
        "methods are at their published settings, the margin being 6, and the checkpoint is the best in validation "
        "accuracy. [The page of all networks](cifar10-networks.html) has diagrams and intervals.",
        study_table(CIFAR),
        "## ACLS against others",
        "Form `paper`, minus the method named: below 0 is lower. The intervals count seeds and test "
        "samples, the same for both methods.",
        against(CIFAR, ACLS, RIVALS, ("ece", "nll", "accuracy")),
        "Form `released`:",
        against(CIFAR, RELEASED, RIVALS, ("ece", "nll", "accuracy")),
        "## Pictures",
        picture("cifar10-pareto", "accuracy against ECE, a point a network"),
        picture("cifar10-reliability", "accuracy against confidence"),
    )


def variants_page() -> None:
    """Parts, margins and lambdas of ACLS."""
    part = "ACLS(margin=6.0, form='paper', {})".format
    names = {
        "LS": (CIFAR, "LabelSmoothing"), "ACLS, AR only": (VARIANTS, part("condition='always'")),
        "ACLS, CR only": (VARIANTS, part("smoothing='constant'")), "ACLS": (CIFAR, ACLS),
        "CRL, ranking": (CIFAR, "CRL"), "CRL, margin": (VARIANTS, "CRL(condition='margin', logit_margin=6.0)"),
        "ACLS, ranking": (VARIANTS, part("condition='ranking'")), "ACLS, margin": (CIFAR, ACLS),
    }  # fmt: skip
    ablation = Table(["", "accuracy %", "ECE %", "ECE % after temperature", "NLL", "seeds"], align="l")
    for title, (study, method) in names.items():
        numbers = [
            f"{100 * study.mean(method, 'accuracy'):.2f}", f"{100 * study.mean(method, 'ece'):.2f}",
            f"{100 * study.mean(method, 'ece', T):.2f}", f"{study.mean(method, 'nll'):.4f}",
        ]  # fmt: skip
        ablation.add(title, *numbers, str(len(study.of(method))))
    keep(_margins(), "acls-margins")
    keep(_grid(), "acls-lambdas")
    page(
        "variants",
        f"# {VARIANTS.title}",
        VARIANTS.how(),
        "## Parts of ACLS (the paper's tables 5 and 6)",
        ablation.markdown(),
        "## The margin",
        sweep_table(),
        picture("acls-margins", "ECE against the margin in both forms"),
        "## λ1 and λ2",
        "Form `paper`, margin 6, one seed a cell; λ1 = λ2 = 0 is cross-entropy. ECE % on the test images:",
        grid_table(),
        picture("acls-lambdas", "ECE over λ1 and λ2"),
    )


def small_page(study: Study, name: str) -> None:
    """A few methods on other data."""
    acls = next(method for method in study.methods if method.startswith("ACLS"))
    rivals = {method.split("(")[0]: method for method in study.methods if method != acls}
    learnt = f"Training accuracy ends at {100 * _training_accuracy(study):.1f} % with cross-entropy."
    note = f"[The page of all networks]({name}-networks.html) has diagrams and curves."
    if not study.has_outputs:
        note = (
            "The outputs are too large to be stored; their metrics on resampled images are. "
            f"[The page of all networks]({name}-networks.html) has their training curves."
        )
    page(
        name,
        f"# {study.title}",
        f"{study.how()}\n\n{learnt} {note}",
        study_table(study),
        "## ACLS minus the others",
        against(study, acls, rivals, ("ece", "nll", "accuracy")),
    )


def answers_page() -> None:
    """The questions that were asked, and what the studies say."""

    def line(one: tuple[str, str], other: tuple[str, str], name: str = "ece") -> str:
        return told(CIFAR.minus(one, other, name), name)

    rivals = "\n".join(
        f"- {title}: `paper` {line((ACLS, NONE), (rival, NONE))}; `released` {line((RELEASED, NONE), (rival, NONE))}"
        for title, rival in RIVALS.items()
    )
    ways = "\n".join(
        f"- `{form}`: mean confidence {100 * CIFAR.mean(form, 'confidence'):.1f} %, accuracy "
        f"{100 * CIFAR.mean(form, 'accuracy'):.1f} %, ECE {100 * CIFAR.mean(form, 'ece'):.2f} % "
        f"({100 * CIFAR.mean(form, 'ece', T):.2f} % after temperature scaling)"
        for form in ("CE", "LabelSmoothing", "MbLS(margin=6.0)", "CRL", ACLS, RELEASED, AUTO)
    )
    page(
        "README",
        "# Real results: what the methods do on real images",
        f"{runs_of(STUDIES)} networks were trained for this, on two cores. "
        "**[Accurate, overconfident networks](accurate.md)**, as the paper's, have a page of their own, which answers "
        "the same questions. This page is about small networks, trained by the commands on the pages of "
        "[CIFAR-10](cifar10.md), [variants of ACLS](variants.md), [Tiny-ImageNet](tiny_imagenet.md) and "
        "[VOC](voc.md): what they show holds for them, and the sizes of effects will be others elsewhere. "
        "`make results` writes these pages from the stored studies, without training. An answer says *lower* or "
        "*higher* only where the 95 % interval of the difference, over seeds and test images, leaves out 0.",
        "## Does ACLS lower the ECE?",
        f"On CIFAR-10 (n = {CIFAR.rows[0].n:,}), the ECE of ACLS against that of",
        rivals,
        "What is wrong with each, and which way:",
        ways,
        "## At which cost in accuracy?",
        "\n".join(
            f"- against {title}: `paper` {line((ACLS, NONE), (rival, NONE), 'accuracy')}; `released` "
            f"{line((RELEASED, NONE), (rival, NONE), 'accuracy')}"
            for title, rival in RIVALS.items()
        ),
        "## Does temperature scaling close the gap?",
        f"- CE after temperature scaling against ACLS as it is: ECE {line(('CE', T), (ACLS, NONE))}; NLL "
        f"{line(('CE', T), (ACLS, NONE), 'nll')}\n"
        f"- both after temperature scaling, ACLS against CE: ECE {line((ACLS, T), ('CE', T))}; NLL "
        f"{line((ACLS, T), ('CE', T), 'nll')}",
        "## Which form of ACLS?",
        f"`paper` minus `released` at margin 6: ECE {line((ACLS, NONE), (RELEASED, NONE))}; NLL "
        f"{line((ACLS, NONE), (RELEASED, NONE), 'nll')}; accuracy "
        f"{line((ACLS, NONE), (RELEASED, NONE), 'accuracy')}. Over the margins:",
        sweep_table(),
        "Parts of ACLS apart, and both conditions, are on the page of [variants](variants.md).",
        "## How do λ1 and λ2 matter?",
        "ECE % in form `paper` at margin 6, one seed a cell; λ1 = λ2 = 0 is cross-entropy:",
        grid_table(),
        "## A margin that nobody has to choose",
        "`AutoACLS`, since [removed](auto.md), moved the margin by the validation set after each epoch. Against "
        f"`ACLS` at the published margin: ECE {line((AUTO, NONE), (ACLS, NONE))}; NLL "
        f"{line((AUTO, NONE), (ACLS, NONE), 'nll')}; accuracy "
        f"{line((AUTO, NONE), (ACLS, NONE), 'accuracy')}. Against `released`: ECE "
        f"{line((AUTO, NONE), (RELEASED, NONE))}; NLL {line((AUTO, NONE), (RELEASED, NONE), 'nll')}. Started from "
        f"margin 10 instead of 6: ECE {line(('AutoACLS', NONE), (AUTO, NONE))}. Its rate was chosen by two of the "
        "seeds, so what it gains by that is seen too kindly; all of them:",
        rates_table(),
        "## Elsewhere",
        f"{_elsewhere(TINY)}\n{_elsewhere(VOC)}",
        "## What of the paper's claims is reproduced",
        paper_claims(),
        (HERE / "text" / "recommendation.md").read_text(encoding="utf-8").strip(),
    )


def _elsewhere(study: Study) -> str:
    """ACLS against the others on another data set, in a line."""
    acls = next(method for method in study.methods if method.startswith("ACLS"))
    others = [method for method in study.methods if method != acls]
    found = "; ".join(
        f"{other.split('(')[0]} {told(study.minus((acls, NONE), (other, NONE), 'ece'))}" for other in others
    )
    scaled = told(study.minus(("CE", T), (acls, NONE), "ece"))
    return (
        f"- {study.title} (n = {study.rows[0].n:,} {study.samples}): the ECE of ACLS against {found}. "
        f"CE after temperature scaling against ACLS as it is: {scaled}."
    )


def readme_table() -> str:
    """The table of the project's README: the fine-tuned networks."""
    table = Table(
        ["method", "accuracy %", "ECE %", "after temperature", "confidence minus accuracy", "seeds"], align="l"
    )
    study = FINETUNED
    for method in study.methods:
        rows, after = study.of(method), study.of(method, T)
        cells = [
            spread([row.result[name] for row in group], scale=100)
            for name, group in (("accuracy", rows), ("ece", rows), ("ece", after))
        ]
        gap = 100 * (study.mean(method, "confidence") - study.mean(method, "accuracy"))
        table.add(method, *cells, f"{gap:+.1f}", str(len(rows)))
    runs = runs_of((*STUDIES, *ACCURATE, AUTOMATIC, MARGINS_MENDED))
    return (
        f"{table.markdown()}\n\nImageNet network fine-tuned on 20 classes of Tiny-ImageNet, n = {study.rows[0].n:,} "
        f"test images, mean ± standard deviation over seeds. [All {runs} runs](docs/results/accurate.md), with "
        "intervals and what they say of the paper's claims."
    )


def runs_of(studies: Sequence[Study]) -> int:
    """How many networks the stores hold."""
    return sum(len({row.run for row in study.rows}) for study in studies)


def project_readme() -> None:
    """Put the table where the project's README has its place for it."""
    before, rest = README.read_text(encoding="utf-8").split(BEGIN)
    _, after = rest.split(END)
    write_text(README, f"{before}{BEGIN}\n\n{readme_table()}\n\n{END}{after}")


# -- sweeps ------------------------------------------------------------------------------------------------------------


def sweep(*studies: Study) -> dict[str, dict[float, list[tuple[Study, Row]]]]:
    """The rows of both forms by margin, all else as published, each with the study that has it."""
    published = {"condition": "margin", "smoothing": "adaptive", "lambda1": 0.1, "lambda2": 0.01}
    found: dict[str, dict[float, list[tuple[Study, Row]]]] = {"paper": {}, "released": {}}
    for form, by_margin in found.items():
        for margin in map(float, MARGINS):
            wanted = {**published, "form": form, "margin": margin}.items()
            rows = [
                (study, row)
                for study in studies
                for row in study.rows
                if row.posthoc == NONE and row.method.startswith("ACLS") and wanted <= row.settings["loss"].items()
            ]
            if rows:
                by_margin[margin] = rows
    return found


def rates_table() -> str:
    """AutoACLS by its rate."""
    table = Table(["rate", "seeds", "accuracy %", "ECE %", "confidence minus accuracy", "NLL"], align="ll")
    by_rate = {
        0.5: VARIANTS.of("AutoACLS(margin=6.0, rate=0.5)"),
        1.0: CIFAR.of("AutoACLS(margin=6.0, rate=1.0)"),
        2.0: CIFAR.of(AUTO),
    }
    for title, seeds in (("1, 2", (1, 2)), ("3, 4, 5", (3, 4, 5))):
        for rate, rows in by_rate.items():
            if chosen := [row for row in rows if row.seed in seeds]:
                table.add(f"{rate:g}", title, *_numbers(chosen))
    return table.markdown()


def sweep_table() -> str:
    """Both forms by margin."""
    table = Table(["form", "margin", "accuracy %", "ECE %", "confidence minus accuracy", "NLL", "seeds"], align="ll")
    for form, by_margin in sweep(CIFAR, VARIANTS).items():
        for margin, rows in by_margin.items():
            table.add(form, f"{margin:g}", *_numbers([row for _, row in rows]), str(len(rows)))
    return table.markdown()


def _numbers(rows: Sequence[Row]) -> list[str]:
    accuracy, ece, nll, confidence = (_mean(rows, name) for name in ("accuracy", "ece", "nll", "confidence"))
    return [f"{100 * accuracy:.2f}", f"{100 * ece:.2f}", f"{100 * (confidence - accuracy):+.2f}", f"{nll:.4f}"]


def grid() -> dict[tuple[float, float], list[float]]:
    """ECE by (λ1, λ2)."""
    found = {}
    for first in LAMBDA_1:
        for second in LAMBDA_2:
            changed = [f"lambda1={first}"] * (first != 0.1) + [f"lambda2={second}"] * (second != 0.01)
            rows = VARIANTS.of(f"ACLS({', '.join([*changed, 'margin=6.0'])}, form='paper')")
            rows = CIFAR.of("CE") if first == second == 0 else CIFAR.of(ACLS) if not changed else rows
            if rows:
                found[first, second] = [row.result.get("ece") or 0.0 for row in rows if row.seed == 1]
    return found


def grid_table() -> str:
    """ECE by λ1 and λ2."""
    values = grid()
    table = Table(["λ1 \\ λ2", *(f"{second:g}" for second in LAMBDA_2)], align="l")
    for first in LAMBDA_1:
        cells = [f"{100 * values[first, second][0]:.2f}" if (first, second) in values else "" for second in LAMBDA_2]
        table.add(f"{first:g}", *cells)
    return table.markdown()


# -- accurate, overconfident networks ----------------------------------------------------------------------------------

COMMIT = "ced180c"
"""All of these networks were trained at it."""
FORMS = ("released", "paper", "centred")


class Planned(Study):
    """A study of accurate networks with the runs that were planned; forms of ACLS by name, whatever the default is."""

    def __init__(
        self,
        name: str,
        title: str,
        about: str,
        command: str,
        methods: Sequence[str],
        seeds: Sequence[int],
        enough: tuple[str, float] | None = None,
        sibling: Study | None = None,
        samples: str = "test images",
        outputs: bool = True,
    ) -> None:
        share = f"acls share {name} docs/results/studies/{name}{'' if outputs else ' --no-outputs'}"
        super().__init__(name, title, (command, share), samples)
        self.about, self.planned, self.seeds = about, methods, seeds
        self.enough, self.sibling = enough, sibling

    @cached_property
    def rows(self) -> list[Row]:
        rows = Store(self.folder).rows() if (self.folder / "study.sqlite").is_file() else []
        return [replace(row, method=form_named(row)) for row in rows]

    @cached_property
    def methods(self) -> list[str]:
        there = {row.method for row in self.rows}
        return [*(name for name in self.planned if name in there), *sorted(there - {*self.planned})]

    @property
    def missing(self) -> list[str]:
        """The planned runs that are not stored."""
        there = {(row.method, row.seed) for row in self.rows}
        return [f"{name} seed {seed}" for name in self.planned for seed in self.seeds if (name, seed) not in there]

    @property
    def forms(self) -> list[str]:
        return [name for name in self.methods if name.startswith("ACLS")]

    @property
    def rivals(self) -> dict[str, str]:
        return {name: name for name in self.methods if not name.startswith("ACLS")}

    def state(self) -> str:
        """How much of what was planned is there."""
        total = len(self.planned) * len(self.seeds)
        if not self.missing:
            return f"All {total} planned networks are stored."
        if not self.rows:
            return f"None of the {total} planned networks is stored yet."
        return (
            f"{total - len(self.missing)} of {total} planned networks are stored. Missing: {', '.join(self.missing)}."
        )

    def curve(self, row: Row, name: str) -> list[float]:
        """A column of a run's metrics.csv, one value per epoch; empty where it was not recorded."""
        return [line[name] for line in RunFiles(self.folder, row.run).history() if name in line]


def form_named(row: Row) -> str:
    """A method without its settings; ACLS with its form, which a stored loss has whatever the default is now."""
    name = row.method.split("(")[0]
    return f"ACLS {row.settings['loss'].get('form', 'paper')}" if name == "ACLS" else name


_FINETUNE = "--model.weights efficientnet_lite0.safetensors"
_ACLS = "ACLS(form=released), ACLS(form=paper)"
_TWO = ("ACLS released", "ACLS paper")
_THREE = (*_TWO, "ACLS centred")


def _command(recipe: str, data: str, methods: str, seeds: str, more: str = "", out: str = "") -> str:
    return (
        f"acls compare {recipe} --root {data} {more}{' ' * bool(more)}--out {out or recipe} "
        f'--methods "{methods}" --seeds {seeds} --posthoc Temperature --workers 2'
    )


FINETUNED = Planned(
    "tiny_imagenet_finetune",
    "Tiny-ImageNet, 20 classes: fine-tuning an ImageNet network",
    "EfficientNet-Lite0 with ImageNet weights, fine-tuned on 20 classes of Tiny-ImageNet at 64 x 64 for 5 epochs: what "
    "most people do. ImageNet's training set, on which the network was trained before, may contain these pictures.",
    _command("tiny_imagenet_finetune", "tiny_imagenet_20c.zip", f"CE, LabelSmoothing, MbLS, {_ACLS}, "
             "ACLS(form=centred)", "3", _FINETUNE),
    ("CE", "LabelSmoothing", "MbLS", *_THREE),
    (1, 2, 3),
    ("accuracy", 0.75),
    TINY,
)  # fmt: skip
MENDED = Planned(
    "cifar10_finetune",
    "CIFAR-10: mending a finished network",
    "The public ResNet-20, which is overconfident on every image, trained on for 2 epochs at a small rate: can a loss "
    "mend it, as one temperature does? It has seen all 50,000 training images, so half of the test images validate.",
    _command("cifar10_finetune", "cifar10_train.zip", f"CE, LabelSmoothing, MbLS, CRL, {_ACLS}, ACLS(form=centred)",
             "3", "--model.weights resnet20-12fca82f.th"),
    ("CE", "LabelSmoothing", "MbLS", "CRL", *_THREE),
    (1, 2, 3),
    ("accuracy", 0.91),
    CIFAR,
)  # fmt: skip
SCRATCH = Planned(
    "cifar10_resnet20",
    "CIFAR-10: ResNet-20 from scratch",
    "The paper's split of 45,000 and 5,000 images, crops and flips, 12 epochs, batches of 64.",
    _command("cifar10_resnet20", "cifar10_train.zip", f"CE, MbLS, {_ACLS}", "2", "--batch 64"),
    ("CE", "MbLS", *_TWO),
    (1, 2),
    ("accuracy", 0.87),
    CIFAR,
)
SEGMENTED = Planned(
    "voc_finetune",
    "PASCAL VOC: segmentation with an ImageNet encoder",
    "LR-ASPP on EfficientNet-Lite0 with ImageNet weights at 224 x 224 for 25 epochs, on images of animals.",
    _command("voc_finetune", "voc2012_animals_320.zip", f"CE, MbLS, {_ACLS}", "2", _FINETUNE),
    ("CE", "MbLS", *_TWO),
    (1, 2),
    ("miou_frequent", 0.45),
    VOC,
    samples="pixels of the test images",
    outputs=False,
)
AUTOMATIC = Planned(
    "auto",
    "AutoACLS against MbLS on seeds that nobody tuned on",
    "Small networks, as in [cifar10_mini](cifar10.md), with seeds 11 to 15.",
    _command("cifar10_mini", "cifar10_train.zip", "MbLS, AutoACLS", "11,12,13,14,15", out="auto"),
    ("MbLS", "AutoACLS"),
    (11, 12, 13, 14, 15),
)
_SWEPT = [f"ACLS(form={form}, margin={m})" for form in ("released", "paper") for m in _OTHERS]
MARGINS_MENDED = Planned(
    "cifar10_finetune_margins",
    "CIFAR-10: mending a finished network, other margins",
    "As in [the study of the mended network](cifar10_finetune.md), with margins around the published 6, one seed.",
    _command("cifar10_finetune", "cifar10_train.zip", ", ".join(_SWEPT), "1", "--model.weights resnet20-12fca82f.th",
             "cifar10_finetune_margins"),
    ("ACLS released", "ACLS paper"),
    (1,),
)  # fmt: skip
ACCURATE = (FINETUNED, MENDED, SCRATCH, SEGMENTED)
NUMBERS = ("ece", "aece", "nll", "accuracy")


def sure(found: SeedDifference, name: str) -> str:
    """A difference with its interval for a table, or what stands in for an interval with one seed."""
    shown = metric(name)
    value = shown.show(found.value, sign=True)
    if found.seeds == 1:
        return f"{value} (one seed)"
    text = f"{value} ({shown.show(found.low, sign=True)} to {shown.show(found.high, sign=True)})"
    return f"**{text}**" if found.sign else text


def minus_table(studies: Sequence[Planned], posthocs: tuple[str, str], rivals: Sequence[str] = ()) -> str:
    """Each form of ACLS minus each other method, in bold where the interval excludes 0."""
    several = len(studies) > 1
    titles = [f"{metric(name).title} (95 %)" for name in NUMBERS]
    table = Table([*["study"] * several, "form", "minus", *titles, "seeds"], align="lll" if several else "ll")
    for study in studies:
        for form in study.forms:
            for rival in study.rivals:
                if not rivals or rival in rivals:
                    found = [difference_of(study, (form, posthocs[0]), (rival, posthocs[1]), name) for name in NUMBERS]
                    cells = ["" if one is None else sure(one, name) for one, name in zip(found, NUMBERS, strict=True)]
                    seeds = str(found[0].seeds) if found[0] else "0"
                    table.add(*[study.name] * several, f"`{form.split()[1]}`", rival, *cells, seeds)
    return table.markdown() if table.rows else "Nothing to compare yet."


def difference_of(study: Study, one: tuple[str, str], other: tuple[str, str], name: str) -> SeedDifference | None:
    """One (method, post-hoc method) minus the other's; None where they have no seed in common."""
    return difference(study.of(*one, details=True), study.of(*other, details=True), name)


def acts_table(study: Planned) -> str:
    """On how many samples the regulariser acts, from the first to the last epoch, beside each ECE."""
    titles = ["gap above margin %", "largest logit above margin %", "regulariser acts %", "fitted temperature"]
    names = ("val/gap_above_margin", "val/top_above_margin", "val/regulariser_active", "val/temperature")
    table = Table(["method", "ECE %", *titles, "seeds"], align="l")
    for method in study.methods:
        rows = study.of(method)
        cells = []
        for name in names:
            scale = 1 if name.endswith("temperature") else 100
            curves = [found for row in rows if (found := study.curve(row, name))]
            ends = [scale * statistics.fmean(curve[place] for curve in curves) for place in (0, -1) if curves]
            cells.append(" → ".join(f"{end:.2f}" if scale == 1 else f"{end:.1f}" for end in ends))
        table.add(method, spread([row.result["ece"] for row in rows], scale=100), *cells, str(len(rows)))
    return table.markdown()


def enough_line(study: Planned) -> str:
    """Whether cross-entropy reached what the study needs to be in the paper's regime."""
    if study.enough is None or not study.of("CE"):
        return "Whether cross-entropy is accurate enough is not known yet."
    name, least = study.enough
    titles = {"accuracy": "accuracy", "miou_frequent": "mean IoU of the six frequent classes"}
    found = [value for row in study.of("CE") if (value := value_of(study, row, name)) is not None]
    if not found:
        return f"Asked of cross-entropy: {titles[name]} above {100 * least:.0f} %; it was not stored."
    mean = statistics.fmean(found)
    holds = "which holds" if mean > least else "**which does not hold**"
    return f"Cross-entropy has {titles[name]} {100 * mean:.1f} %; above {100 * least:.0f} % was asked for, {holds}."


def value_of(study: Planned, row: Row, name: str) -> float | None:
    """A number of a run: stored with its row, or, of label maps, beside its files."""
    maps = RunFiles(study.folder, row.run).text(MAPS)
    return row.result.get(name) if not maps or row.result.get(name) is not None else json.loads(maps).get(name)


def accurate_page(study: Planned) -> None:
    """One study of accurate networks."""
    head = [f"# {study.title}", study.about, study.state()]
    if not study.rows:
        page(study.name, *head, "```\n" + "\n".join(study.commands) + "\n```")
        return
    compared = [
        f"## ACLS minus the others, {title}\n\n{minus_table([study], (posthoc, posthoc))}"
        for title, posthoc in (("as trained", NONE), ("after temperature scaling", T))
    ]
    page(
        study.name,
        *head,
        *([enough_line(study)] if study.enough else []),
        f"{study.how()}\n\nTrained at commit `{COMMIT}`. The [rules](rules.md) were written before the first run ended "
        f"and say what was tried before the recipe was fixed. [All networks]({study.name}-networks.html), with "
        "diagrams and curves.",
        study_table(study),
        *protocol_part(study),
        "## On how many samples the regulariser acts",
        "Validation samples, after the first and after the last epoch, mean over seeds: largest minus smallest logit "
        "above the margin; largest logit above it; any term of the method's own regulariser not 0.",
        acts_table(study),
        *(compared if study.forms else [f"## {auto_rule()}"]),
    )


def protocol_part(study: Planned) -> list[str]:
    """Of segmentation, the ECE as the paper measures it, beside the pooled one."""
    table = Table(["method", "ECE %, the paper's protocol", "ECE %, pooled", "mean IoU %", "seeds"], align="l")
    for method in study.methods:
        rows = study.of(method)
        columns = [
            [value for row in rows if (value := value_of(study, row, name)) is not None]
            for name in ("ece_protocol", "ece", "miou_frequent")
        ]
        if columns[0]:
            table.add(method, *(spread(values, scale=100) for values in columns), str(len(rows)))
    about = (
        "The paper's protocol averages the ECE of the foreground over batches of 8 images; both are of the pixels that "
        "were stored of each image. The IoU is the mean of the classes that one in ten test images or more shows, "
        "without the background."
    )
    return ["## By the paper's protocol", about, table.markdown()] if table.rows else []


def orders() -> str:
    """The methods of each study by their error, beside those of the small networks on the same data."""
    table = Table(["study", "by", "lowest first", "small networks", "pairs in the same order"], align="lllll")
    for study in ACCURATE:
        small = study.sibling
        if small is None or len(study.methods) < 2:
            continue
        known: dict[str, list[Row]] = {}
        for row in small.rows:
            if row.posthoc == NONE and not (form_named(row).startswith("ACLS") and row.method not in PUBLISHED):
                known.setdefault(form_named(row), []).append(row)
        common = [name for name in study.methods if name in known]
        for name in ("ece", "nll"):
            here = {method: study.mean(method, name) for method in common}
            there = {method: _mean(known[method], name) for method in common}
            pairs = list(itertools.combinations(common, 2))
            same = sum((here[a] < here[b]) == (there[a] < there[b]) for a, b in pairs)
            listed = [", ".join(sorted(common, key=values.__getitem__)) for values in (here, there)]
            table.add(study.name, metric(name).label, *listed, f"{same} of {len(pairs)}")
    return table.markdown() if table.rows else "Not known yet."


def margins_chosen() -> str:
    """The margin that validation would choose, from the sweeps over margins; the first seed of each."""
    names = ("val/nll", "val/ece", "nll", "ece")
    titles = ("validation NLL", "validation ECE", "test NLL", "test ECE")
    table = Table(["study", "form", *(f"lowest {title}" for title in titles), "margins"], align="ll")
    for studies in ((MENDED, MARGINS_MENDED), (CIFAR, VARIANTS)):
        for form, by_margin in sweep(*studies).items():
            found: dict[str, dict[float, float]] = {name: {} for name in names}
            for margin, rows in by_margin.items():
                study, row = next((study, row) for study, row in rows if row.seed == 1)
                validated = json.loads(RunFiles(study.folder, row.run).text(SUMMARY))["val"]
                for name in names:
                    values = validated if name.startswith("val/") else row.result
                    found[name][margin] = values[name.removeprefix("val/")]
            if len(by_margin) > 1:
                chosen = [f"{min(values, key=values.__getitem__):g}" for values in found.values()]
                table.add(studies[0].name, f"`{form}`", *chosen, ", ".join(f"{margin:g}" for margin in by_margin))
    return table.markdown()


def default_rule() -> str:
    """The rule on the default form, applied to what is stored."""
    table = Table(["study", "NLL `released`", "NLL `paper`", "seeds", "lower"], align="l")
    wins = {"released": 0, "paper": 0}
    for study in ACCURATE:
        seeds = {row.seed for row in study.of(_TWO[0])} & {row.seed for row in study.of(_TWO[1])}
        if seeds:
            nll = {form: _mean([r for r in study.of(f"ACLS {form}") if r.seed in seeds], "nll") for form in wins}
            lower = min(nll, key=nll.__getitem__)
            wins[lower] += not study.missing
            complete = "" if not study.missing else " so far"
            table.add(study.name, *(f"{value:.4f}" for value in nll.values()), str(len(seeds)), f"`{lower}`{complete}")
    waiting = [study.name for study in ACCURATE if study.missing]
    winner = "paper" if wins["paper"] > wins["released"] else "released"
    decided = (
        f"Undecided until {', '.join(waiting)} {'is' if len(waiting) == 1 else 'are'} complete: the printed equation "
        "stays the default."
        if waiting
        else f"**The default form is `{winner}`**: lower NLL in {wins[winner]} of {len(ACCURATE)} studies."
        + (" A tie goes to the authors' code." if wins["paper"] == wins["released"] else "")
    )
    return "\n\n".join([table.markdown(), decided] if table.rows else [decided])


def centred_rule() -> str:
    """The rule on the form `centred`, applied to what is stored."""
    studies = (FINETUNED, MENDED)
    lines, stays = [], True
    for study in studies:
        found = {
            name: difference_of(study, ("ACLS centred", NONE), ("ACLS paper", NONE), name) for name in ("ece", "nll")
        }
        if None in found.values():
            lines.append(f"- {study.name}: not known yet")
            continue
        told_of = [f"{metric(name).label} {sure(one, name)}" for name, one in found.items() if one is not None]
        lines.append(f"- {study.name}, `centred` minus `paper`: {'; '.join(told_of)}")
        stays &= all(one is not None and one.sign < 0 for one in found.values())
    waiting = [study.name for study in studies if study.missing]
    decided = (
        f"Undecided until {' and '.join(waiting)} {'is' if len(waiting) == 1 else 'are'} complete."
        if waiting
        else "**`centred` stays.**"
        if stays
        else "**`centred` goes**: both errors would have to be lower in both studies, beyond doubt. It was tried."
    )
    return "\n".join(lines) + f"\n\n{decided}"


def auto_rule() -> str:
    """The rule on AutoACLS, applied to what is stored."""
    found = difference_of(AUTOMATIC, ("AutoACLS", NONE), ("MbLS", NONE), "ece")
    if found is None:
        return "AutoACLS minus MbLS: not known yet."
    numbers = [
        f"{metric(name).label}{after} {sure(one, name)}"
        for name in ("ece", "nll", "accuracy")
        for posthoc, after in ((NONE, ""), (T, " after temperature scaling"))
        if (one := difference_of(AUTOMATIC, ("AutoACLS", posthoc), ("MbLS", posthoc), name)) is not None
    ]
    decided = "**AutoACLS stays.**" if found.sign < 0 else "**AutoACLS goes.**"
    if AUTOMATIC.missing:
        decided = f"Undecided: {AUTOMATIC.state()}"
    return f"AutoACLS minus MbLS, {found.seeds} seeds: {'; '.join(numbers)}. {decided}"


def accurate_answers() -> None:
    """One page over all studies of accurate networks."""
    states = "\n".join(f"- [{study.title}]({study.name}.md). {study.state()}" for study in (*ACCURATE, AUTOMATIC))
    checks = "\n".join(f"- {study.name}: {enough_line(study)}" for study in ACCURATE)
    shown = [study for study in ACCURATE if study.rows]
    page(
        "accurate",
        "# Accurate, overconfident networks",
        f"{runs_of((*ACCURATE, AUTOMATIC, MARGINS_MENDED))} networks, trained at commit `{COMMIT}`, where the paper's "
        "question lives: "
        "accurate, with logits beyond the margin on most samples. Differences are means over the seeds that both "
        "methods have; **bold** where the 95 % interval, over seeds and test samples, excludes 0. `make results` "
        "writes this page from what is stored.",
        states,
        "## Are they accurate?",
        checks,
        "## Does ACLS lower ECE, adaptive ECE and NLL, and at which cost in accuracy?",
        "As trained, each form minus each method:",
        minus_table(shown, (NONE, NONE)),
        "## What remains after temperature scaling?",
        "Both after temperature scaling:",
        minus_table(shown, (T, T)),
        "ACLS as trained minus cross-entropy after temperature scaling:",
        minus_table(shown, (NONE, T), ("CE",)),
        "## On how many samples does the regulariser act?",
        *(f"{study.title}, from the first to the last epoch:\n\n{acts_table(study)}" for study in shown),
        "## Which margin would the validation set choose?",
        "One seed per margin: of the mended network, and of the small networks of [cifar10_mini](variants.md).",
        margins_chosen(),
        "## Is the ranking that of the small networks?",
        orders(),
        "## The rules, applied",
        "The [rules](rules.md) were written before the first run ended.",
        "### Which form of ACLS is the default?",
        default_rule(),
        "### Does `centred` stay?",
        centred_rule(),
        "### Does AutoACLS stay?",
        auto_rule(),
    )


def _margins() -> object:
    drawn, (ax,) = canvas(height=2.8)
    values = {
        form: {margin: [row.result.get("ece") or 0.0 for _, row in rows] for margin, rows in by_margin.items()}
        for form, by_margin in sweep(CIFAR, VARIANTS).items()
        if by_margin
    }
    sweeps.draw_sweep(sweeps.prepare_sweep(values), ax)
    return drawn


def _grid() -> object:
    drawn, (ax,) = canvas()
    sweeps.draw_grid(sweeps.prepare_grid(grid()), ax)
    return drawn


def _pareto(study: Study) -> object:
    shown = {}
    for method in study.methods:
        rows = study.of(method)
        shown[method] = [Point(row.result.get("accuracy") or 0.0, row.result.get("ece") or 0.0) for row in rows]
    drawn, (ax,) = canvas(width=7.0, height=4.5)
    sweeps.draw_front(shown, ax)
    return drawn


def _overlay() -> object:
    drawn, (ax,) = canvas()
    shown = {}
    for title, method in {**RIVALS, "ACLS": ACLS, "released": RELEASED, "AutoACLS": AUTO}.items():
        suite = CIFAR.of(method, details=True)[0].result.suite
        assert suite is not None
        shown[title] = suite.bins.reliability()
    reliability.draw_overlay(reliability.prepare_overlay(shown), ax)
    return drawn


def _training_accuracy(study: Study) -> float:
    runs = [RunFiles(study.folder, row.run).history() for row in study.of("CE")]
    return statistics.fmean(history[-1]["train/accuracy"] for history in runs)


def _mean(rows: Sequence[Row], name: str) -> float:
    return statistics.fmean(row.result.get(name) or 0.0 for row in rows)


def main(only: str = "", *, interactive: bool = True) -> None:
    """Write everything, or ``only`` what is about the accurate networks; the interactive pages take long."""
    torch.set_num_threads(1)  # arrays are small: more threads only wait for each other
    (HERE / "figures").mkdir(exist_ok=True)
    project_readme()
    for study in (*ACCURATE, AUTOMATIC):
        accurate_page(study)
        if interactive and study.rows:
            write(of_study(study.folder, study.detailed), HERE / f"{study.name}-networks.html", title=study.title)
    accurate_answers()
    if only == "accurate":
        return
    cifar_page()
    variants_page()
    small_page(TINY, "tiny_imagenet")
    small_page(VOC, "voc")
    answers_page()
    if interactive:
        for study, name in ((CIFAR, "cifar10"), (TINY, "tiny_imagenet"), (VOC, "voc")):
            write(of_study(study.folder, study.detailed), HERE / f"{name}-networks.html", title=study.title)


if __name__ == "__main__":
    main(*sys.argv[1:])
