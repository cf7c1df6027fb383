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
    with pytest.raises(InputError, match="kind='logits'"):
        ours.CalibrationError(5, from_logits=False).update(logits.abs() + 2, labels)
    with pytest.raises(InputError, match="num_classes=3 calls for"):
        ours.CalibrationError(3, from_logits=True).update(logits, labels)
    with pytest.raises(InputError, match="norm is 'L1'"):
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
