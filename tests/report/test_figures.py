"""Each figure's data against an oracle, and each drawing in every format."""

import math

import numpy as np
import pytest
import torch
from matplotlib import rcParams

from acls.errors import InputError
from acls.losses import ACLS, CE, MbLS
from acls.metrics import ClasswiseBins, Suite
from acls.metrics.distributions import wilson
from acls.report.figures import regulariser, reliability, sweeps
from acls.report.figures.reliability import smooth_curve
from acls.report.figures.style import canvas, save
from acls.study.advisor import Point, unbeaten
from tests.report.made import confidences, predictions


@pytest.fixture(scope="module")
def p():
    return predictions(n=4000)


@pytest.fixture(scope="module")
def suite(p):
    return Suite.of(p.scores, p.labels, classwise=True)


def histories(values):
    return [{"epoch": epoch, "val/ece": value} for epoch, value in enumerate(values)]


def prepared(suite):
    found, cells = suite.bins.reliability(), suite.confidences.cells()
    return {
        "reliability": (reliability.draw, reliability.prepare(found, cells)),
        "overlay": (reliability.draw_overlay, reliability.prepare_overlay({"one": found, "two": found})),
        "classes": (reliability.draw_class, reliability.prepare_classes(suite.classwise)[0]),
        "histogram": (reliability.draw_histogram, reliability.prepare_histogram(cells)),
        "activity": (regulariser.draw_activity, regulariser.prepare_activity(torch.linspace(0, 0.2, 50), "ACLS")),
        "epochs": (sweeps.draw_epochs, sweeps.prepare_epochs({"CE": [histories([0.3, 0.1]), histories([0.2, 0.2])]})),
        "margins": (sweeps.draw_sweep, sweeps.prepare_sweep({"ACLS": {6: [0.02, 0.03], 10: [0.01]}})),
        "heatmap": (
            sweeps.draw_grid,
            sweeps.prepare_grid({(0.0, 0.0): [0.05], (0.1, 0.0): [0.02], (0.1, 0.01): [0.03]}),
        ),
        "pareto": (sweeps.draw_front, {"CE": [Point(0.9, 0.05)], "ACLS": [Point(0.91, 0.02)]}),
    }


NAMES = list(prepared(Suite.of(9 * torch.eye(3).repeat(9, 1), torch.arange(27) % 3, classwise=True)))


@pytest.mark.parametrize("name", NAMES)
def test_every_figure_draws_in_every_format_and_leaves_matplotlib_as_it_was(name, suite, tmp_path):
    draw, data = prepared(suite)[name]
    before = dict(rcParams)
    figure, (ax,) = canvas()
    draw(data, ax)
    marks = [*ax.patches, *ax.lines, *ax.collections, *ax.images]
    assert marks, "nothing was drawn"
    assert ax.get_xlabel() or name == "classes"
    for form, start in (("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")):
        save(figure, tmp_path / f"{name}.{form}")
        content = (tmp_path / f"{name}.{form}").read_bytes()
        assert content.startswith(start)
        assert len(content) > 3000
    assert dict(rcParams) == before


def test_pyplot_is_not_touched(suite):
    import subprocess
    import sys

    code = (
        "import sys, torch\nfrom acls.metrics import Suite\nfrom acls.report.figures import reliability\n"
        "reliability.plot(Suite.of(9 * torch.eye(3), torch.arange(3)).bins.reliability())\n"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_reliability_is_the_oracles_bins(p, suite):
    confidence, right = confidences(p)
    data = reliability.prepare(suite.bins.reliability(), suite.confidences.cells())
    edges = np.linspace(0, 1, 16, dtype=np.float32)
    for row in data.rows:
        inside = (confidence > np.float32(row.lower)) & (confidence <= np.float32(row.upper))
        assert row.count == inside.sum()
        assert row.accuracy == pytest.approx(right[inside].mean())
        assert row.confidence == pytest.approx(confidence[inside].mean(), rel=1e-5)
        assert row.low <= row.accuracy <= row.high
    held = np.histogram(confidence, edges)[0] > 0
    assert len(data.rows) == held.sum(), "empty bins are left out"
    assert data.ece == pytest.approx(suite.bins.ece)
    assert sum(count for _, _, count in data.histogram) == len(p)


def test_a_bar_is_as_tall_as_its_accuracy_and_the_gap_ends_at_the_confidence(suite):
    data = reliability.prepare(suite.bins.reliability())
    _, (ax, strip) = canvas(2, 1, height_ratios=(4, 1))
    reliability.draw(data, ax, strip)
    bars, gaps = ax.containers[:2]
    assert [bar.get_height() for bar in bars] == pytest.approx([row.accuracy for row in data.rows])
    assert [bar.get_y() + bar.get_height() for bar in gaps] == pytest.approx([row.confidence for row in data.rows])
    assert sum(bar.get_height() for bar in strip.containers[0]) == data.n


def test_wilson_covers_and_stays_within_its_range():
    random = np.random.default_rng(0)
    for share, n in ((0.5, 40), (0.95, 100), (0.02, 200)):
        ends = [wilson(hits / n, n) for hits in random.binomial(n, share, 4000)]
        covered = np.mean([low <= share <= high for low, high in ends])
        assert 0.92 < covered < 0.985
    assert wilson(0.0, 5)[0] == 0
    assert wilson(1.0, 5)[1] == 1
    assert wilson(1 + 1e-12, 5)[1] == 1


def test_the_smooth_curve_of_a_calibrated_model_is_the_diagonal_and_bends_where_it_is_not():
    calibrated, sharp = predictions(n=40_000, sharpness=1.0), predictions(n=40_000, sharpness=2.0)
    curve = smooth_curve(Suite.of(calibrated.scores, calibrated.labels).confidences.cells())
    inside = [low <= x <= high for x, low, high in zip(curve.confidence, curve.low, curve.high, strict=True)]
    assert np.mean(inside) > 0.85
    assert max(abs(x - y) for x, y in zip(curve.confidence, curve.accuracy, strict=True)) < 0.05
    bent = smooth_curve(Suite.of(sharp.scores, sharp.labels).confidences.cells())
    middle = [x - y for x, y in zip(bent.confidence, bent.accuracy, strict=True) if 0.6 < x < 0.95]
    assert min(middle) > 0.03


def test_the_smooth_curve_passes_through_the_bins_intervals(p, suite):
    data = reliability.prepare(suite.bins.reliability(), suite.confidences.cells())
    for row in data.rows:
        if row.count > 100 and row.upper < 0.99:
            at = float(np.interp(row.confidence, data.curve.confidence, data.curve.accuracy))
            assert row.low - 0.03 < at < row.high + 0.03


def test_a_curve_of_one_confidence_does_not_fail():
    found = Suite.of_triples(torch.full((50,), 0.8), torch.zeros(50).long(), (torch.arange(50) % 5 == 0).long())
    curve = smooth_curve(found.confidences.cells())
    assert curve.accuracy == pytest.approx([0.8] * len(curve.accuracy), abs=1e-6)


def test_the_class_grid_has_each_classs_own_bins(p, suite):
    probability = torch.from_numpy(np.exp(p.scores.numpy().astype(np.float64))).double()
    probability = (probability / probability.sum(1, keepdim=True)).numpy()
    grid = reliability.prepare_classes(suite.classwise, [f"class {k}" for k in range(4)])
    assert [name for name, _ in grid] == ["class 0", "class 1", "class 2", "class 3"]
    edges = np.linspace(0, 1, 16)
    for k, (_, one) in enumerate(grid):
        own = np.clip(np.digitize(probability[:, k], edges, right=True) - 1, 0, 14)
        hits = p.labels.numpy() == k
        expected = [hits[own == b].mean() for b in range(15) if (own == b).any()]
        assert [row.accuracy for row in one.rows] == pytest.approx(expected, abs=1e-6)
        assert one.accuracy == pytest.approx(hits.mean())
        assert one.n == len(p)
    assert np.mean([one.ece for _, one in grid]) == pytest.approx(suite.classwise.ece)


def test_of_many_classes_the_worst_calibrated_are_shown():
    many = predictions(n=500, classes=40)
    found = ClasswiseBins.of(many.scores, many.labels)
    grid = reliability.prepare_classes(found, most=6)
    worst = sorted(found.ece_by_class().tolist(), reverse=True)[:6]
    assert [one.ece for _, one in grid] == pytest.approx(worst)
    with pytest.raises(InputError, match="3 names for 40 classes"):
        reliability.prepare_classes(found, ["a", "b", "c"])


def test_the_histogram_counts_right_and_wrong(p, suite):
    confidence, right = confidences(p)
    data = reliability.prepare_histogram(suite.confidences.cells(), bins=10)
    edges = np.linspace(0, 1, 11).astype(np.float32)
    place = np.clip(np.searchsorted(edges, confidence, side="left") - 1, 0, 9)
    assert data.right == np.bincount(place[right], minlength=10).tolist()
    assert data.wrong == np.bincount(place[~right], minlength=10).tolist()
    assert data.accuracy == pytest.approx(right.mean())


def test_the_histogram_puts_samples_of_small_weight_in_the_bin_of_their_confidence(p):
    weight = np.random.default_rng(0).uniform(0, 1e-4, len(p.labels))  # all together: less than 1
    light = Suite.of(p.scores, p.labels, kind="logits", sample_weight=torch.tensor(weight))
    data = reliability.prepare_histogram(light.confidences.cells(), bins=10)
    confidence, right = confidences(p)
    share = [
        np.histogram(confidence[rows], 10, (0, 1), weights=weight[rows])[0] / weight.sum() for rows in (right, ~right)
    ]
    held = sum(data.right) + sum(data.wrong)
    assert np.array(data.right) / held == pytest.approx(share[0], abs=1e-6)
    assert np.array(data.wrong) / held == pytest.approx(share[1], abs=1e-6)
    assert data.accuracy == pytest.approx(weight[right].sum() / weight.sum())
    drawn = reliability.prepare(light.bins.reliability())
    found = light.summary()
    assert (drawn.ece, drawn.accuracy) == pytest.approx((found["ece"], found["accuracy"]))


def test_activity_is_the_share_of_samples_whose_regulariser_is_not_zero():
    logits, target = torch.tensor([[9.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 2.0, 0.0]]), torch.tensor([0, 1, 1])
    values = regulariser.penalties(MbLS(margin=6.0, reduction="none"), logits, target)
    assert values.shape == (3,)
    found = regulariser.prepare_activity(values)
    assert found.inactive == pytest.approx(2 / 3)
    assert sum(found.shares) == pytest.approx(1)
    assert found.shares[-1] == pytest.approx(1 / 3), "what is beyond the largest value counts as it"


def test_activity_refuses_what_has_no_value_a_sample():
    logits, target = torch.randn(5, 3), torch.zeros(5).long()
    with pytest.raises(InputError, match="no regulariser"):
        regulariser.penalties(CE(reduction="none"), logits, target)
    with pytest.raises(InputError, match='reduction="none"'):
        regulariser.penalties(ACLS(margin=1.0), logits, target)
    with pytest.raises(InputError, match="finite"):
        regulariser.prepare_activity(torch.tensor([float("nan")]))


def test_epochs_are_counted_from_one_and_averaged_over_the_seeds_that_reached_them():
    line = sweeps.prepare_epochs({"CE": [histories([0.3, 0.1]), histories([0.1, 0.2, 0.4])]}).methods["CE"]
    assert line.x == [1, 2, 3]
    assert line.mean == pytest.approx([20, 15, 40])
    assert line.low == pytest.approx([10, 10, 40])
    assert line.high == pytest.approx([30, 20, 40])
    with pytest.raises(InputError, match="no val/nll"):
        sweeps.prepare_epochs({"CE": [histories([0.1])]}, "nll")


def test_the_sweep_has_its_margins_ascending():
    line = sweeps.prepare_sweep({"ACLS": {10: [0.01, 0.03], 2: [0.05]}}).methods["ACLS"]
    assert line.x == [2, 10]
    assert line.mean == pytest.approx([5, 2])
    assert line.deviation == pytest.approx([0, math.sqrt(2)])


def test_the_heat_map_finds_the_least_and_leaves_holes():
    found = sweeps.prepare_grid({(0.1, 0.0): [0.02, 0.04], (0.0, 0.0): [0.05], (0.1, 0.01): [0.02]})
    assert found.first == [0.0, 0.1]
    assert found.second == [0.0, 0.01]
    np.testing.assert_allclose(found.values, [[0.05, np.nan], [0.03, 0.02]])
    assert found.best() == (1, 1)


def test_nothing_on_the_front_is_beaten_and_all_else_is():
    random = np.random.default_rng(1)
    points = [Point(*pair) for pair in random.random((60, 2)).round(1)]
    front = unbeaten(points)

    def beats(one, other):
        no_worse = one.accuracy >= other.accuracy and one.ece <= other.ece
        return no_worse and (one.accuracy > other.accuracy or one.ece < other.ece)

    assert set(front) == {q for q in points if not any(beats(o, q) for o in points)}
    assert [q.accuracy for q in front] == sorted(q.accuracy for q in front)


@pytest.mark.parametrize("form", ["png", "svg", "pdf"])
def test_the_same_figure_gives_the_same_bytes(form, tmp_path):
    written = []
    for name in ("one", "two"):
        figure, (ax,) = canvas()
        ax.plot([0, 1], [1, 0], "o-", label="line")
        save(figure, tmp_path / f"{name}.{form}")
        written.append((tmp_path / f"{name}.{form}").read_bytes())
    assert written[0] == written[1]
