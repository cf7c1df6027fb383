"""Every table and figure of the paper by name: our numbers beside the paper's, and a verdict on each claim."""

from __future__ import annotations

import copy
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from acls.data.dataset import batches
from acls.locks import hold
from acls.losses import REGISTRY, make_loss, table
from acls.metrics.catalogue import metric
from acls.metrics.protocols import protocol
from acls.recipes import Recipe
from acls.report.figures import regulariser, reliability, sweeps
from acls.report.figures.style import canvas, drawn, save
from acls.report.tables import Table, paragraph, spread
from acls.reproduce import published
from acls.reproduce.claims import Claim, Judged, Verdict, judge, keep, summarise, within
from acls.reproduce.experiments import (
    EMBEDDED,
    EXPERIMENTS,
    FORMS,
    MARGINS,
    SCALINGS,
    Experiment,
    Line,
    in_forms,
    label_of,
    lines_of,
)
from acls.reproduce.published import Published
from acls.reproduce.runs import Setup, Study, studies, values_of, with_values
from acls.spec import Spec
from acls.storage import write_text
from acls.study.ranking import Difference, difference, resamples_of
from acls.study.runs import Failed
from acls.study.store import Row
from acls.train import predict_run
from acls.train.folder import open_run
from acls.train.guards import own_generator
from acls.train.session import Session
from acls.train.state import load_state, restore

FIRST, SECOND = FORMS
NEAR = 0.1
"""How far a share of samples may be from the paper's to count as reproduced."""
STEPS = 50
"""Training batches, at most, on which predictions that a step alters are counted."""


@dataclass(frozen=True)
class Judgement:
    """A claim as judged in one regime: on the authors' form of ACLS, and beside it on Eq. 13."""

    regime: str
    claim: str
    key: str
    """The same for the same claim on the same networks, whichever table makes it."""
    verdict: Verdict
    difference: Difference
    beside: Verdict | None = None
    note: str = ""


@dataclass
class Reproduced:
    """A table or figure as reproduced: text to read, files drawn, and the claims as judged."""

    name: str
    title: str
    parts: list[str | Table] = field(default_factory=list)
    """Paragraphs in Markdown, and tables."""
    files: list[Path] = field(default_factory=list)
    judged: list[Judgement] = field(default_factory=list)
    failed: list[Failed] = field(default_factory=list)
    trains: bool = True
    """Whether it is of trained networks, so of seeds."""

    def text(self) -> str:
        """The page of the target in Markdown."""
        parts = [part.markdown() if isinstance(part, Table) else part for part in self.parts]
        return "\n\n".join([f"# {self.title}", *parts]) + "\n"

    def shown(self) -> str:
        """The same for a terminal: aligned tables, and no links to figures."""
        kept = [part for part in self.parts if isinstance(part, Table) or not part.startswith("![")]
        parts = [part.text() if isinstance(part, Table) else paragraph(part.lstrip("# ")) for part in kept]
        return "\n\n".join([self.title, *parts]) + "\n"

    def plain(self) -> dict[str, Any]:
        """Return it as JSON can hold it, with the names of its files."""
        return {
            "name": self.name,
            "title": self.title,
            "files": [f"{self.name}.md", *(file.name for file in self.files)],
            "claims": [{**asdict(one), **asdict(one.difference)} for one in self.judged],
            "failed": [asdict(one) for one in self.failed],
        }


def reproduce(name: str, setup: Setup) -> Reproduced:
    """Run what is not run yet, write ``NAME.md`` and the figures into the output folder, and return it all."""
    with hold(setup.out / "reproduce.lock", wait=setup.wait):
        result = TARGETS[name](name, setup)
        for failure in result.failed:
            result.parts.append(f"{failure.method}, seed {failure.seed}, did not finish: {failure.why}.")
        write_text(setup.out / f"{name}.md", result.text())
        seeds = str(len(setup.seeds)) if result.trains else ""
        keep(setup.out, {"scale": setup.scale, "seeds": seeds, **result.plain()})
        summarise(setup.out, TARGETS)
    return result


def regime(recipe: Recipe, seeds: int) -> str:
    """In which regime a verdict was found: what it may not be carried over from."""
    count = f"{seeds} seed{'s' * (seeds > 1)}"
    return f"{recipe.name}: {recipe.model.name}, {recipe.epochs} epochs, batches of {recipe.batch}, {count}"


# -- tables ------------------------------------------------------------------------------------------------------------


def _table(name: str, setup: Setup) -> Reproduced:
    experiment = EXPERIMENTS[name]
    lines = lines_of(experiment.rows(), setup.form) if setup.form else experiment.lines
    result = Reproduced(name, experiment.title)
    _note_scale(result, setup, experiment.printed)
    first: dict[str, str] = {}
    for paper, study in studies(setup, experiment.printed, lines).items():
        # What stands in for two data sets is one experiment: it is run, and its claims count, once.
        again = first.setdefault(study.recipe.name, paper) != paper
        result.failed += [] if again else study.run()
        rows = {label: study.rows(label, experiment.split) for label in lines}
        result.parts.append(f"## {regime(study.recipe, len(setup.seeds))} (in the paper: {paper})")
        judged_rows = rows
        if experiment.protocol is not None:
            judged_rows = {
                label: [_by(experiment.protocol, study, row) for row in ours] for label, ours in rows.items()
            }
            result.parts.append(
                f"ECE and AECE as the paper measures them, by the protocol {experiment.protocol.name}: "
                f"{experiment.protocol.why}. Claims are judged by these; pooled: as `acls evaluate` measures."
            )
        result.parts.append(_beside(experiment, paper, lines, judged_rows, rows))
        if experiment.ten_bins:
            result.parts += ["With 10 bins:", _ten_bins(experiment, study, rows)]
        result.parts += _temperatures(paper, study, rows)
        if again:
            result.parts.append(
                f"These are the networks of {first[study.recipe.name]} above once more, beside other numbers of the "
                "paper: the claims are judged there."
            )
            continue
        judged = [
            one
            for claim in experiment.claims(paper)
            if (one := _judged(claim, experiment, study, judged_rows, len(setup.seeds))) is not None
        ]
        result.judged += judged
        result.parts.append(_verdicts(judged))
        if name == "tableA":
            _draw_grid(result, setup, rows)
    return result


def _judged(
    claim: Claim, experiment: Experiment, study: Study, rows: Mapping[str, list[Row]], seeds: int
) -> Judgement | None:
    """The claim on the first form of ACLS, and on the second where it is about ACLS."""
    resampled = None if experiment.protocol is not None else resamples_of
    found: dict[str, Judged | None] = {}
    pairs = {form: [label_of(study.lines, row, form) for row in (claim.lower, claim.higher)] for form in FORMS}
    for form, (lower, higher) in pairs.items():
        found[form] = judge(claim, rows[lower], rows[higher], resampled, experiment.accuracy)
    first, second = found[FIRST], found[SECOND] if pairs[FIRST] != pairs[SECOND] else None
    if first is None:
        return None
    how = "" if experiment.protocol is None else experiment.protocol.name
    key = " | ".join([study.recipe.name, *map(study.method, pairs[FIRST]), claim.metric, experiment.split, how])
    lost = first.accuracy
    note = f"loses {-100 * lost.value:.1f} points of accuracy" if lost is not None and first.loses_accuracy else ""
    verdict = None if second is None else second.verdict
    return Judgement(regime(study.recipe, seeds), str(claim), key, first.verdict, first.difference, verdict, note)


def _by(how: Any, study: Study, row: Row) -> Row:
    """The row with ECE and AECE as a protocol has them."""
    found = study.by_protocol(row, how)
    return with_values(row, ece=found["ece"], aece=found["aece"])


def _beside(
    experiment: Experiment,
    paper: str,
    lines: Mapping[str, Line],
    rows: Mapping[str, list[Row]],
    pooled: Mapping[str, list[Row]],
) -> Table:
    right = "acc" if experiment.accuracy == "accuracy" else "mIoU"
    extra = [] if experiment.protocol is None else ["pooled: ECE", "AECE"]
    paper_columns = [f"paper: {right}", "ECE", "AECE"]
    ours_columns = [f"ours: {right}", "ECE", "95 %", "floor", "AECE", "seeds", "n"]
    shown = Table(["method", *paper_columns, *ours_columns, *extra])
    for label, line in lines.items():
        theirs, ours = _printed(experiment.printed[paper][line.row]), rows[label]
        if not ours:
            shown.add(label, *theirs, *["-"] * len([*ours_columns, *extra]))
            continue
        shown.add(
            label,
            *theirs,
            _mean(ours, experiment.accuracy),
            _mean(ours, "ece"),
            _interval(ours),
            "-" if extra else f"{100 * statistics.fmean(values_of(ours, 'ece_floor')):.2f}",
            _mean(ours, "aece"),
            str(len(ours)),
            str(ours[0].n),
            *((_mean(pooled[label], "ece"), _mean(pooled[label], "aece")) if extra else ()),
        )
    return shown


def _printed(row: Published) -> list[str]:
    return ["-" if value is None else f"{value:.2f}" for value in row]


def _ten_bins(experiment: Experiment, study: Study, rows: Mapping[str, list[Row]]) -> Table:
    shown = Table(["method", "paper: ECE", "AECE", "ours: ECE", "AECE", "seeds"])
    ten = replace(protocol("pooled"), bins=10)
    for label, line in study.lines.items():
        ours = [_by(ten, study, row) for row in rows[label]]
        theirs = _printed(experiment.ten_bins[line.row])[1:]
        shown.add(label, *theirs, _mean(ours, "ece"), _mean(ours, "aece"), str(len(ours)))
    return shown


def _temperatures(paper: str, study: Study, rows: Mapping[str, list[Row]]) -> list[str]:
    """The temperatures that were fitted, beside the footnote's."""
    fitted = {
        name: [study.temperature(row) for row in rows[label]]
        for name in SCALINGS
        if (label := f"CE + TS ({name})") in rows and rows[label]
    }
    if not fitted:
        return []
    ours = "; ".join(f"{name}, {', '.join(f'{one:.2f}' for one in each)}" for name, each in fitted.items())
    theirs = published.TEMPERATURES.get(paper)
    return [f"Temperature, one per seed: {ours}. The paper's: {'not printed' if theirs is None else theirs}."]


def _mean(rows: Sequence[Row], name: str) -> str:
    return spread(values_of(rows, name), scale=metric(name).scale, decimals=metric(name).decimals) or "-"


def _interval(rows: Sequence[Row]) -> str:
    """The mean interval of the seeds: what the test samples alone make uncertain."""
    ends = [found for row in rows if (found := row.result.intervals.get("ece")) is not None]
    if not ends:
        return "-"
    low, high = (statistics.fmean(end) for end in zip(*ends, strict=True))
    return f"{100 * low:.2f} .. {100 * high:.2f}"


def _verdicts(judged: Sequence[Judgement]) -> Table:
    header = ["claim", f"verdict on {FIRST}", "difference %", "95 %", "seeds", f"verdict on {SECOND}", "note"]
    shown = Table(header, align="llrrrll")
    for one in judged:
        found = one.difference
        ends = f"{100 * found.low:.2f} .. {100 * found.high:.2f}" if found.seeds > 1 else "unknown with one seed"
        shown.add(
            one.claim, one.verdict, f"{100 * found.value:+.2f}", ends, str(found.seeds), one.beside or "", one.note
        )
    return shown


def _note_scale(result: Reproduced, setup: Setup, papers: Iterable[str]) -> None:
    if setup.scale == "paper":
        return
    recipes = {paper: setup.recipe(paper) for paper in papers}
    note = "A CPU-sized experiment: compare its numbers with each other, not with the paper's."
    names = dict.fromkeys(recipe.name for recipe in recipes.values() if recipe is not None)
    for stand_in in [name for name in names if name in EMBEDDED.values()]:
        note += f" {stand_in} stands in for data that is not at hand (--data NAME=PATH)."
    left = [paper for paper, recipe in recipes.items() if recipe is None]
    if left:
        note += f" Left out, as they have no sibling of this size: {', '.join(left)}."
    result.parts.append(note)


def _draw_grid(result: Reproduced, setup: Setup, rows: Mapping[str, list[Row]]) -> None:
    figure, axes = canvas(1, 2, width=7.0)
    for form, ax in zip(FORMS, axes, strict=True):
        values = {
            (first, second): found
            for first in published.LAMBDA_1
            for second in published.LAMBDA_2
            if (found := values_of(rows[f"λ1 {first:g}, λ2 {second:g} ({form})"], "ece"))
        }
        if values:
            sweeps.draw_grid(sweeps.prepare_grid(values), ax)
            ax.set_title(form)
    _saved(result, setup, figure)


def _table2(name: str, _: Setup) -> Reproduced:
    result = Reproduced(name, "Table 2: each method as label smoothing, as printed and as it is", trains=False)
    header = ["method", "type", "", "pivot", "f at the pivot", "C at the pivot", "f elsewhere", "C elsewhere"]
    right = {row.method.partition("(")[0]: row for row in table(kind() for kind in REGISTRY.values())}
    shown = Table(header, align="l" * len(header))
    for method, printed in published.TABLE_2.items():
        kind = REGISTRY[method].about.kind
        shown.add(method, kind, "printed", "ŷ", *printed)
        row = right.get(method)
        rule = published.BATCH_RULES[method] if row is None else (row.f_pivot, row.c_pivot, row.f_others, row.c_others)
        shown.add(method, kind, "right", "ŷ" if row is None else row.pivot, *rule)
    released = table([make_loss("ACLS(form=released)")])[0]
    sides = (released.f_pivot, released.c_pivot, released.f_others, released.c_others)
    shown.add("ACLS", released.kind, FIRST, released.pivot, *sides)
    ours = Table([part for part in header if part], align="l" * (len(header) - 1))
    for method, row in right.items():
        if method not in published.TABLE_2:
            ours.add(method, row.kind, row.pivot, row.f_pivot, row.c_pivot, row.f_others, row.c_others)
    result.parts += [
        "The label is lowered by f C at the pivot (ŷ the predicted, y the true class) and raised by f C elsewhere. "
        "What is wrong with the printed rows, and the tests that show it, are in the errata. The right row of ACLS is "
        "that of the default form.",
        shown,
        "The other methods of this package:",
        ours,
    ]
    return result


# -- figures -----------------------------------------------------------------------------------------------------------


def _trained(result: Reproduced, setup: Setup, papers: Iterable[str], lines: Mapping[str, Line]) -> Iterator[Study]:
    """The studies of some lines on the paper's recipes, trained, each under a heading that names its regime."""
    _note_scale(result, setup, papers)
    for study in studies(setup, papers, lines).values():
        result.failed += study.run()
        result.parts.append(f"## {regime(study.recipe, len(setup.seeds))}")
        yield study


def _figure1(name: str, setup: Setup) -> Reproduced:
    result = Reproduced(name, "Figure 1: smoothing behaviours", trains=False)
    result.parts.append(
        "The label that each kind of method trains an overconfident prediction towards, found by autograd. Panels (a) "
        "to (f) are the paper's; (g) is ACLS, and (h) and (i) show what the label of the predicted class is lowered "
        "by: a parabola in the confidence for MDCA and CRL, so 0 where the network is surest, and a line in the logit "
        "gap for ACLS."
    )
    _saved(result, setup, regulariser.smoothing_figure())
    return result


def _figure2(name: str, setup: Setup) -> Reproduced:
    rows = ("CE", "LS", "CPC", "MDCA", "MbLS", "CRL", "ACLS")
    papers = ("tiny_imagenet_resnet50", "imagenet_resnet50")
    result = Reproduced(name, "Figure 2: reliability diagrams")
    result.parts.append(
        f"Of the first seed; ACLS is the {FIRST}. Bars of accuracy have 95 % intervals, and so has each ECE."
    )
    for study in _trained(result, setup, papers, lines_of(rows)):
        figure, axes = canvas(1, len(rows), width=2.1 * len(rows), height=2.6)
        for label, ax in zip(rows, axes, strict=True):
            found = study.rows(label_of(study.lines, label, FIRST))
            if not found:
                ax.axis("off")
                continue
            suite = found[0].result.suite
            assert suite is not None  # there are predictions
            reliability.draw(data := reliability.prepare(suite.bins.reliability()), ax)
            ends = _interval(found[:1]).replace(" .. ", " to ")
            ax.set_title(f"{label}: ECE {100 * data.ece:.2f} %\n({ends})", fontsize="small")
            ax.legend().remove()
            if ax is not axes[0]:
                ax.set_ylabel("")
        _saved(result, setup, figure, study.recipe.name)
    return result


def _figure3(name: str, setup: Setup) -> Reproduced:
    rows = ("ACLS, ranking", "ACLS, margin")
    papers = ("tiny_imagenet_resnet50",)
    result = Reproduced(name, "Figure 3: values of the regulariser, and the share of samples where it is 0")
    for study in _trained(result, setup, papers, lines_of(rows, setup.form)):
        shown = Table(["condition", "paper: inactive %", "ours: inactive %", "seeds", "largest gap, median", "verdict"])
        figure, axes = canvas(1, len(study.lines), width=2.6 * len(study.lines), height=2.8)
        for (label, line), ax in zip(study.lines.items(), axes, strict=True):
            found = study.rows(label)
            if not found:
                continue
            gaps, acts = zip(*(_activity(study, row, label) for row in found), strict=True)
            regulariser.draw_activity(acts[0], ax)
            shares = [one.inactive for one in acts]
            ours = [with_values(row, accuracy=share) for row, share in zip(found, shares, strict=True)]
            paper = published.INACTIVE_SHARE[line.row] / 100
            off = difference(ours, [with_values(row, accuracy=paper) for row in found], "accuracy")
            assert off is not None  # the seeds are the same
            verdict = within(off, NEAR)
            if line.form == FIRST:
                told = f"{line.row}: the regulariser is 0 for {100 * paper:.0f} % of samples, to within 10 points"
                key = f"{study.recipe.name} | {study.method(label)} | inactive"
                result.judged.append(Judgement(regime(study.recipe, len(found)), told, key, verdict, off))
            mean = f"{100 * statistics.fmean(shares):.1f}"
            shown.add(label, f"{100 * paper:.0f}", mean, str(len(found)), f"{gaps[0]:.1f}", verdict)
        margin = study.recipe.loss.protocol.get("margin", 10.0)
        result.parts += [
            shown,
            "The regulariser with the margin condition is 0 where no logit lies further below the largest than the "
            f"margin, {margin:g}: a network whose median largest gap is below that, as a small one trained for a few "
            "epochs has it, is hardly regularised. A share counts as the paper's to within 10 points.",
        ]
        _saved(result, setup, figure, study.recipe.name)
    return result


def _figure_a(name: str, setup: Setup) -> Reproduced:
    lines = {
        label: line
        for m in MARGINS
        for label, line in in_forms(f"margin {m:g}", Line(Spec("ACLS", {"margin": m}), row=f"{m:g}")).items()
    }
    papers = ("tiny_imagenet_resnet50",)
    result = Reproduced(name, "Figure A: ECE against the margin, on the validation split")
    for study in _trained(result, setup, papers, lines):
        shown = Table(["margin", "form", "acc", "ECE", "95 %", "seeds"], align="ll")
        curves: dict[str, dict[float, list[float]]] = {}
        for label, line in lines.items():
            if found := study.rows(label, "val"):
                curves.setdefault(line.form, {})[float(line.row)] = values_of(found, "ece")
                numbers = (_mean(found, "accuracy"), _mean(found, "ece"), _interval(found), str(len(found)))
                shown.add(line.row, line.form, *numbers)
        result.parts.append(shown)
        figure = drawn(sweeps.draw_sweep, sweeps.prepare_sweep(curves), height=2.6)
        _saved(result, setup, figure, study.recipe.name)
    return result


def _statistics(name: str, setup: Setup) -> Reproduced:
    """The two side statistics of the text."""
    papers = ("tiny_imagenet_resnet50",)
    result = Reproduced(name, "Statistics of the text")
    for study in _trained(result, setup, papers, lines_of(("ACLS", "FLSD"), setup.form)):
        shown = Table(["statistic", "method", "paper %", "ours %", "seeds"], align="ll")
        for label in study.lines:
            rows = study.rows(label)
            flsd = label == "FLSD"
            told = "gamma = 3 at the end of training" if flsd else "prediction altered by the regulariser's step"
            paper = published.GAMMA_THREE_SHARE if flsd else published.ALTERED_SHARE
            ours = [100 * (_gamma_three(study, row) if flsd else altered(study.folder(row).path)) for row in rows]
            if ours:
                shown.add(told, label, f"{paper:g}", f"{statistics.fmean(ours):.2f}", str(len(ours)))
        result.parts += [
            shown,
            "Altered: the share of training samples, in batches of the last epoch, that the network predicts otherwise "
            "after the optimiser's step with the regulariser than after the same step without it, from the same "
            "weights and momenta.",
        ]
    return result


def altered(run: Path) -> float:
    """The share of training samples whose prediction the regulariser alters in one step, at the end of training."""
    folder, recipe = open_run(run)
    with own_generator():
        session = Session(recipe)
        restore(session, load_state(folder.resume))
        before = copy.deepcopy((session.model.state_dict(), session.optimizer.state_dict(), session.loss.state_dict()))
        plain = make_loss("CE", ignore_index=session.data.void).to(session.fabric.device)
        draws = session.draws(recipe.epochs - 1)[:STEPS]
        changed = total = 0
        for number, batch in enumerate(batches(session.data.train, draws)):
            predicted = []
            for loss in (plain, session.loss):
                session.model.load_state_dict(before[0])
                session.optimizer.load_state_dict(copy.deepcopy(before[1]))
                own, session.loss = session.loss, loss
                session.model.train()
                session.step(batch, recipe.epochs - 1, number)
                session.loss = own
                session.model.eval()
                with torch.no_grad():
                    predicted.append(session.model(batch[0].to(session.fabric.device)).argmax(1).cpu())
            session.loss.load_state_dict(before[2])
            counted = batch[1] != session.data.void
            changed += int(((predicted[0] != predicted[1]) & counted).sum())
            total += int(counted.sum())
    return changed / max(total, 1)


def _activity(study: Study, row: Row, label: str) -> tuple[float, regulariser.Activity]:
    """The median largest logit gap of the training samples at the end, and the regulariser's values there."""
    folder = study.folder(row)
    outputs = predict_run(folder.path, part="train")
    assert outputs.scores is not None
    _, recipe = open_run(folder.path)
    loss = recipe.loss.build()
    loss.prepare(n_train=len(outputs.labels), n_classes=outputs.scores.shape[1])
    loss.load_state_dict(load_state(folder.resume)["loss"])
    loss.reduction = "none"
    index = torch.arange(len(outputs.labels)) if loss.needs_index else None
    low, high = outputs.scores.aminmax(dim=1)
    values = regulariser.penalties(loss, outputs.scores, outputs.labels, index)
    return float((high - low).median()), regulariser.prepare_activity(values, label)


def _gamma_three(study: Study, row: Row) -> float:
    outputs = predict_run(study.folder(row).path, part="train")
    assert outputs.scores is not None
    p_true = outputs.scores.softmax(1).gather(1, outputs.labels.unsqueeze(1))
    return float((p_true >= 0.2).double().mean())


def _saved(result: Reproduced, setup: Setup, figure: Any, suffix: str = "") -> None:
    path = setup.out / (f"{result.name}-{suffix}.svg" if suffix else f"{result.name}.svg")
    save(figure, path)
    save(figure, path.with_suffix(".png"))
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
