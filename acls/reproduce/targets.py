"""Every table and figure of the paper by name: our numbers beside the paper's, and a verdict on each claim."""

from __future__ import annotations

import csv
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from acls.losses import REGISTRY, table
from acls.metrics.catalogue import metric
from acls.report.figures import activity, heatmap, margins, reliability, smoothing
from acls.report.figures.style import canvas, save
from acls.report.tables import Table
from acls.reproduce import published, summary
from acls.reproduce.claims import Judged, judge
from acls.reproduce.experiments import EMBEDDED, EXPERIMENTS, LINES, MARGINS, Experiment, Line
from acls.reproduce.runs import Setup, Study, studies
from acls.spec import Spec
from acls.storage import write_text
from acls.study.runs import Failed, evaluated
from acls.study.store import Number, Row
from acls.train import predict_run
from acls.train.checkpoint import load_state
from acls.train.folder import open_run


@dataclass
class Reproduced:
    """What a table or figure came to: text to read, files drawn, and the claims as judged."""

    name: str
    title: str
    parts: list[str] = field(default_factory=list)
    """Markdown."""
    files: list[Path] = field(default_factory=list)
    judged: list[tuple[str, Judged]] = field(default_factory=list)
    """With the recipe that each was judged on."""
    failed: list[Failed] = field(default_factory=list)
    trains: bool = True
    """Whether it is of trained networks, so of seeds."""

    def text(self) -> str:
        """The page of the target in Markdown."""
        return "\n\n".join([f"# {self.title}", *self.parts]) + "\n"

    def plain(self) -> dict[str, Any]:
        """Return it as JSON can hold it, with the names of its files."""
        return {
            "name": self.name,
            "title": self.title,
            "files": [f"{self.name}.md", *(file.name for file in self.files)],
            "claims": [
                {"recipe": recipe, "claim": str(one.claim), "verdict": one.verdict, **asdict(one.difference)}
                for recipe, one in self.judged
            ],
            "failed": [asdict(one) for one in self.failed],
        }


def reproduce(name: str, setup: Setup) -> Reproduced:
    """Run what is not run yet, write ``NAME.md`` and the figures into the output folder, and return it all."""
    result = TARGETS[name](name, setup)
    for failure in result.failed:
        result.parts.append(f"{failure.method}, seed {failure.seed}, did not finish: {failure.why}.")
    write_text(setup.out / f"{name}.md", result.text())
    seeds = str(len(setup.seeds)) if result.trains else ""
    summary.keep(setup.out, {"scale": setup.scale, "seeds": seeds, **result.plain()})
    summary.summarise(setup.out, TARGETS)
    return result


# -- tables ------------------------------------------------------------------------------------------------------------


def _table(name: str, setup: Setup) -> Reproduced:
    experiment = EXPERIMENTS[name]
    result = Reproduced(name, experiment.title)
    _note_scale(result, setup, experiment.printed)
    first: dict[str, str] = {}
    for paper, study in studies(setup, experiment.printed, experiment.lines).items():
        # What stands in for two data sets is one experiment: it is run, and its claims count, once.
        again = first.setdefault(study.recipe.name, paper) != paper
        result.failed += [] if again else study.run()
        rows = {label: study.rows(label, experiment.split) for label in experiment.lines}
        result.parts.append(f"## {study.recipe.name} (in the paper: {paper})")
        result.parts.append(_beside(experiment, paper, rows).markdown())
        if again:
            result.parts.append(
                f"These are the networks of {first[study.recipe.name]} above once more, beside other numbers of the "
                "paper: the claims are judged there."
            )
            continue
        claimed = [judge(claim, rows[claim.lower], rows[claim.higher], study.resampled) for claim in experiment.claims]
        judged = [one for one in claimed if one is not None]
        result.judged += [(study.recipe.name, one) for one in judged]
        result.parts.append(_verdicts(judged).markdown())
        if name == "tableA":
            _draw_grid(result, setup, rows)
    return result


def _beside(experiment: Experiment, recipe: str, rows: dict[str, list[Row]]) -> Table:
    right = "acc" if experiment.accuracy == "accuracy" else "mIoU"
    paper = [f"paper: {right}", "ECE", "AECE"]
    shown = Table(["method", *paper, f"ours: {right}", "ECE", "95 %", "floor", "AECE", "seeds", "n"])
    for label, printed in experiment.printed[recipe].items():
        theirs = ["-" if value is None else f"{value:.2f}" for value in printed]
        ours = rows[label]
        if not ours:
            shown.add(label, *theirs, *["-"] * 7)
            continue
        ece = [row.metrics["ece"] for row in ours]
        shown.add(
            label,
            *theirs,
            _mean(ours, experiment.accuracy),
            _mean(ours, "ece"),
            _interval(ece),
            f"{100 * statistics.fmean(one['floor'] or 0.0 for one in ece):.2f}",
            _mean(ours, "aece"),
            str(len(ours)),
            str(ours[0].n),
        )
    return shown


def _mean(rows: Sequence[Row], name: str) -> str:
    known = _values(rows, name)
    if not known:
        return "-"
    told = metric(name).show(statistics.fmean(known))
    return told if len(known) == 1 else f"{told} ± {metric(name).show(statistics.stdev(known))}"


def _values(rows: Sequence[Row], name: str) -> list[float]:
    values = [row.metrics[name]["value"] for row in rows if name in row.metrics]
    return [value for value in values if value is not None]


def _interval(of: Sequence[Number]) -> str:
    """The mean interval of the seeds: what the test samples alone make uncertain."""
    ends = [(one["low"], one["high"]) for one in of if one["low"] is not None and one["high"] is not None]
    if not ends:
        return "-"
    low, high = (statistics.fmean(end) for end in zip(*ends, strict=True))
    return f"{100 * low:.2f} .. {100 * high:.2f}"


def _verdicts(judged: Sequence[Judged]) -> Table:
    shown = Table(["claim", "verdict", "difference %", "95 %", "seeds"], align="ll")
    for one in judged:
        found = one.difference
        ends = f"{100 * found.low:.2f} .. {100 * found.high:.2f}" if found.seeds > 1 else "unknown with one seed"
        shown.add(str(one.claim), one.verdict, f"{100 * found.value:+.2f}", ends, str(found.seeds))
    return shown


def _note_scale(result: Reproduced, setup: Setup, papers: Iterable[str]) -> None:
    if setup.scale == "paper":
        return
    recipes = {paper: setup.recipe(paper) for paper in papers}
    note = "A CPU-sized experiment: its numbers are to be compared with each other, not with the paper's."
    names = dict.fromkeys(recipe.name for recipe in recipes.values() if recipe is not None)
    for stand_in in [name for name in names if name in EMBEDDED.values()]:
        note += f" {stand_in} stands in for data that is not at hand (--data NAME=PATH)."
    left = [paper for paper, recipe in recipes.items() if recipe is None]
    if left:
        note += f" Left out, as they have no sibling of this size: {', '.join(left)}."
    result.parts.append(note)


def _draw_grid(result: Reproduced, setup: Setup, rows: dict[str, list[Row]]) -> None:
    values = {
        (first, second): found
        for first in published.LAMBDA_1
        for second in published.LAMBDA_2
        if (found := _values(rows[f"λ1 {first:g}, λ2 {second:g}"], "ece"))
    }
    drawn, (ax,) = canvas()
    heatmap.draw(heatmap.prepare(values), ax)
    _saved(result, setup, drawn)


def _table2(name: str, _: Setup) -> Reproduced:
    result = Reproduced(name, "Table 2: each method as label smoothing, corrected", trains=False)
    header = ["method", "type", "pivot", "f at the pivot", "C at the pivot", "f elsewhere", "C elsewhere"]
    shown = Table(header, align="l" * len(header))
    for row in table(kind() for kind in REGISTRY.values()):
        sides = (row.f_pivot, row.c_pivot, row.f_others, row.c_others)
        shown.add(row.method.removesuffix("()"), row.kind, row.pivot, *sides)
    result.parts += [
        "The label is lowered by f C at the pivot (ŷ the predicted, y the true class) and raised by f C elsewhere. "
        "What the paper's own table has wrong, and the tests that show it, are in the errata.",
        shown.markdown(),
    ]
    return result


# -- figures -----------------------------------------------------------------------------------------------------------


def _figure1(name: str, setup: Setup) -> Reproduced:
    result = Reproduced(name, "Figure 1: smoothing behaviours", trains=False)
    result.parts.append(
        "The label that each kind of method trains an overconfident prediction towards, found by autograd, and what "
        "the label of the predicted class is lowered by: a parabola in the confidence for MDCA and CRL, so 0 where the "
        "network is surest, and a line in the logit gap for ACLS."
    )
    _saved(result, setup, smoothing.figure())
    return result


def _figure2(name: str, setup: Setup) -> Reproduced:
    labels = ("CE", "LS", "CPC", "MDCA", "MbLS", "CRL", "ACLS")
    papers = ("tiny_imagenet_resnet50", "imagenet_resnet50")
    result = Reproduced(name, "Figure 2: reliability diagrams")
    _note_scale(result, setup, papers)
    for study in studies(setup, papers, {label: LINES[label] for label in labels}).values():
        result.failed += study.run()
        drawn, (*axes, key) = canvas(2, 4, width=9.0, height=5.0)
        key.axis("off")
        for label, ax in zip(labels, axes, strict=True):
            rows = study.rows(label)
            if not rows:
                ax.axis("off")
                continue
            suite = evaluated(study.predictions(rows[0])).suite
            assert suite is not None  # there are predictions
            found = reliability.prepare(suite.bins.reliability())
            reliability.draw(found, ax)
            ax.set_title(f"{label}: ECE {100 * found.ece:.2f} %", fontsize="medium")
            # One for all, beside the panels: in one of this size it would hide the bars.
            key.legend(*ax.get_legend_handles_labels(), loc="center", title=f"n = {found.n:,}", frameon=False)
            ax.legend().remove()
        _saved(result, setup, drawn, study.recipe.name)
    return result


def _figure3(name: str, setup: Setup) -> Reproduced:
    labels = ("ACLS, ranking", "ACLS, margin")
    papers = ("tiny_imagenet_resnet50",)
    result = Reproduced(name, "Figure 3: values of the regulariser, and the share of samples where it is 0")
    _note_scale(result, setup, papers)
    shown = Table(["condition", "paper: inactive %", "ours: inactive %", "samples"])
    for study in studies(setup, papers, {label: LINES[label] for label in labels}).values():
        result.failed += study.run()
        drawn, axes = canvas(1, 2, width=7.0, height=2.8)
        for label, ax in zip(labels, axes, strict=True):
            rows = study.rows(label)
            if not rows:
                continue
            found = activity.prepare(_penalties(study, rows[0]), label)
            activity.draw(found, ax)
            inactive = f"{100 * found.inactive:.1f}"
            shown.add(label, f"{published.INACTIVE_SHARE[label]:.0f}", inactive, str(found.n))
        result.parts.append(shown.markdown())
        _saved(result, setup, drawn, study.recipe.name)
    return result


def _figure_a(name: str, setup: Setup) -> Reproduced:
    lines = {f"margin {m:g}": Line(Spec("ACLS", {"margin": m})) for m in MARGINS}
    papers = ("tiny_imagenet_resnet50",)
    result = Reproduced(name, "Figure A: ECE against the margin, on the validation split")
    _note_scale(result, setup, papers)
    for study in studies(setup, papers, lines).values():
        result.failed += study.run()
        rows = {m: study.rows(f"margin {m:g}", "val") for m in MARGINS}
        shown = Table(["margin", "acc", "ECE", "95 %", "seeds"])
        for m, found in rows.items():
            if found:
                ece = [row.metrics["ece"] for row in found]
                shown.add(f"{m:g}", _mean(found, "accuracy"), _mean(found, "ece"), _interval(ece), str(len(found)))
        result.parts.append(shown.markdown())
        drawn, (ax,) = canvas(height=2.6)
        margins.draw(margins.prepare({"ACLS": {m: _values(found, "ece") for m, found in rows.items() if found}}), ax)
        _saved(result, setup, drawn, study.recipe.name)
    return result


def _statistics(name: str, setup: Setup) -> Reproduced:
    """The two side statistics of the text."""
    papers = ("tiny_imagenet_resnet50",)
    result = Reproduced(name, "Statistics of the text")
    _note_scale(result, setup, papers)
    shown = Table(["statistic", "paper %", "ours %", "seeds"])
    for study in studies(setup, papers, {label: LINES[label] for label in ("ACLS", "FLSD")}).values():
        result.failed += study.run()
        altered = [100 * _last_epoch(study, row)["val/regulariser_flips"] for row in study.rows("ACLS")]
        gamma = [100 * _gamma_three(study, row) for row in study.rows("FLSD")]
        for told, paper, ours in (
            ("predictions that the regulariser of ACLS alters, last epoch", published.ALTERED_SHARE, altered),
            ("samples with gamma = 3 in FLSD, end of training", published.GAMMA_THREE_SHARE, gamma),
        ):
            if ours:
                shown.add(told, f"{paper:g}", f"{statistics.fmean(ours):.2f}", str(len(ours)))
    result.parts.append(shown.markdown())
    return result


def _penalties(study: Study, row: Row) -> torch.Tensor:
    """The regulariser's value at every training sample, with the loss as it was at the end of training."""
    folder = study.folder(row)
    outputs = predict_run(folder.path, part="train")
    assert outputs.scores is not None
    _, recipe = open_run(folder.path)
    loss = recipe.loss.build()
    loss.prepare(n_train=len(outputs.labels), n_classes=outputs.scores.shape[1])
    loss.load_state_dict(load_state(folder.resume)["loss"])
    loss.reduction = "none"
    index = torch.arange(len(outputs.labels)) if loss.needs_index else None
    return activity.penalties(loss, outputs.scores, outputs.labels, index)


def _gamma_three(study: Study, row: Row) -> float:
    outputs = predict_run(study.folder(row).path, part="train")
    assert outputs.scores is not None
    p_true = outputs.scores.softmax(1).gather(1, outputs.labels.unsqueeze(1))
    return float((p_true >= 0.2).double().mean())


def _last_epoch(study: Study, row: Row) -> dict[str, float]:
    with open(study.folder(row).metrics, encoding="utf-8", newline="") as file:
        *_, last = csv.DictReader(file)
    return {name: float(value) for name, value in last.items() if value}


def _saved(result: Reproduced, setup: Setup, drawn: Any, suffix: str = "") -> None:
    path = setup.out / (f"{result.name}-{suffix}.svg" if suffix else f"{result.name}.svg")
    save(drawn, path)
    save(drawn, path.with_suffix(".png"))
    result.files.append(path)
    result.parts.append(f"![{result.title}]({path.with_suffix('.png').name})")


TARGETS: dict[str, Callable[[str, Setup], Reproduced]] = {
    "table1": _table,
    "table2": _table2,
    "table3": _table,
    "table4": _table,
    "table5": _table,
    "table6": _table,
    "tableA": _table,
    "tableB": _table,
    "figure1": _figure1,
    "figure2": _figure2,
    "figure3": _figure3,
    "figureA": _figure_a,
    "statistics": _statistics,
}
