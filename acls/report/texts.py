"""The text that a command prints for its result: sentences, lines and tables, with the answer first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from html import escape
from typing import TYPE_CHECKING, Any

from acls.report.tables import Table, paragraph, percent, width

if TYPE_CHECKING:
    from acls.losses.rule import Explanation
    from acls.report.page.build import Report
    from acls.report.results import Comparison
    from acls.results import Advice, ModelResults, ProtocolResults, Result
    from acls.study.advisor import CheckpointAdvice
    from acls.study.methods import MethodList
    from acls.study.share import Shared
    from acls.study.tune import Found
    from acls.train import TrainedRun
    from acls.watch.doctor import Diagnosis
    from acls.watch.drift import Drift
    from acls.watch.shift import Shift

Parts = Iterator[str | Table]


class Verbatim(str):
    """Text that is printed unchanged, such as a path, without line breaks for the width of the terminal."""


def text(result: Any, *, markdown: bool = False) -> str:
    """Return the text that a command prints for its result.

        print(text(acls.watch.drift.compare("calibration.npz", "monday.npz")))

    Paragraphs and tables are fitted to the width of the terminal. With ``markdown``, tables are Markdown.
    """
    return "\n".join(_shown(part, markdown) for part in parts(result))


def html(result: Any) -> str:
    """Return the parts of `text` as HTML, for a notebook."""
    return "".join(one.html() if isinstance(one, Table) else f"<p>{escape(one)}</p>" for one in parts(result) if one)


def parts(result: Any) -> Parts:
    """Return the parts of `text` separately; an object without parts is the text of its ``str``."""
    return _OF.get(type(result).__name__, lambda one: iter([str(one)]))(result)


def _shown(part: str | Table, markdown: bool) -> str:
    if isinstance(part, Table):
        return part.markdown() if markdown else part.text(width())
    return part if isinstance(part, Verbatim) else paragraph(part)


def _result(found: Result) -> Parts:
    from acls.report.results import metric_table
    from acls.results import verdict

    yield from (f"{verdict(found).text} n = {found.n:,}", metric_table(found))


def _evaluated(found: ModelResults) -> Parts:
    """Return a sentence on each model against the first, then verdicts and metrics, then comparison tables."""
    from acls.report.results import comparison_table, group_table, metric_table
    from acls.results import verdict
    from acls.results.words import remarks

    compared = found.differences
    first = found.results[compared.baseline]
    for title, by_metric in compared.comparisons.items():
        against = f"{title} against {compared.baseline}, on the same {first.n} samples"
        yield from (f"{against}: {verdict(by_metric['ece']).text}", "")
    for title, result in found.results.items():
        suite = result.suite
        classes = f" of {suite.n_classes} classes" if suite is not None and suite.n_classes else ""
        left_out = f", {result.rows - result.n} left out" if result.rows > result.n else ""
        yield from (f"{title}: {verdict(result).text}", "")
        if found.max_error is not None:
            for group, decision in found.decisions(title).items():
                yield f"group {group}: {decision}" if group else str(decision)
            yield ""
        kind = "confidences" if result.kind == "triples" else result.kind
        yield f"{kind}{classes}, n = {result.n}{left_out}, {found.bins} bins"
        yield from ("", metric_table(result), "")
        yield from remarks(result)
        if result.groups:
            yield from ("", "by group:", "", group_table(result.groups))
        yield ""
    for title, by_metric in compared.comparisons.items():
        yield Verbatim(f"{title} against {compared.baseline}:\n")
        yield from (comparison_table(first, found.results[title], by_metric), "")
    if many := len(compared.comparisons):
        corrected = f" Intervals and p-values are corrected for {many} comparisons (Bonferroni)." if many > 1 else ""
        yield f"Each p tests that the metric of its row is the same for both models.{corrected}"


def _by_protocol(found: ProtocolResults) -> Parts:
    from acls.report.results import protocol_table

    for title, measured in found.numbers.items():
        yield from (Verbatim(f"{title}:\n"), protocol_table(measured), "")
    for one in found.protocols:
        used = any(one.name in measured for measured in found.numbers.values())
        needs = "the image of each row (--image NAME)" if one.images else "the scores of all classes"
        yield f"{one.name}: {one.why if used else f'left out, because it needs {needs}'}."


def _advice(advice: Advice) -> Parts:
    """Return the advice, then the numbers that it is based on."""
    from acls.report.results import judged_table, tested_table

    yield from (advice.text, "", judged_table(advice))
    remarks = [(one, warning) for one in advice.candidates for warning in one.calibrator.report.warnings]
    remarks += [(one, one.why) for one in advice.candidates if not one.use and not one.doubts]
    if remarks:
        yield from ("", *(f"{one.name}: {said}." for one, said in remarks))
    if advice.changes is not None:
        yield Verbatim(f"\non {advice.test_name}, which no method has seen:\n")
        yield from (tested_table(advice.test, advice.changes), "")
        yield "Each p tests that the metric is the same as for the model as it is."
    if advice.out:
        saved, out = advice.saved, advice.out
        use = f"{saved.name} is saved as {out}; use it with: acls apply {out} IN OUT" if saved else ""
        yield from ("", use or "Nothing is saved; --force saves the best calibrator anyway.")


def _comparison(found: Comparison) -> Parts:
    """Return the answer, then each method against the first, then the table of results and the ranking."""
    from acls.metrics.catalogue import names
    from acls.report import results as views

    if not found.rows:
        return
    yield from found.answer
    for one in (one for one in found.ranked if one.metric == "ece"):
        yield Verbatim("" if one.posthoc == "none" else f"\nafter {one.posthoc}:")
        yield views.baseline_table(one)
    columns = [name for name in names(1) if any(name in one.result.estimates for one in found.rows)]
    columns.insert(columns.index("ece") + 1, "ece_floor")
    marks = views.marks_of(found.ranked)
    yield from ("", views.results_table(views.best_first(found.rows), columns, marks=marks), "")
    if known := [one for one in found.ranked if one.significant]:
        yield from (views.ranking_table(known), "")
    if len({one.seed for one in found.rows}) > 1:
        yield "±: standard deviation over seeds."
    if found.ranked:
        yield from (views.about_baseline(found.ranked[0]), views.about_tests(found.ranked))
    if marks:
        yield views.signs()
    if found.page is not None:
        yield Verbatim(f"\nreport: {found.page}")


def _report(found: Report) -> Parts:
    from acls.report.results import marks_of, signs

    if found.verdict:
        yield from (*found.verdict, *found.decisions, "")
    yield from (Verbatim(f"{table}\n") for table in found.tables)
    if found.tables and found.form == "text" and marks_of(found.ranked):
        yield from (signs(), "")
    if found.figures:
        yield Verbatim(f"figures: {len(found.figures)} in {found.figures[0].parent}")
    yield Verbatim(f"report: {found.page}")


def _drift(found: Drift) -> Parts:
    from acls.results import show_p

    unsaved = " Nothing is saved, because the class frequencies have not changed; --force saves anyway."
    yield ("ALARM: " if found.alarm else "") + found.verdict() + (unsaved if found.out and not found.saved else "")
    if found.by_image:
        yield "The rows of an image are not independent: images were counted, not rows."
    table = Table(["", "calibration set", "new"])
    table.add("n", str(found.n_calibration), str(found.n_new))
    table.add("mean confidence %", percent(found.confidence_calibration), percent(found.confidence_new))
    table.add("accuracy %", percent(found.accuracy_calibration))
    table.add("accuracy predicted from the confidences %", "", percent(found.accuracy_by_confidence))
    table.add("accuracy predicted by a threshold (ATC) %", "", percent(found.accuracy_by_threshold))
    if found.accuracy_new is not None:
        table.add("accuracy from its labels %", "", percent(found.accuracy_new))
    tests = Table(["test", "distance", "p"])
    for name, check in found.checks.items():
        tests.add(_CHECKS[name], f"{check.distance:.4f}", show_p(check.p).removeprefix("= "))
    yield from ("", table, "", tests)


_CHECKS = {
    "ks": "confidences (KS)", "psi": "confidences (PSI)", "classes": "predicted classes",
    "labels": "classes by label", "accuracy": "accuracy by label",
}  # fmt: skip


def _shift(found: Shift) -> Parts:
    titles = ["accuracy %", "ECE %", "floor %", "ECE at T %", "floor at T %", "best T"]
    table = Table(["corruption", "severity", *titles, "T"], optional=("floor %", "floor at T %", "best T"))
    for one in found.conditions:
        shares = (one.accuracy, one.ece, one.ece_floor, one.scaled_ece, one.scaled_floor)
        best = f"{one.fitting_temperature:.3f}"
        table.add(one.corruption, str(one.severity), *map(percent, shares), best, one.verdict)
    yield from (found.verdict(), "", table, "")
    yield (
        f"T: whether the temperature {found.temperature:.3f} fitted on the clean validation part holds here (ECE "
        "within noise), helps or hurts; maybe: the change may be chance. Floor: the ECE of a calibrated model at this "
        "n. Best T: what would fit here."
    )
    if found.dense:
        yield "Pixels of one image are not independent: the noise floors are too low, and effects too sure."


def _diagnosis(found: Diagnosis) -> Parts:
    if found.n:
        yield f"{found.name}: {found}"
    yield from [f"{one.level}: {one.sentence}" for one in found.findings] or ["nothing looks wrong"]


def _checkpoints(advice: CheckpointAdvice) -> Parts:
    titles = ["keep by", "epoch", "accuracy %", "NLL", "ECE %", "ECE % after T", "good for"]
    table = Table(titles, align="lrrrrrl", optional=("good for",))
    for rule in advice.rules:
        one = rule.keep
        numbers = (percent(one.accuracy), f"{one.nll:.4f}", percent(one.ece), percent(one.ece_after_temperature))
        table.add(rule.name, str(one.epoch), *numbers, rule.when)
    low, high = (end(one.ece for one in advice.close) for end in (min, max))
    yield (
        f"Keep epoch {advice.rules[-1].keep.epoch}: of {len(advice.epochs)} epochs, {len(advice.close)} are within a "
        f"standard error of the best accuracy (n = {advice.epochs[0].n:,}), with an ECE from {percent(low)} to "
        f"{percent(high)} %, and this one has the lowest NLL of these."
    )
    yield from ("", table, "")
    yield "front of accuracy and ECE: epochs " + ", ".join(str(one.epoch) for one in advice.front)
    yield "`acls train --select nll` keeps the epoch with the lowest NLL."


def _trials(found: Found) -> Parts:
    from acls.study.tune import show

    table = Table(["trial", "settings", "epoch", "accuracy %", "ECE %", "NLL", "front"], align="ll")
    for one in sorted(found.trials, key=lambda trial: trial.ece):
        numbers = (str(one.epoch), percent(one.accuracy), percent(one.ece), f"{one.nll:.4f}")
        table.add(str(one.number), show(one.params), *numbers, "yes" if one in found.front else "")
    if found.best is None:
        yield f"No trial reaches an accuracy of {percent(found.floor)} %."
    else:
        yield (
            f"Lowest ECE with an accuracy of {percent(found.floor)} % or more: {show(found.best.params)}. The lowest "
            f"ECE of {len(found.trials)} trials is too optimistic: measure it on the test part with `{found.command}`."
        )
    yield from ("", table, "")
    rest = ", ".join(f"{n} {what}" for n, what in ((found.pruned, "pruned"), (found.failed, "failed")) if n)
    yield f"{len(found.trials)} trials finished{', ' + rest if rest else ''}; validation part, n = {found.n:,}"
    if found.figure is not None:
        yield Verbatim(f"front: {found.figure}")


def _trained(run: TrainedRun) -> Parts:
    """Return the verdict on the test part, then the metrics of both parts, then the folder of the run."""
    from acls.metrics.catalogue import metric, names
    from acls.results import evaluate, verdict
    from acls.train import RunFolder

    measured = evaluate(RunFolder(run.folder).predictions("test"))
    columns = [name for name in names(1) if name in run.test]
    table = Table(["", "n", *(metric(name).title for name in columns)])
    for part, numbers in (("validation", run.val), ("test", run.test)):
        table.add(part, f"{numbers['n']:,}", *(metric(name).show(numbers[name]) for name in columns))
    marks = "; * marks the best so far, T is the temperature that fits the validation samples" if run.shown else ""
    yield from (f"Test: {verdict(measured).text}", "", table, "", f"Best epoch {run.best_epoch + 1}{marks}.")
    yield Verbatim(f"The run is in {run.folder}")


def _shared(found: Shared) -> Parts:
    runs = f"{found.runs} runs ({found.added} new), {found.bytes / 1e6:.1f} MB"
    yield Verbatim(f"{runs}: {found.folder}; acls report {found.folder} writes the page")


def _explained(found: Explanation) -> Parts:
    import torch

    n_classes, p = len(found.logits), torch.tensor(found.logits, dtype=torch.float64).softmax(0).tolist()
    shown = ", ".join(f"{z:g}" for z in found.logits)
    yield Verbatim(f"Logits {shown}; true class {found.label}, predicted {p.index(max(p))}.\n")
    table = Table(["trains towards", *(f"class {k}" for k in range(n_classes)), "sum"])
    table.add("(softmax)", *(f"{value:.4f}" for value in p), "1")
    for method, one in found.methods.items():
        total = "1" if one["sums_to_one"] else f"{one['sum']:.4f} !"
        table.add(method, *(f"{value:.4f}" for value in one["label"]), total)
    yield table
    if not all(one["sums_to_one"] for one in found.methods.values()):
        yield "! does not sum to 1: the gradient does not sum to zero over the classes, and the logits can drift."
    ruled = {method: one for method, one in found.methods.items() if "formula" in one}
    if without := ", ".join(method for method in found.methods if method not in ruled):
        yield from ("", f"Not functions of a single sample, so not in the table below: {without}.")
    if not ruled:
        return
    yield Verbatim("\nThe label is lowered by f C at the pivot class and raised by f C at the others:\n")
    table = Table(["method", "pivot", *(f"f, C {k}" for k in range(n_classes))], align="ll" + "r" * n_classes)
    formulas = []
    for method, one in ruled.items():
        formula = one["formula"]
        pairs = [f"{f:.4f}, {c}" for f, c in zip(one["f"], one["C"], strict=True)]
        table.add(method, f"{formula['pivot']} = {one['pivot']}", *pairs)
        sides = [
            f"f {where} is {formula[f'f {where}']} if {formula[f'C {where}']}".removesuffix(" if 1")
            for where in ("at the pivot", "elsewhere")
        ]
        formulas.append(f"{method}: {'; '.join(sides)}.")
    yield from (table, "")
    yield from formulas


def _methods(found: MethodList) -> Parts:
    for name, one in found.losses.items():
        sort = "" if one["kind"] == "-" else f", {one['kind']}"
        yield f"{name}: {one['title']} ({one['authors']}, {one['venue']} {one['year']}{sort})"
        fields = (f"{field}={_short(value)}" for field, value in one["fields"].items())
        if listed := ", ".join(fields):
            yield f"    {listed}"
    yield ""
    yield (
        "AR, CR, ACR: regularisers that smooth labels adaptively, under a condition, or both, in the terms of the ACLS "
        "paper. Every method also takes ignore_index, reduction and class_weight. A recipe sets the margin published "
        "for its data, 6 for digits and CIFAR-10 and 10 elsewhere, in every method that has one, unless you set it."
    )
    yield from ("", "acls compare also takes these methods, each with base=LOSS for a loss other than cross-entropy:")
    for name, technique in found.techniques.items():
        values = ", ".join(f"{field}={default!r}" for field, (_, default) in technique.fields.items())
        yield f"{name}({values}): {technique.about}"


def _short(value: object) -> str:
    return f"{value['name']}()" if isinstance(value, dict) else repr(value)


_OF: dict[str, Callable[[Any], Parts]] = {
    "Advice": _advice, "CheckpointAdvice": _checkpoints, "Comparison": _comparison, "Diagnosis": _diagnosis,
    "Drift": _drift, "Explanation": _explained, "Found": _trials, "MethodList": _methods,
    "ModelResults": _evaluated, "ProtocolResults": _by_protocol, "Report": _report,
    "Reproduced": lambda found: iter(found.parts),
    "Result": _result, "Shared": _shared, "Shift": _shift, "TrainedRun": _trained,
}  # fmt: skip
"""By the name of the result's type. The classes are not imported, so that a command imports only what it uses."""
