"""The adapters behave as torchmetrics' metrics do, and give our numbers."""

import contextlib

import pytest
import torch

from acls import vision
from acls.errors import InputError, MissingExtra
from acls.metrics import Suite
from tests.metrics.made import logits_and_labels

with contextlib.suppress(MissingExtra):
    vision.torchvision()
torchmetrics = pytest.importorskip("torchmetrics")

from acls.integrations import torchmetrics as ours  # noqa: E402

NAMES = {
    "CalibrationError": "ece",
    "AdaptiveCalibrationError": "aece",
    "ClasswiseCalibrationError": "classwise_ece",
    "SmoothCalibrationError": "smece",
}


@pytest.mark.parametrize(("name", "metric"), NAMES.items())
@pytest.mark.parametrize("from_logits", [True, False])
def test_batches_add_up_to_the_suites_number(name, metric, from_logits):
    logits, labels = logits_and_labels(500, 5, dtype=torch.float32)
    module = getattr(ours, name)(5, from_logits=from_logits)
    scores = logits if from_logits else logits.softmax(1)
    for start in range(0, 500, 77):
        module.update(scores[start : start + 77], labels[start : start + 77])
    expected = Suite.of(logits, labels, classwise=True).summary()[metric]
    bound = module.bound() if hasattr(module, "bound") else 0.0
    assert float(module.compute()) == pytest.approx(expected, abs=bound + 2e-6)
    assert bound < 1e-3
    module.reset()
    module.update(scores[:100], labels[:100])
    assert float(module.compute()) == pytest.approx(
        Suite.of(logits[:100], labels[:100], classwise=True).summary()[metric], abs=1e-3
    )


@pytest.mark.parametrize("name", NAMES)
def test_states_are_sums_of_constant_size(name):
    module = getattr(ours, name)(5, from_logits=True)
    logits, labels = logits_and_labels(50, 5)
    sizes = []
    for _ in range(3):
        module.update(logits, labels)
        sizes.append([getattr(module, state).numel() for state in module._defaults])
    assert sizes[0] == sizes[1] == sizes[2]
    assert all(reduce is torchmetrics.utilities.dim_zero_sum for reduce in module._reductions.values())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("from_logits", [True, False], ids=["logits", "probs"])
def test_binary_scores_are_two_classes(name, from_logits):
    logits, labels = logits_and_labels(301, 2, dtype=torch.float32)
    score = logits[:, 1] - logits[:, 0] if from_logits else logits.softmax(1)[:, 1]
    pair = torch.stack([torch.zeros(301) if from_logits else 1 - score, score], 1)
    two = getattr(ours, name)(2, from_logits=from_logits)
    two.update(pair, labels)
    for shape in ((-1,), (-1, 1)):
        for target in (labels, labels.float(), labels.reshape(shape)):
            one = getattr(ours, name)(task="binary", from_logits=from_logits)
            one.update(score.reshape(shape)[:100], target[:100])
            one.update(score.reshape(shape)[100:], target[100:])
            torch.testing.assert_close(one.compute(), two.compute(), rtol=0, atol=1e-9)


@pytest.mark.parametrize(("name", "metric"), NAMES.items())
def test_a_whole_weight_is_that_many_equal_samples_and_only_ratios_of_weights_matter(name, metric):
    logits, labels = logits_and_labels(500, 5, dtype=torch.float32)
    weight = torch.arange(500) % 4
    weighted, repeated, scaled, plain = (getattr(ours, name)(5, from_logits=True) for _ in range(4))
    for part in (slice(0, 123), slice(123, None)):  # the second batch has weights of another type
        weighted.update(logits[part], labels[part], weight[part] if part.start else weight[part].double())
        scaled.update(logits[part], labels[part], sample_weight=weight[part] * 0.7)
    repeated.update(logits.repeat_interleave(weight, 0), labels.repeat_interleave(weight))
    plain.update(logits, labels)
    assert float(weighted.compute()) == pytest.approx(float(repeated.compute()), abs=1e-9)
    expected = Suite.of(logits, labels, classwise=True, sample_weight=weight * 0.7).summary()[metric]
    bound = scaled.bound() if hasattr(scaled, "bound") else 0.0
    assert float(scaled.compute()) == pytest.approx(expected, abs=bound + 2e-6)
    assert abs(float(plain.compute()) - float(repeated.compute())) > 1e-3, "the weights changed nothing"
    assert {state.dtype for state in (getattr(weighted, one) for one in weighted._defaults)} == {torch.float64}
    with pytest.raises(InputError, match=r"expected one value per sample, shape \(500,\), got \(3,\)"):
        plain.update(logits, labels, torch.ones(3))


def test_weights_of_maps_are_those_of_their_pixels():
    logits, labels = logits_and_labels(60, 4)
    maps, target = logits.view(2, 5, 6, 4).movedim(-1, 1), labels.view(2, 5, 6)
    module, pixels = (ours.CalibrationError(4, from_logits=True) for _ in range(2))
    module.update(maps, target, torch.tensor([1, 3]))
    pixels.update(maps[[0, 1, 1, 1]], target[[0, 1, 1, 1]])
    assert float(module.compute()) == pytest.approx(float(pixels.compute()), abs=1e-9)


def test_binary_is_the_same_top_label_error_as_torchmetrics_two_class_one():
    score, labels = torch.rand(200, generator=torch.Generator().manual_seed(0)), torch.arange(200) % 2
    one = ours.CalibrationError(task="binary", n_bins=10, from_logits=False)
    theirs = torchmetrics.classification.MulticlassCalibrationError(2, n_bins=10)
    value = theirs(torch.stack([1 - score, score], 1), labels)
    assert float(one(score, labels)) == pytest.approx(float(value), abs=1e-6)


def test_several_labels_per_sample_are_refused_by_their_name():
    with pytest.raises(InputError, match=r"\(multilabel\) use one metric with task='binary' per label"):
        ours.CalibrationError(task="multilabel", num_labels=4, from_logits=True)
    many = torch.randint(0, 2, (20, 3), generator=torch.Generator().manual_seed(0))
    with pytest.raises(InputError, match=r"several labels per row \(multilabel\), pass one label at a time"):
        ours.CalibrationError(3, from_logits=True).update(torch.randn(20, 3), many)
    with pytest.raises(InputError, match="expected num_classes of 2 for task='binary', got 3"):
        ours.CalibrationError(3, task="binary", from_logits=True)
    with pytest.raises(InputError, match="expected num_classes of 2 or more for task='multiclass', got None"):
        ours.CalibrationError(from_logits=True)
    with pytest.raises(InputError, match="expected 0 or 1 with one score per row, got 2"):
        ours.CalibrationError(task="binary", from_logits=True).update(torch.randn(3), torch.tensor([0, 1, 2]))


def test_norms_and_a_collection():
    logits, labels = logits_and_labels(300, 5)
    summary = Suite.of(logits, labels).summary()
    collection = torchmetrics.MetricCollection(
        {norm: ours.CalibrationError(5, norm=norm, from_logits=True) for norm in ("l1", "l2", "max")}
    )
    collection.update(logits, labels)
    found = collection.compute()
    assert [float(found[norm]) for norm in ("l1", "l2", "max")] == pytest.approx(
        [summary["ece"], summary["rmsce"], summary["mce"]], abs=1e-6
    )


def test_forward_returns_the_batch_and_keeps_the_whole():
    logits, labels = logits_and_labels(200, 5)
    module = ours.CalibrationError(5, from_logits=True)
    first = module(logits[:100], labels[:100])
    module(logits[100:], labels[100:])
    assert float(first) == pytest.approx(Suite.of(logits[:100], labels[:100]).summary()["ece"], abs=1e-6)
    assert float(module.compute()) == pytest.approx(Suite.of(logits, labels).summary()["ece"], abs=1e-6)
    assert float(module.clone().compute()) == float(module.compute())


def test_dense_maps_with_ignored_pixels():
    logits, labels = logits_and_labels(60, 4)
    maps, target = logits.view(2, 5, 6, 4).movedim(-1, 1), labels.view(2, 5, 6).clone()
    target[0, 0] = 255
    module = ours.CalibrationError(4, ignore_index=255, from_logits=True)
    module.update(maps, target)
    assert float(module.compute()) == pytest.approx(Suite.of(maps, target, ignore_index=255).summary()["ece"], abs=1e-6)


def test_nothing_is_guessed():
    with pytest.raises(TypeError, match="from_logits"):
        ours.CalibrationError(5)
    logits, labels = logits_and_labels(20, 5)
    with pytest.raises(InputError, match="pass logits"):
        ours.CalibrationError(5, from_logits=False).update(logits.abs() + 2, labels)
    with pytest.raises(InputError, match="for num_classes=3, got"):
        ours.CalibrationError(3, from_logits=True).update(logits, labels)
    with pytest.raises(InputError, match="unknown norm 'L1'"):
        ours.CalibrationError(3, norm="L1", from_logits=True)


@pytest.mark.parametrize("name", NAMES)
def test_plot_draws_a_reliability_diagram(name, tmp_path):
    pytest.importorskip("matplotlib")
    from acls.report.figures.style import save

    logits, labels = logits_and_labels(300, 5)
    module = getattr(ours, name)(5, from_logits=True)
    module.update(logits, labels)
    figure, ax = module.plot()
    assert ax in figure.axes
    assert "ECE" in ax.get_legend().get_title().get_text()
    save(figure, tmp_path / "diagram.png")
    other, same = module.plot(ax=figure.add_subplot())
    assert other is figure
    assert same is figure.axes[-1]
