"""All tables and figures of the paper by name: our numbers and those of the paper, and a verdict on each claim."""

from __future__ import annotations

import copy
import json
import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from acls.data.dataset import batches
from acls.losses import REGISTRY, make_loss, table
from acls.metrics.protocols import protocol
from acls.metrics.significance import over_seeds
from acls.options import to_plain
from acls.report.figures import regulariser, reliability, sweeps
from acls.report.figures.style import SMALL, canvas, drawn, save
from acls.report.results import mean_text, metric_values
from acls.report.tables import Table, paragraph, width
from acls.reproduce import experiments, published
from acls.reproduce.claims import Claim, Judged, judge, summarise, verdict_on
from acls.reproduce.experiments import FORMS, Experiment, MethodLine, in_forms, label_of, lines_of
from acls.reproduce.published import Published
from acls.reproduce.runs import Setup, Study
from acls.shown import Shown
from acls.spec import Spec
from acls.storage import hold, write_text
from acls.study.runs import Failed
from acls.study.store import Row
from acls.train import predict_run
from acls.train.folder import load_state, open_run, restore
from acls.train.guards import isolated
from acls.train.session import Session

FIRST, SECOND = FORMS
NEAR = 0.1
"""Largest difference between a share of samples and the paper's value that counts as reproduced."""
_TINY = ("tiny_imagenet_resnet50",)
STEPS = 50
"""Largest number of training batches for counting the predictions that a step changes."""


@dataclass(repr=False)
class Reproduced(Shown):
    """A reproduced table or figure: its text, its figure files, and the judged claims."""

    name: str
    title: str
    setup: Setup
    parts: list[str | Table] = field(default_factory=list)
    """Paragraphs in Markdown, and tables."""
    files: list[Path] = field(default_factory=list)
    judged: list[Judged] = field(default_factory=list)
    failed: list[Failed] = field(default_factory=list)
    seeds: int | None = None
    """The number of seeds, if it uses trained networks."""

    def text(self) -> str:
        """Return the page of the target in Markdown."""
        parts = [part.markdown() if isinstance(part, Table) else part for part in self.parts]
        return "\n\n".join([f"# {self.title}", *parts]) + "\n"

    def shown(self) -> str:
        """Return the page for a terminal: with aligned tables, and without links to figures."""
        kept = [part for part in self.parts if isinstance(part, Table) or not part.startswith("![")]
        parts = [part.fitted(width()) if isinstance(part, Table) else paragraph(part.lstrip("# ")) for part in kept]
        return "\n\n".join([self.title, *parts]) + "\n"

    def plain(self) -> dict[str, Any]:
        """Return the content as plain values for JSON, with the names of its files."""
        return {
            "name": self.name,
            "title": self.title,
            "files": [f"{self.name}.md", *(file.name for file in self.files)],
            "claims": [{**asdict(one), **asdict(one.difference)} for one in self.judged],
            "failed": [asdict(one) for one in self.failed],
        }

    def keep(self, figure: Any, suffix: str = "") -> None:
        """Save a figure in two file formats and add it to the page."""
        path = self.setup.out / (f"{self.name}-{suffix}.svg" if suffix else f"{self.name}.svg")
        save(figure, path)
        save(figure, path.with_suffix(".png"))
        self.files.append(path)
        self.parts.append(f"![{self.title}]({path.with_suffix('.png').name})")

    def trained(self, papers: Iterable[str], lines: Mapping[str, MethodLine]) -> Iterator[tuple[str, Study, str]]:
        """Train some lines for the paper's recipes; yield each study after adding a heading that names its regime.

        If one data set replaces two data sets of the paper, it is one experiment, which is trained and judged once. The
        third item is the recipe of the paper under which it was reported first, or empty.
        """
        recipes = {paper: self.setup.recipe(paper) for paper in papers}
        known = {paper: recipe for paper, recipe in recipes.items() if recipe is not None}
        if self.setup.scale != "paper":
            note = "A CPU-sized experiment: compare its numbers with each other, not with the paper's."
            embedded = (recipe.name for paper, recipe in known.items() if recipe.name == experiments.SMALL[paper][1])
            for name in dict.fromkeys(embedded):
                note += f" {name} is used instead of data that was not given (--data NAME=PATH)."
            if left := [paper for paper in recipes if paper not in known]:
                note += f" Left out, because they have no version of this size: {', '.join(left)}."
            self.parts.append(note)
        self.seeds, first = len(self.setup.seeds), dict[str, str]()
        for paper, recipe in known.items():
            study, again = Study(self.setup, recipe, lines), first.setdefault(recipe.name, paper)
            if again == paper:
                self.failed += study.run()
            self.parts.append(f"## {study.regime} (in the paper: {paper})")
            yield paper, study, "" if again == paper else again


def papers_of(name: str) -> tuple[str, ...]:
    """Return the names of the paper's recipes that a target trains."""
    others = {"table2": (), "figure1": (), "figure2": (*_TINY, "imagenet_resnet50")}
    return tuple(experiments.EXPERIMENTS[name].printed) if name in experiments.EXPERIMENTS else others.get(name, _TINY)


def reproduce(name: str, setup: Setup) -> Reproduced:
    """Run the missing trainings, write ``NAME.md`` and the figures to the output folder, and return the result."""
    with hold(setup.out / "reproduce.lock", wait=setup.wait):
        title, fill = TARGETS[name]
        result = Reproduced(name, title, setup)
        fill(result)
        for failure in result.failed:
            result.parts.append(f"{failure.method}, seed {failure.seed}, did not finish: {failure.why}.")
        write_text(setup.out / f"{name}.md", result.text())
        record = {"scale": setup.scale, "seeds": str(result.seeds or ""), **result.plain()}
        write_text(setup.out / f"{name}.json", json.dumps(to_plain(record), indent=1) + "\n")
        summarise(setup.out, TARGETS)
    return result


# -- tables ------------------------------------------------------------------------------------------------------------


def _table(result: Reproduced) -> None:
    experiment = experiments.EXPERIMENTS[result.name]
    for paper, study, again in result.trained(experiment.printed, experiment.lines(result.setup.form)):
        pooled = {label: study.rows(label, experiment.split) for label in study.lines}
        rows, how = pooled, experiment.protocol
        if how is not None:
            rows = {label: [study.by_protocol(row, how) for row in ours] for label, ours in pooled.items()}
            result.parts.append(
                f"ECE and AECE as the paper measures them, by the protocol {how.name}: {how.why}. Claims are judged by "
                "these, with intervals from resamples of whole batches; pooled: as `acls evaluate` measures, over n "
                "sampled pixels, the background among them."
            )
        result.parts.append(_beside(experiment, paper, study, rows, pooled))
        if experiment.ten_bins:
            about = "With 10 bins, the only ones that Patra's numbers are printed with; claims are judged with 15:"
            result.parts += [about, _ten_bins(experiment, study, rows)]
        result.parts += _temperatures(paper, study, rows)
        if again:
            result.parts.append(
                f"These are the networks of {again} above again, beside other numbers of the paper: the claims are "
                "judged there."
            )
            continue
        judged = list(filter(None, (_judged(claim, experiment, study, rows) for claim in experiment.claims(paper))))
        result.judged += judged
        if not judged:
            continue
        result.parts.append(_columns(study, how is None))
        result.parts.append(_verdicts(judged))
        if result.name == "tableA":
            result.keep(_grids(study, rows))


def _judged(claim: Claim, experiment: Experiment, study: Study, rows: Mapping[str, list[Row]]) -> Judged | None:
    """Judge a claim on the first form of ACLS, and also on the second if the claim is about ACLS."""
    pairs = [[label_of(study.lines, row, form) for row in (claim.lower, claim.higher)] for form in FORMS]
    first, second = (judge(claim, rows[lower], rows[higher], experiment.accuracy) for lower, higher in pairs)
    if first is None:
        return None
    how = "" if experiment.protocol is None else experiment.protocol.name
    key = " | ".join([study.recipe.name, *map(study.method, pairs[0]), claim.metric, experiment.split, how])
    beside = None if second is None or pairs[0] == pairs[1] else second.verdict
    return replace(first, regime=study.regime, key=key, beside=beside)


def _beside(
    experiment: Experiment, paper: str, study: Study, rows: Mapping[str, list[Row]], pooled: Mapping[str, list[Row]]
) -> Table:
    """Return a table of the paper's numbers and ours; ``pooled`` is shown beside the numbers of a protocol."""
    right = "acc" if experiment.accuracy == "accuracy" else "mIoU"
    extra = [] if experiment.protocol is None else ["pooled: ECE", "pooled: AECE"]
    columns = [f"ours: {right}", "ours: ECE", "95 %", "floor", "ours: AECE", "seeds", "n", *extra]
    hidden = ("n", "seeds", "floor", "95 %", "paper: AECE", f"paper: {right}", "pooled: AECE", "ours: AECE")
    shown = Table(["method", f"paper: {right}", "paper: ECE", "paper: AECE", *columns], optional=hidden)
    for label, line in study.lines.items():
        ours, floors = rows[label], metric_values(rows[label], "ece_floor")
        cells = [
            mean_text(ours, experiment.accuracy),
            mean_text(ours, "ece"),
            _interval(ours),
            f"{100 * statistics.fmean(floors):.2f}" if floors else "",
            mean_text(ours, "aece"),
            str(len(ours) or ""),
            str(ours[0].n if ours else ""),
            *(mean_text(pooled[label], name) for name in ("ece", "aece") if extra),
        ]
        shown.add(label, *_printed(experiment.printed[paper][line.row]), *(cell or "-" for cell in cells))
    return shown


def _columns(study: Study, debiased: bool) -> str:
    """Explain the columns of a table and of the claims below it."""
    parts = ["±: the standard deviation over seeds", "95 %: the interval of one network's ECE from its test samples"]
    if debiased:
        parts[-1] += ", without the bias of noise, so that it may lie below the ECE beside it"
        parts.append("Floor: the ECE that a calibrated network would show with n samples")
    if any(line.posthoc is not None for line in study.lines.values()):
        parts.append("CE + TS: the temperature of least ECE of a grid of 0.1, as in the paper, or the most likely one")
    parts.append("Claims: a lower error, or an accuracy that is lower by at most a point, all in percent")
    parts.append(f"The verdict on the {FIRST} is the one that counts; that on {SECOND} stands beside it")
    if debiased:
        parts.append("Differences are between estimates without the bias of noise, not between the columns above")
    return ". ".join(parts) + "."


def _printed(row: Published) -> list[str]:
    return ["-" if value is None else f"{value:.2f}" for value in row]


def _ten_bins(experiment: Experiment, study: Study, rows: Mapping[str, list[Row]]) -> Table:
    header = ["method", "paper: ECE", "paper: AECE", "ours: ECE", "ours: AECE", "seeds"]
    shown = Table(header, optional=("seeds", "paper: AECE"))
    ten = replace(protocol("pooled"), bins=10)
    for label, line in study.lines.items():
        ours = [study.by_protocol(row, ten) for row in rows[label]]
        theirs = _printed(experiment.ten_bins[line.row])[1:]
        shown.add(label, *theirs, mean_text(ours, "ece"), mean_text(ours, "aece"), str(len(ours)))
    return shown


def _temperatures(paper: str, study: Study, rows: Mapping[str, list[Row]]) -> list[str]:
    """Return the fitted temperatures and those in the paper's footnote."""
    fitted = {
        name: [study.temperature(row) for row in rows[label]]
        for name in experiments.SCALINGS
        if (label := f"CE + TS ({name})") in rows and rows[label]
    }
    if not fitted:
        return []
    ours = "; ".join(f"{', '.join(f'{one:.2f}' for one in each)} ({name})" for name, each in fitted.items())
    return [f"Temperatures, one per seed: {ours}. The paper's: {published.TEMPERATURES.get(paper, 'not printed')}."]


def _interval(rows: Sequence[Row]) -> str:
    """Return the mean interval of the seeds: the uncertainty from the test samples only."""
    ends = [found for row in rows if (found := row.result.intervals.get("ece")) is not None]
    if not ends:
        return ""
    low, high = (statistics.fmean(end) for end in zip(*ends, strict=True))
    return f"{100 * low:.2f} .. {100 * high:.2f}"


def _verdicts(judged: Sequence[Judged]) -> Table:
    header = ["claim", FIRST, "diff. %", "95 %", "seeds", SECOND, "note"]
    shown = Table(header, align="llrrrll", optional=("note", "seeds", SECOND))
    for one in judged:
        found, value = one.difference, f"{100 * one.difference.value:+.2f}"
        ends = f"{100 * found.low:.2f} .. {100 * found.high:.2f}"
        if math.isinf(found.low):
            ends = "one seed" if found.seeds == 1 else "all seeds equal"
        shown.add(one.claim, one.verdict, value, ends, str(found.seeds), one.beside or "", one.note)
    return shown


def _grids(study: Study, rows: Mapping[str, list[Row]]) -> Any:
    figure, axes = canvas(1, 2, width=7.0)
    for form, ax in zip(FORMS, axes, strict=True):
        values = {
            (first, second): found
            for first in published.LAMBDA_1
            for second in published.LAMBDA_2
            if (found := metric_values(rows[label_of(study.lines, f"λ1 {first:g}, λ2 {second:g}", form)], "ece"))
        }
        if values:
            sweeps.draw_grid(sweeps.prepare_grid(values), ax)
            ax.set_title(f"{form}: {ax.get_title()}", fontsize=SMALL + 1)
    return figure


def _table2(result: Reproduced) -> None:
    header = ["method", "type", "", "pivot", "f at the pivot", "C at the pivot", "f elsewhere", "C elsewhere"]
    right = {row.method.partition("(")[0]: row for row in table(kind() for kind in REGISTRY.values())}
    forms = {name: table([make_loss("ACLS", form=form)])[0] for name, form in FORMS.items()}
    shown = Table(header, align="l" * len(header))
    for method, printed in published.TABLE_2.items():
        kind = REGISTRY[method].about.kind
        shown.add(method, kind, "printed", "ŷ", *printed)
        if method in published.BATCH_RULES:
            shown.add(method, kind, "right", "ŷ", *published.BATCH_RULES[method])
            continue
        for name, row in forms.items() if method == "ACLS" else [("right", right[method])]:
            shown.add(method, kind, name, row.pivot, row.f_pivot, row.c_pivot, row.f_others, row.c_others)
    ours = Table([part for part in header if part], align="l" * (len(header) - 1))
    for method, row in right.items():
        if method not in published.TABLE_2:
            ours.add(method, row.kind, row.pivot, row.f_pivot, row.c_pivot, row.f_others, row.c_others)
    result.parts += [
        "The label is lowered by f C at the pivot (ŷ the predicted, y the true class) and raised by f C elsewhere. "
        "What is wrong with the printed rows, and the tests that show it, are in the errata. The printed row of label "
        "smoothing holds where ŷ is the true class, as the paper says. Of ACLS the right rows are those of the "
        f"{FIRST}, and of {SECOND} with its second term averaged over classes.",
        shown,
        "K: number of classes; M: margin; w, λ, ε: strengths; g(p): the factor of the focal loss's gradient; a_k: the "
        "sign of the mean of p_k over the batch minus the share of class k in it (with a = 1 at ŷ alone, MDCA has "
        "2 w/K p_ŷ (1 - p_ŷ) and 2 w/K p_ŷ p_j); c_n: how often sample n was right, H(n, m) the sign of c_n - c_m. Of "
        "CRL the right row is that of a pair of samples n and m.",
        "The other methods of this package that have a rule per sample:",
        ours,
    ]


# -- figures -----------------------------------------------------------------------------------------------------------


def _figure1(result: Reproduced) -> None:
    result.parts.append(
        "The label that each kind of method trains an overconfident prediction towards, found by autograd. Panels (a) "
        "to (f) are the paper's; (e) has f of MDCA at the predicted class (top) and at each of the others (bottom), by "
        "the probability of the class. Panel (g) is ACLS as in Eq. 13, and (h) and (i) show what the label of the "
        "predicted class is lowered by: a parabola in the confidence for MDCA and CRL, so 0 where the network is "
        "surest, and a line in the logit gap for ACLS. That is why MDCA hardly changes the label in (d). The logits "
        f"are {', '.join(f'{z:g}' for z in regulariser.DEFAULT_LOGITS)}; the strengths, which the paper does not "
        "print, are ours: LS 0.2, MDCA 1, CRL 1, MbLS 0.4 and ACLS 0.03 and 0.05, margin 6."
    )
    result.keep(regulariser.smoothing_figure())


def _figure2(result: Reproduced) -> None:
    rows = ("CE", "LS", "CPC", "MDCA", "MbLS", "CRL", "ACLS")
    result.parts.append(
        f"From the first seed; ACLS is the {FIRST}. Accuracies and ECEs have 95 % intervals. The hatched part of a bar "
        "is the gap between accuracy and mean confidence."
    )
    for _, study, _ in result.trained(papers_of(result.name), lines_of(rows)):
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
        result.keep(figure, study.recipe.name)


def _figure3(result: Reproduced) -> None:
    lines = lines_of(("ACLS, ranking", "ACLS, margin"), result.setup.form)
    for _, study, _ in result.trained(_TINY, lines):
        header = ["where it is 0", "paper %", "ours %", "seeds", "median gap", "verdict"]
        shown, gaps = Table(header, align="lrrrrl", optional=("seeds",)), dict[str, float]()
        figure, axes = canvas(1, len(lines), width=2.6 * len(lines), height=2.8)
        judged: dict[str, dict[str, Judged]] = {}
        for (label, line), ax in zip(lines.items(), axes, strict=True):
            found = [_activity(study, row, label) for row in study.rows(label)]
            if not found:
                ax.axis("off")
                continue
            gap, shares = found[0][0], [activity.inactive for _, activity in found]
            regulariser.draw_activity(found[0][1], ax)
            paper = published.INACTIVE_SHARE[line.row] / 100
            off = over_seeds(shares, [paper] * len(shares), resolution=1 / found[0][1].n)
            claim = f"{line.row}: the regulariser is 0 for {100 * paper:.0f} % of samples, to within 10 points"
            key = f"{study.recipe.name} | {study.method(label)} | inactive"
            one = Judged(claim, verdict_on(off, -NEAR, NEAR), off, regime=study.regime, key=key)
            judged.setdefault(line.row, {})[line.form] = one
            mean = f"{100 * statistics.fmean(shares):.1f}"
            gaps[label] = gap
            shown.add(label, f"{100 * paper:.0f}", mean, str(len(shares)), f"{gap:.1f}", one.verdict)
        for by_form in judged.values():
            if {FIRST, SECOND} <= by_form.keys():
                result.judged.append(replace(by_form[FIRST], beside=by_form[SECOND].verdict))
        result.parts += [
            shown,
            "With the margin condition the regulariser is 0 where no logit lies more than the margin, "
            f"{study.recipe.loss.margin:g}, below the largest (nor, in the {FIRST}, the largest itself above it). The "
            "gap of a sample is its largest logit minus its smallest; that of the median training sample is "
            f"{', '.join(f'{gap:.1f} ({label})' for label, gap in gaps.items())}, with the first seed. A small network "
            "trained for a few epochs separates its logits little, so that the margin leaves many samples alone. A "
            "share counts as reproduced within 10 points of the paper's.",
        ]
        result.keep(figure, study.recipe.name)


def _figure_a(result: Reproduced) -> None:
    lines = dict[str, MethodLine]()
    for m in experiments.MARGINS:
        lines |= in_forms(f"margin {m:g}", MethodLine(Spec("ACLS", {"margin": m}), row=f"{m:g}"), result.setup.form)
    for _, study, _ in result.trained(_TINY, lines):
        shown = Table(["margin", "form", "acc", "ECE", "95 %", "seeds"], align="ll")
        curves: dict[str, dict[float, list[float]]] = {}
        for label, line in lines.items():
            if found := study.rows(label, "val"):
                curves.setdefault(line.form, {})[float(line.row)] = metric_values(found, "ece")
                numbers = (mean_text(found, "accuracy"), mean_text(found, "ece"), _interval(found), str(len(found)))
                shown.add(line.row, line.form, *numbers)
        result.parts.append(shown)
        result.keep(drawn(sweeps.draw_sweep, sweeps.prepare_sweep(curves), height=2.6), study.recipe.name)


def _statistics(result: Reproduced) -> None:
    """Add the two additional statistics from the text of the paper."""
    header = ["share of training samples", "method", "paper %", "ours %", "seeds"]
    printed = {BY_STEP: published.ALTERED_SHARE, BY_LARGEST: published.GAMMA_THREE_SHARE}
    for _, study, _ in result.trained(_TINY, lines_of(("ACLS", "FLSD"), result.setup.form)):
        shown = Table(header, align="ll", optional=("seeds",))
        for label in study.lines:
            measure = gamma_three if label == "FLSD" else altered
            ours = [measure(study.folder(row).path) for row in study.rows(label)]
            for what in ours[0] if ours else ():
                mean = f"{100 * statistics.fmean(shares[what] for shares in ours):.2f}"
                shown.add(what, label, f"{printed[what]:g}" if what in printed else "-", mean, str(len(ours)))
        result.parts += [
            shown,
            "A step is one of the optimiser, from the weights and momenta at the end of training, with each of at most "
            f"{STEPS} batches of the last epoch. The paper's number is of predictions that are right and that a step "
            "of ACLS alters; the row without the regulariser shows what a step of cross-entropy does.",
        ]


BY_STEP = "right, but wrong after a step"
BY_PLAIN_STEP = "the same without the regulariser"
BY_LARGEST = "gamma 3 by the largest p, as printed"


def altered(run: Path) -> dict[str, float]:
    """Return the shares of training samples whose predictions change in one step, after training."""
    folder, recipe = open_run(run)
    with isolated():
        session = Session(replace(recipe, devices=1))
        restore(session, load_state(folder.resume))
        before = copy.deepcopy((session.model.state_dict(), session.optimizer.state_dict(), session.loss.state_dict()))
        plain = make_loss("CE", ignore_index=session.data.void).to(session.fabric.device)
        draws = session.draws(recipe.epochs - 1)[:STEPS]
        found, total = Counter[str](), 0

        def predictions(images: Tensor) -> Tensor:
            session.model.eval()
            with torch.no_grad():
                outputs: Tensor = session.model(images.to(session.fabric.device))
            return outputs.argmax(1).cpu()

        for number, batch in enumerate(batches(session.data.train, draws)):
            session.model.load_state_dict(before[0])
            at_first, after = predictions(batch[0]), []
            for loss in (plain, session.loss):
                session.model.load_state_dict(before[0])
                session.optimizer.load_state_dict(copy.deepcopy(before[1]))
                own, session.loss = session.loss, loss
                session.model.train()
                session.step(batch, recipe.epochs - 1, number)
                session.loss = own
                after.append(predictions(batch[0]))
            session.loss.load_state_dict(before[2])
            counted, right = batch[1] != session.data.void, batch[1] == at_first
            found[BY_STEP] += int((right & (after[1] != at_first) & counted).sum())
            found[BY_PLAIN_STEP] += int((right & (after[0] != at_first) & counted).sum())
            found["predicted otherwise with the regulariser"] += int(((after[0] != after[1]) & counted).sum())
            total += int(counted.sum())
    return {what: number / max(total, 1) for what, number in found.items()}


def _activity(study: Study, row: Row, label: str) -> tuple[float, regulariser.Activity]:
    """Return the median of the largest logit gaps of the training samples, and the regulariser's values, at the end."""
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


def gamma_three(run: Path) -> dict[str, float]:
    """Return the shares of training samples that FLSD gives gamma 3, by the printed rule and by that of its code."""
    outputs = predict_run(run, part="train")
    assert outputs.scores is not None
    p = outputs.scores.softmax(1)
    by = {BY_LARGEST: p.amax(1), "gamma 3 by the true class's p, as coded": p.gather(1, outputs.labels.unsqueeze(1))}
    return {what: float((each >= 0.2).double().mean()) for what, each in by.items()}


TARGETS: dict[str, tuple[str, Callable[[Reproduced], None]]] = {
    "table1": (experiments.EXPERIMENTS["table1"].title, _table),
    "table2": ("Table 2: each method as label smoothing, as printed and as it is", _table2),
    **{name: (experiment.title, _table) for name, experiment in experiments.EXPERIMENTS.items() if name != "table1"},
    "figure1": ("Figure 1: smoothing behaviours", _figure1),
    "figure2": ("Figure 2: reliability diagrams", _figure2),
    "figure3": ("Figure 3: values of the regulariser, and the share of samples where it is 0", _figure3),
    "figureA": ("Figure A: ECE against the margin, on the validation split", _figure_a),
    "statistics": ("Statistics of the text", _statistics),
}
"""By name: the title, and the function that fills the page."""
