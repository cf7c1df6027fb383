"""The front door in Python: from arrays to numbers, a picture, a calibrator and a page."""

import json
import types

import numpy as np
import pytest
import torch

import acls
import acls.reproduce.targets
import acls.study.advisor
import acls.study.share
import acls.study.tune
import acls.watch.doctor
import acls.watch.drift
import acls.watch.shift
from acls.cli import main
from acls.errors import InputError
from acls.front import predictions
from acls.predictions import Columns
from acls.report import texts
from acls.results.recommending import before_and_after, recommend
from acls.shown import Shown

RANDOM = np.random.default_rng(0)
LOGITS = RANDOM.normal(size=(400, 4)) * 3
TRUE = np.exp(LOGITS / 2) / np.exp(LOGITS / 2).sum(1, keepdims=True)  # the network is overconfident by a factor of 2
LABELS = (TRUE.cumsum(1) < RANDOM.uniform(size=(400, 1))).sum(1).clip(max=3)
PROBS = np.exp(LOGITS) / np.exp(LOGITS).sum(1, keepdims=True)


def test_two_lines_from_probabilities_to_a_picture():
    pytest.importorskip("matplotlib").use("agg")
    result = acls.evaluate(PROBS, LABELS, kind="probs")
    axes = result.plot()
    assert axes.lines or axes.patches
    from matplotlib.figure import Figure

    own = Figure().subplots()
    assert result.plot(own) is own


def test_the_numbers_are_those_of_the_command(tmp_path, capsys):
    np.savez(tmp_path / "p.npz", probs=PROBS, labels=LABELS)
    assert main(["evaluate", str(tmp_path / "p.npz"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    result = acls.evaluate(PROBS, LABELS, kind="probs")
    for name in ("ece", "nll", "brier", "accuracy"):
        assert isinstance(result[name], float)
        assert result[name] == pytest.approx(told[name], abs=1e-6)
    assert acls.evaluate(tmp_path / "p.npz")["ece"] == pytest.approx(result["ece"], abs=1e-9)


def test_weights_change_the_values_and_leave_no_number_that_does_not_hold():
    weight = np.random.default_rng(1).lognormal(0, 1, 400)
    result = acls.evaluate(PROBS, LABELS, kind="probs", sample_weight=weight)
    right = PROBS.argmax(1) == LABELS
    assert result["accuracy"] == pytest.approx(np.average(right, weights=weight))
    assert (result.n, result.unit, result.floors) == (400, "weighted row", {})
    plain = acls.evaluate(PROBS, LABELS, kind="probs")
    for name in ("accuracy", "nll", "ece"):
        (low, high), ends = result.intervals[name], plain.intervals[name]
        assert high - low > 1.2 * (ends[1] - ends[0]), name  # (Σw)² / Σw² is 400 / e
    assert not {"ks", "smece", "classwise_ece", "rmsce", "mce"} & result.intervals.keys()
    assert "needs independent rows of equal weight" in result.estimates["ks"].note
    assert result.p < 0.01
    scaled = acls.evaluate(PROBS, LABELS, kind="probs", sample_weight=weight / 1e4)
    assert scaled.intervals["ece"] == pytest.approx(result.intervals["ece"], rel=1e-5)
    twice = acls.evaluate(PROBS, LABELS, kind="probs", sample_weight=np.arange(400) % 3, group=np.arange(400) % 2)
    rows = np.repeat(np.arange(400), np.arange(400) % 3)
    repeated = acls.evaluate(PROBS[rows], LABELS[rows], kind="probs", group=rows % 2)
    assert twice.values == pytest.approx(repeated.values, rel=1e-6)
    assert twice.groups["1"].values == pytest.approx(repeated.groups["1"].values, rel=1e-6)
    with pytest.raises(InputError, match="row 0: expected a weight of 0 or more, got -1"):
        acls.evaluate(PROBS, LABELS, kind="probs", sample_weight=np.full(400, -1.0))
    with pytest.raises(InputError, match="equal weight"):
        result.decide(0.1)


def test_nothing_is_taken_for_logits_that_could_be_probabilities():
    for ask in (acls.evaluate, acls.calibrate):
        with pytest.raises(InputError, match='kind="probs"'):
            ask(PROBS, LABELS)
    with pytest.raises(InputError, match="labels are missing"):
        acls.evaluate(PROBS, kind="probs")
    with pytest.raises(InputError, match="got 'ec'"):
        acls.evaluate(PROBS, LABELS, kind="probs")["ec"]


def test_evaluate_drops_no_argument_without_a_word(tmp_path):
    np.savez(tmp_path / "p.npz", probs=PROBS, labels=LABELS)
    for given in ({"labels": LABELS}, {"kind": "logits"}, {"sample_weight": LABELS}):
        with pytest.raises(InputError, match=r"with a file: name the columns, as in columns="):
            acls.evaluate(tmp_path / "p.npz", **given)
    with pytest.raises(InputError, match="evaluate takes no group= with a file"):
        acls.evaluate(tmp_path / "p.npz", group=LABELS)
    with pytest.raises(InputError, match="evaluate takes no columns= with arrays"):
        acls.evaluate(PROBS, LABELS, "probs", columns=Columns())
    with pytest.raises(InputError, match="evaluate takes no nbins= with arrays: did you mean 'bins'"):
        acls.evaluate(PROBS, LABELS, "probs", nbins=5)
    for name, value in {"labels": LABELS, "kind": "logits", "group": LABELS, "image": LABELS}.items():
        with pytest.raises(InputError, match="Predictions have labels, kind, group and image of their own"):
            acls.evaluate(predictions(PROBS, LABELS, "probs"), **{name: value})
    with pytest.raises(InputError, match="without scores, labels and kind"):
        acls.evaluate(confidence=PROBS[:, 0], correct=LABELS > 1, kind="logits")


NAN = np.where(np.arange(400)[:, None] == 3, np.nan, LOGITS)
SAID = PROBS[:, 0]


@pytest.mark.parametrize(
    ("scores", "kind", "message"),
    [
        (PROBS * 100, "probs", "row 0: probs range from .* outside 0..1: divide percent by 100"),
        (PROBS * 3, "probs", "row 0: probs range from"),
        (PROBS / 2, "probs", "row 0: probs add up to 0.5, not 1"),
        (LOGITS, "probs", "row 0: probs range from -"),
        (LOGITS, "log_probs", "row 0: log_probs belong to probabilities that add up to"),
        (SAID * 100, "probs", "row 0: probs range from 0 to .*: divide percent by 100"),
        (np.where(np.isnan(NAN), np.nan, PROBS), "probs", "row 3.* NaN"),
        (NAN, "logits", "row 3.* NaN"),
    ],
)
def test_every_call_refuses_scores_of_another_kind(scores, kind, message):
    """`apply` and `Suite.of` gave numbers without a word."""
    labels = LABELS if scores.ndim == 2 else LABELS == 0
    calibrator = acls.calibrate(PROBS, LABELS, "probs")
    for call in (acls.evaluate, acls.calibrate, acls.Suite.of):
        with pytest.raises(InputError, match=message):
            call(scores, labels, kind=kind)
    with pytest.raises(InputError, match=message):
        acls.apply(calibrator, scores, kind)


@pytest.mark.parametrize(("said", "message"), [([50, 90], "is 50, outside 0..1: divide percent"), ([np.nan], "is NaN")])
def test_a_calibrator_is_not_applied_to_what_is_no_confidence(said, message):
    calibrator = acls.calibrate(confidence=SAID, correct=LABELS == 0, method="isotonic")
    with pytest.raises(InputError, match=f"row 0: confidence {message}"):
        acls.apply(calibrator, said)


def test_a_probability_that_rounding_put_below_0_is_0():
    given = np.where(PROBS < 1e-6, -1e-8, PROBS)
    assert (given < 0).any()
    assert acls.evaluate(given, LABELS, "probs")["ece"] == pytest.approx(
        acls.Suite.of(LOGITS, LABELS).summary()["ece"], abs=1e-6
    )
    assert np.isfinite(acls.apply(acls.calibrate(given, LABELS, "probs"), given, "probs")).all()


def test_stated_confidences_may_be_a_column_and_rounded_above_1():
    expected = acls.evaluate(confidence=SAID, correct=LABELS == 0)["ece"]
    assert acls.evaluate(confidence=SAID[:, None], correct=(LABELS == 0)[:, None])["ece"] == expected
    ones = [acls.evaluate(confidence=np.full(400, one), correct=LABELS == 0)["ece"] for one in (1.0, 1.0000001)]
    assert ones[0] == ones[1]
    over = acls.calibrate(confidence=np.full(400, 1.0000001), correct=LABELS == 0, method="isotonic")
    assert np.isfinite(acls.apply(over, [0.5, 1.0000001])).all()
    for name, other in (("correct", "confidence"), ("confidence", "correct")):
        with pytest.raises(InputError, match=f"^{name}= is missing"):
            acls.evaluate(**{other: LABELS == 0})


@pytest.mark.parametrize("scale", [1e20, 1e18, 1e-200, np.inf])
def test_weights_of_which_sums_are_not_exact_are_refused(scale):
    for call in (acls.evaluate, acls.calibrate, acls.Suite.of):
        with pytest.raises(
            InputError, match=r"divide the weights by their mean|expected a weight of 0 or more, got inf"
        ):
            call(PROBS, LABELS, kind="probs", sample_weight=np.full(400, scale))


@pytest.mark.parametrize("scale", [1e15, 1e-99])
def test_large_and_small_weights_change_no_value(scale):
    weight = np.full(400, scale)
    expected = acls.evaluate(PROBS, LABELS, kind="probs")["ece"]
    assert acls.evaluate(PROBS, LABELS, kind="probs", sample_weight=weight)["ece"] == pytest.approx(expected)
    assert acls.Suite.of(PROBS, LABELS, kind="probs", sample_weight=weight).summary()["ece"] == pytest.approx(expected)


def test_labels_that_start_at_1_are_not_to_be_ignored():
    for call in (acls.evaluate, acls.calibrate, acls.Suite.of):
        with pytest.raises(InputError, match=r"4, .*0\.\.3: class ids start at 0, so subtract 1"):
            call(PROBS, LABELS + 1, kind="probs")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: acls.calibrate(PROBS, LABELS, kind="probs", methd="ETS"), "calibrate takes no methd=: .*'method'"),
        (
            lambda: acls.write_report("r.html", PROBS, LABELS, "probs", titel="x"),
            "write_report takes no titel=.*'title'",
        ),
        (
            lambda: acls.Suite.of(PROBS, LABELS, kind="probs", weight=LABELS),
            "Suite.of takes no weight=.*'sample_weight'",
        ),
        (lambda: acls.Suite.of(PROBS, LABELS, knd="probs"), "Suite.of takes no knd=.*'kind'"),
    ],
)
def test_a_misspelt_argument_is_told_with_the_right_one(call, message):
    with pytest.raises(InputError, match=message):
        call()


def test_a_class_of_a_method_stands_for_its_defaults():
    assert repr(acls.make_loss(acls.ACLS)) == "ACLS()"
    assert repr(acls.make_loss(acls.MDCA, base=acls.Focal)) == "MDCA(base=Focal())"
    assert acls.calibrate(PROBS, LABELS, "probs", method=acls.Temperature).temperature > 1
    with pytest.raises(InputError, match="there is no loss 'Linear'"):
        acls.make_loss(torch.nn.Linear)


def test_a_calibrator_of_stated_confidences_takes_the_kind_that_is_given():
    confidence = PROBS[:, 0].clip(0.01, 0.99)
    calibrator = acls.calibrate(confidence=confidence, correct=LABELS == 0, method="platt")
    expected = acls.apply(calibrator, confidence)
    found = acls.apply(calibrator, np.log(confidence / (1 - confidence)), "logits")
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_a_result_shows_itself_shortly():
    result = acls.evaluate(PROBS, LABELS, kind="probs")
    assert len(repr(result)) < 200
    assert "n=400" in repr(result)
    shown = result._repr_html_()
    assert "Miscalibrated, overconfident" in shown
    assert shown.count("<tr>") > 4
    assert len(repr(result.suite)) < 100
    frame = pytest.importorskip("pandas") and result.to_frame()
    assert frame.loc["ece", "value"] == result["ece"]
    assert frame.loc["ece", "low"] < result["ece"] < frame.loc["ece", "high"]


def test_every_result_has_a_short_repr_and_html_for_a_notebook(tmp_path):
    """tests/front/test_commands_in_python.py tries those of every command."""
    pandas = pytest.importorskip("pandas")
    files = []
    for name, scores in (("sharp", PROBS), ("mended", TRUE)):
        files.append(str(tmp_path / f"{name}.npz"))
        np.savez(files[-1], probs=scores, labels=LABELS)
    both = acls.front.evaluate_files(files)
    tables = [
        acls.evaluate(files[0]), both, acls.front.compare_files(files), acls.front.measure_files(files),
        recommend(files[0], "temperature, ETS"),
    ]  # fmt: skip
    for one in (*tables, both.differences, predictions(PROBS, LABELS, "probs"), acls.front.Applied("a", "b", "c")):
        assert len(repr(one)) < 300, repr(one)
        assert repr(one).startswith(f"{type(one).__name__}(")
        assert one._repr_html_().startswith("<p>")
    for one in tables:
        assert isinstance(one.to_frame(), pandas.DataFrame)
        assert "<table>" in one._repr_html_()
    assert both.to_frame().loc[1, "ece"] == both.results["mended.npz"]["ece"]
    assert tables[2].to_frame().loc[0, "method"] == "sharp.npz"
    assert set(tables[3].to_frame()["protocol"]) == set(tables[3].numbers["sharp.npz"])
    assert list(tables[4].to_frame()["method"]) == ["Temperature", "ETS"]
    for name in texts._OF:
        assert issubclass(next(one for one in _below(Shown) if one.__name__ == name), Shown)


def _below(kind):
    return {one for own in kind.__subclasses__() for one in (own, *_below(own))}


def test_a_notebook_shows_what_a_calibrator_has_learned():
    shown = []
    calibrator = acls.calibrate(PROBS, LABELS, kind="probs")
    calibrator._repr_pretty_(types.SimpleNamespace(text=shown.append), False)
    assert shown == [f"Temperature(temperature={float(calibrator.temperature):.4g})"]


def test_a_calibrator_finds_the_temperature_and_mends_probabilities():
    calibrator = acls.calibrate(PROBS, LABELS, kind="probs")
    assert str(calibrator).startswith("Temperature(temperature=")
    assert float(calibrator.temperature) == pytest.approx(2.0, abs=0.3)
    mended = acls.apply(calibrator, PROBS, "probs")
    np.testing.assert_allclose(mended.sum(1), 1, rtol=1e-5)
    assert acls.evaluate(mended, LABELS, kind="probs")["ece"] < acls.evaluate(PROBS, LABELS, kind="probs")["ece"] / 2


@pytest.mark.parametrize("as_given", [list, np.asarray, torch.as_tensor], ids=["list", "NumPy", "torch"])
def test_a_calibrator_takes_weights_of_any_library(as_given):
    weight = np.arange(400) % 3
    weighted = acls.calibrate(PROBS, LABELS, kind="probs", sample_weight=as_given(weight))
    repeated = acls.calibrate(PROBS.repeat(weight, 0), LABELS.repeat(weight), kind="probs")
    assert float(weighted.temperature) == pytest.approx(float(repeated.temperature), rel=1e-6)
    assert float(weighted.temperature) != pytest.approx(
        float(acls.calibrate(PROBS, LABELS, "probs").temperature), rel=1e-3
    )
    with pytest.raises(InputError, match=r"expected sample_weight of shape \(400,\)"):
        acls.calibrate(PROBS, LABELS, kind="probs", sample_weight=[1.0])


def test_a_recommendation_takes_weights_and_a_whole_weight_is_that_many_equal_rows():
    n, weight = 24, np.arange(24) % 3 + 1
    rows = np.arange(n).repeat(weight)
    plain = predictions(PROBS[:n], LABELS[:n], "probs")
    weighted = predictions(PROBS[:n], LABELS[:n], "probs", sample_weight=weight)
    repeated = predictions(PROBS[rows], LABELS[rows], "probs", image=rows)  # the copies of a row stay in one fold
    settings = {"calibrators": "temperature", "folds": n}  # a fold for each row, so that both have the same
    one, two, none = (recommend(p, **settings) for p in (weighted, repeated, plain))
    assert one.text == two.text
    for a, b, c in zip(one.candidates, two.candidates, none.candidates, strict=True):
        assert a.judgement.after.nll == pytest.approx(b.judgement.after.nll, abs=1e-6)
        assert a.judgement.nll_change_se == pytest.approx(b.judgement.nll_change_se, abs=1e-6)
        assert a.judgement.after.nll != pytest.approx(c.judgement.after.nll, abs=1e-3), "the weights changed nothing"
    shown, again = (before_and_after([p], one.candidates, replicates=0)[0] for p in (weighted, repeated))
    for name in shown:
        assert shown[name].values == pytest.approx(again[name].values, abs=1e-5), name


def test_weights_of_maps_count_for_their_pixels():
    maps, labels = PROBS[:360].reshape(10, 6, 6, 4).transpose(0, 3, 1, 2), LABELS[:360].reshape(10, 6, 6)
    weight = np.arange(10) % 3
    weighted = acls.calibrate(maps, labels, "probs", sample_weight=weight)
    repeated = acls.calibrate(maps.repeat(weight, 0), labels.repeat(weight, 0), "probs")
    assert float(weighted.temperature) == pytest.approx(float(repeated.temperature), rel=1e-6)
    with pytest.raises(InputError, match=r"expected sample_weight of shape \(10,\), one number per row or map"):
        acls.evaluate(maps, labels, "probs", sample_weight=np.ones(360))


def test_a_page_refuses_weights_that_it_would_not_show(tmp_path):
    with pytest.raises(InputError, match="write_report does not support sample_weight"):
        acls.write_report(tmp_path / "page.html", PROBS, LABELS, "probs", sample_weight=np.ones(400))


@pytest.mark.parametrize("method", ["isotonic", "platt", "beta", "histogram"])
def test_stated_confidences_end_to_end(method):
    """The ECE of stated confidences is that of "the answer is right", which folding to a top label had hidden."""
    random = np.random.default_rng(7)  # its own: tests run in any order
    confidence = random.uniform(0.3, 1.0, 2000)
    correct = random.uniform(size=2000) < confidence - 0.2
    task = np.where(confidence > 0.6, "maths", "law")
    before = acls.evaluate(confidence=confidence, correct=correct, group=task)
    assert before["ece"] == pytest.approx(0.2, abs=0.04)
    assert before.groups.keys() == {"maths", "law"}
    calibrator = acls.calibrate(confidence=confidence, correct=correct, method=method)
    after = acls.apply(calibrator, confidence, "probs")
    assert after.shape == (2000,)
    assert acls.evaluate(confidence=after, correct=correct)["ece"] < before["ece"] / 2
    with pytest.raises(InputError, match="1 where the answer was right"):
        acls.evaluate(confidence=confidence, correct=confidence)


def test_stated_confidences_of_one_unit_are_not_independent():
    random = np.random.default_rng(7)
    confidence, correct = (np.repeat(random.uniform(size=200), 10) for _ in range(2))
    found = acls.evaluate(confidence=confidence, correct=correct < confidence, image=np.repeat(np.arange(200), 10))
    assert found.unit == "image"
    rows = acls.evaluate(confidence=confidence, correct=correct < confidence)
    (low, high), (by_row_low, by_row_high) = (one.intervals["accuracy"] for one in (found, rows))
    assert high - low > 2 * (by_row_high - by_row_low)


def test_binary_scores_need_no_second_column():
    p, y = PROBS[:, 0], (LABELS == 0).astype(float)
    two = acls.evaluate(np.stack([1 - p, p], 1), y.astype(int), kind="probs")
    assert acls.evaluate(p, y, kind="probs")["ece"] == pytest.approx(two["ece"], abs=1e-6)
    assert acls.apply(acls.calibrate(p, y, kind="probs"), p, "probs").shape == (400,)


def test_the_page_of_arrays(tmp_path):
    page = acls.write_report(tmp_path / "page.html", {"sharp": PROBS, "mended": TRUE}, LABELS, kind="probs")
    text = page.read_text(encoding="utf-8")
    assert "sharp" in text
    assert "mended" in text
    assert str(tmp_path) not in text


def test_dir_lists_what_there_is():
    assert {"evaluate", "calibrate", "write_report", "ACLS", "MbLS", "Temperature", "losses"} <= set(dir(acls))
    assert repr(acls.make_loss("ACLS(margin=6)")) == "ACLS(margin=6.0)"


def test_maps_are_rows_of_their_images():
    scores, labels = torch.randn(6, 3, 5, 5), torch.randint(3, (6, 5, 5))
    assert acls.evaluate(scores, labels).n == 150
    assert acls.evaluate(scores, labels).unit == "image"
