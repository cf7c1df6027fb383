"""Write the results' pages, tables and figures from the stored studies: ``make results``. Nothing is trained.

Every number on these pages, and in the table of the project's README, is computed here from ``studies/``; what no store
can tell is in ``text/recommendation.md``, which holds no number.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

from acls.report.figures import reliability, sweeps
from acls.report.figures.style import canvas, save
from acls.report.page import write
from acls.report.results import RANKED, marks_of, metric, results_table
from acls.report.tables import Table, spread
from acls.reproduce.claims import Claim, Judged
from acls.reproduce.published import LAMBDA_1, LAMBDA_2
from acls.storage import write_text
from acls.study.files import METRICS, RunFiles
from acls.study.ranking import Difference, difference, rank, resamples_of
from acls.study.runs import NONE, detailed
from acls.study.store import Row, Store

HERE = Path(os.path.relpath(Path(__file__).parent))  # pages say where their studies are: not on which machine
README = HERE / ".." / ".." / "README.md"
BEGIN, END = "<!-- results: written by make results -->", "<!-- end of results -->"
COLUMNS = ("accuracy", "miou", "ece", "ece_floor", "aece", "classwise_ece", "nll")
T = "Temperature"
ACLS, RELEASED, AUTO = "ACLS(margin=6.0)", "ACLS(margin=6.0, form='released')", "AutoACLS(margin=6.0)"
ORDER = (
    "CE", "LabelSmoothing", "Focal", "FLSD", "ECP", "MMCE", "MDCA", "CPC", "MbLS", "MbLS(margin=6.0)", "CRL",
    "AdaFocal", "InverseFocal", "CaPE", "CutMix", "MCDropout", "ACLS", ACLS, RELEASED,
    AUTO, "AutoACLS", "AutoACLS(margin=6.0, rate=1.0)", "AutoACLS(rate=1.0)",
)  # fmt: skip
RIVALS = {"CE": "CE", "LS": "LabelSmoothing", "MbLS": "MbLS(margin=6.0)", "CRL": "CRL"}


class Study:
    """A stored study: its rows by method and post-hoc method, and what it takes to compare them."""

    def __init__(self, name: str, title: str, commands: Sequence[str], samples: str = "test images") -> None:
        self.name, self.title, self.commands, self.samples = name, title, commands, samples
        self.folder = HERE / "studies" / name
        self.rows = detailed(self.folder, Store(self.folder).rows())

    def of(self, method: str, posthoc: str = NONE) -> list[Row]:
        return [row for row in self.rows if (row.method, row.posthoc) == (method, posthoc)]

    @cached_property
    def methods(self) -> list[str]:
        """Of the plain losses first, ACLS last, so that tables do not depend on which run ended first."""
        order = [*ORDER, *sorted({row.method for row in self.rows})]
        return sorted({row.method for row in self.rows}, key=lambda name: order.index(name))

    @property
    def has_outputs(self) -> bool:
        return any(row.result.suite is not None for row in self.rows)

    def minus(self, one: tuple[str, str], other: tuple[str, str], name: str) -> Difference:
        """A metric of one (method, post-hoc method) minus the other's."""
        found = difference(self.of(*one), self.of(*other), name, resamples_of)
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
        "LabelSmoothing, Focal, FLSD, ECP, MMCE, MDCA, CPC, MbLS, CRL, ACLS, ACLS(form=released), AdaFocal, "
        "InverseFocal, CaPE, CutMix, MCDropout, AutoACLS, AutoACLS(margin=10), AutoACLS(rate=1), "
        'AutoACLS(margin=10, rate=1)"',
        'acls compare cifar10_mini --root cifar10_train.zip --out studies/cifar10_mini --seeds 5 --methods "CE, '
        'LabelSmoothing, MbLS, CRL, ACLS, ACLS(form=released), AutoACLS, AutoACLS(rate=1)"',
        "acls share studies/cifar10_mini docs/results/studies/cifar10_mini",
    ),
)
MARGINS = (4, 6, 8, 10, 15)
_OTHERS = [margin for margin in MARGINS if margin != 6]
_SWEEP = [f"ACLS(margin={m})" for m in _OTHERS] + [f"ACLS(form=released, margin={m})" for m in _OTHERS]
_CELLS = [(a, b) for a in LAMBDA_1 for b in LAMBDA_2 if (a, b) not in ((0.0, 0.0), (0.1, 0.01))]
_GRID = [f"ACLS(lambda1={a:g}, lambda2={b:g})" for a, b in _CELLS]
_VARY = "acls compare cifar10_mini --root cifar10_train.zip --out studies/acls_variants"
VARIANTS = Study(
    "acls_variants",
    "Ablations, margins and lambdas of ACLS on CIFAR-10",
    (
        f'{_VARY} --seeds 2 --methods "ACLS(condition=always), ACLS(smoothing=constant), ACLS(condition=ranking), '
        'CRL(condition=margin, logit_margin=6.0), AutoACLS, AutoACLS(rate=0.5)"',
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
        '--methods "CE, LabelSmoothing, Focal, MbLS, ACLS"',
        "acls share studies/tiny_imagenet_mini docs/results/studies/tiny_imagenet_mini",
    ),
)
VOC = Study(
    "voc_mini",
    "PASCAL VOC, segmentation of 240 images",
    (
        "acls compare voc_mini --root voc2012_animals_small.zip --out studies/voc_mini --seeds 3 "
        '--methods "CE, LabelSmoothing, Focal, ECP, MbLS, ACLS"',
        "acls share studies/voc_mini docs/results/studies/voc_mini --no-outputs",
    ),
    samples="pixels of 60 test images",
)
STUDIES = (CIFAR, VARIANTS, TINY, VOC)


# -- sentences ---------------------------------------------------------------------------------------------------------


def points(found: Difference, name: str = "ece") -> str:
    """A difference in the unit that tables have, with its interval."""
    shown = metric(name)
    unit = " points" if shown.scale == 100 else ""
    value, low, high = (f"{shown.scale * part:+.{shown.decimals}f}" for part in (found.value, found.low, found.high))
    return f"{value}{unit} ({low} to {high}, {found.seeds} seeds)"


def told(found: Difference, name: str = "ece") -> str:
    """Whether it is lower, higher, or cannot be told, with the difference."""
    word = {-1: "lower", 0: "not told apart", 1: "higher"}[found.sign]
    return f"**{word}**: {points(found, name)}"


def verdict(form: str, rival: tuple[str, str]) -> tuple[str, str]:
    """Whether the claim that a form of ACLS has the lower ECE is borne out, and the difference."""
    found = CIFAR.minus((form, NONE), rival, "ece")
    return Judged(Claim(form, rival[0]), found).verdict, points(found)


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
    rows = [row for posthoc in (NONE, T) for method in wanted for row in study.of(method, posthoc)]
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
        "Form `paper` (the default), minus the method named: below 0 is lower. The intervals count seeds and test "
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
    names = {
        "LS": (CIFAR, "LabelSmoothing"), "ACLS, AR only": (VARIANTS, "ACLS(margin=6.0, condition='always')"),
        "ACLS, CR only": (VARIANTS, "ACLS(margin=6.0, smoothing='constant')"), "ACLS": (CIFAR, ACLS),
        "CRL, ranking": (CIFAR, "CRL"), "CRL, margin": (VARIANTS, "CRL(condition='margin', logit_margin=6.0)"),
        "ACLS, ranking": (VARIANTS, "ACLS(margin=6.0, condition='ranking')"), "ACLS, margin": (CIFAR, ACLS),
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
    runs = sum(len({row.run for row in study.rows}) for study in STUDIES)
    page(
        "README",
        "# Real results: what the methods do on real images",
        f"{runs} networks were trained for this, on two cores, by the commands on the pages of "
        "[CIFAR-10](cifar10.md), [variants of ACLS](variants.md), [Tiny-ImageNet](tiny_imagenet.md) and "
        "[VOC](voc.md). "
        "These are small networks: what they show holds for them, and the sizes of effects will be "
        "others elsewhere. `make results` writes these pages from the stored studies, without training. An answer "
        "says *lower* or *higher* only where the 95 % interval of the difference, over seeds and test images, "
        "leaves out 0.",
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
        "`AutoACLS`, which moves the margin by the validation set after each epoch, against `ACLS` at the "
        f"published margin: ECE {line((AUTO, NONE), (ACLS, NONE))}; NLL "
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
    """The table of the project's README."""
    table = Table(
        ["method", "accuracy %", "ECE %", "after temperature", "confidence minus accuracy", "seeds"], align="l"
    )
    shown = {
        **RIVALS,
        "AdaFocal": "AdaFocal",
        "CutMix": "CutMix",
        "ACLS": ACLS,
        "ACLS, released": RELEASED,
        "AutoACLS": AUTO,
    }
    for title, method in shown.items():
        rows, after = CIFAR.of(method), CIFAR.of(method, T)
        cells = [
            spread([row.result.get(name) or 0.0 for row in group], scale=100)
            for name, group in (("accuracy", rows), ("ece", rows), ("ece", after))
        ]
        gap = 100 * (CIFAR.mean(method, "confidence") - CIFAR.mean(method, "accuracy"))
        table.add(title, *cells, f"{gap:+.1f}", str(len(rows)))
    runs = sum(len({row.run for row in study.rows}) for study in STUDIES)
    return (
        f"{table.markdown()}\n\nCIFAR-10, small networks, n = {CIFAR.rows[0].n:,} test images, mean ± standard "
        f"deviation over seeds. [All {runs} runs](docs/results/README.md), with intervals and what they say of the "
        "paper's claims."
    )


def project_readme() -> None:
    """Put the table where the project's README has its place for it."""
    before, rest = README.read_text(encoding="utf-8").split(BEGIN)
    _, after = rest.split(END)
    write_text(README, f"{before}{BEGIN}\n\n{readme_table()}\n\n{END}{after}")


# -- sweeps ------------------------------------------------------------------------------------------------------------


def sweep() -> dict[str, dict[float, list[Row]]]:
    """The rows of both forms by margin."""
    found: dict[str, dict[float, list[Row]]] = {"paper": {}, "released": {}}
    for form, extra in (("paper", ""), ("released", ", form='released'")):
        for margin in map(float, MARGINS):
            inside = "" if margin == 10.0 else f"margin={margin}"
            method = f"ACLS({inside}{extra if inside else extra.removeprefix(', ')})".removesuffix("()")
            rows = (CIFAR if margin == 6.0 else VARIANTS).of(method)
            if rows:
                found[form][margin] = rows
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
    for form, by_margin in sweep().items():
        for margin, rows in by_margin.items():
            table.add(form, f"{margin:g}", *_numbers(rows), str(len(rows)))
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
            rows = VARIANTS.of(f"ACLS({', '.join([*changed, 'margin=6.0'])})")
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


def _margins() -> object:
    drawn, (ax,) = canvas(height=2.8)
    values = {
        form: {margin: [row.result.get("ece") or 0.0 for row in rows] for margin, rows in by_margin.items()}
        for form, by_margin in sweep().items()
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
        shown[method] = [(row.result.get("accuracy") or 0.0, row.result.get("ece") or 0.0) for row in rows]
    drawn, (ax,) = canvas(width=7.0, height=4.5)
    sweeps.draw_front(sweeps.prepare_front(shown), ax)
    return drawn


def _overlay() -> object:
    drawn, (ax,) = canvas()
    shown = {}
    for title, method in {**RIVALS, "ACLS": ACLS, "released": RELEASED, "AutoACLS": AUTO}.items():
        suite = CIFAR.of(method)[0].result.suite
        assert suite is not None
        shown[title] = suite.bins.reliability()
    reliability.draw_overlay(reliability.prepare_overlay(shown), ax)
    return drawn


def _training_accuracy(study: Study) -> float:
    rows = [RunFiles(study.folder, row.run).text(METRICS).splitlines() for row in study.of("CE")]
    place = rows[0][0].split(",").index("train/accuracy")
    return statistics.fmean(float(lines[-1].split(",")[place]) for lines in rows)


def _mean(rows: Sequence[Row], name: str) -> float:
    return statistics.fmean(row.result.get(name) or 0.0 for row in rows)


def main(*, interactive: bool = True) -> None:
    """Write everything; the interactive pages take most of the time."""
    (HERE / "figures").mkdir(exist_ok=True)
    project_readme()
    cifar_page()
    variants_page()
    small_page(TINY, "tiny_imagenet")
    small_page(VOC, "voc")
    answers_page()
    if interactive:
        for study, name in ((CIFAR, "cifar10"), (TINY, "tiny_imagenet"), (VOC, "voc")):
            write(study.folder, HERE / f"{name}-networks.html", title=study.title)


if __name__ == "__main__":
    main()
