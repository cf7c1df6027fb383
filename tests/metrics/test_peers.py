"""The same arrays through other libraries: equal where conventions agree, and the known difference where not."""

import contextlib
import warnings

import numpy as np
import pytest
import torch

from acls import vision
from acls.errors import MissingExtra
from acls.metrics import Bins, Confidences, Suite
from acls.metrics.protocols import PROTOCOLS
from acls.metrics.smooth import smooth_ece
from tests.metrics.made import as_triples, confidences, logits_and_labels


@pytest.fixture(scope="module", autouse=True)
def _quiet():
    with contextlib.suppress(MissingExtra):
        vision.torchvision()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.fixture(scope="module")
def predictions():
    logits, labels = logits_and_labels(2000, 6, dtype=torch.float32)
    return logits.softmax(1), labels


def test_torchmetrics_ece_is_our_protocol_of_that_name(predictions):
    functional = pytest.importorskip("torchmetrics.functional.classification")
    probs, labels = predictions
    assert bool((probs.max(1).values == 1).any()), "the difference needs saturated confidences"
    ours = PROTOCOLS["torchmetrics"].measure(probs, labels, kind="probs")
    for norm, name in (("l1", "ece"), ("l2", "rmsce"), ("max", "mce")):
        theirs = functional.multiclass_calibration_error(probs, labels, 6, n_bins=15, norm=norm)
        assert float(theirs) == pytest.approx(ours[name], abs=2e-6), norm


def test_torchmetrics_differs_from_the_papers_by_the_bin_of_ones():
    functional = pytest.importorskip("torchmetrics.functional.classification")
    # In the last bin, one group is too sure and the other not sure enough: (lo, hi] cancels, a bin of ones does not.
    probs = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.95, 0.05], [0.95, 0.05]])
    labels = torch.tensor([1, 0, 0, 0])
    theirs = float(functional.multiclass_calibration_error(probs, labels, 2, n_bins=15))
    assert theirs == pytest.approx(1.1 / 4)
    assert Suite.of(probs, labels, kind="probs").summary()["ece"] == pytest.approx(0.9 / 4)


def test_netcal_ece_and_mce(predictions):
    netcal = pytest.importorskip("netcal.metrics")
    probs, labels = predictions
    summary = Suite.of(probs, labels, kind="probs").summary()
    arrays = probs.double().numpy(), labels.numpy()
    assert netcal.ECE(15).measure(*arrays) == pytest.approx(summary["ece"], abs=2e-6)
    assert netcal.MCE(15).measure(*arrays) == pytest.approx(summary["mce"], abs=2e-6)


def test_netcal_ace_averages_bins_without_their_sizes():
    netcal = pytest.importorskip("netcal.metrics")
    # Its ACE is the plain mean over bins; ours, as everyone's ECE, weighs them by their samples.
    confidence = np.array([0.95] * 9 + [0.55])
    right = np.array([1] * 9 + [0])
    theirs = netcal.ACE(10).measure(confidence, right)
    ours = Bins.of_triples(*as_triples(confidence, right), bins=10).ece
    assert ours == pytest.approx((9 * 0.05 + 0.55) / 10)
    assert theirs != pytest.approx(ours, abs=0.01)


def test_torch_uncertainty_adaptive_ece(predictions):
    classification = pytest.importorskip("torch_uncertainty.metrics.classification")
    logits, labels = logits_and_labels(2000, 6, seed=1)
    logits = logits / 20  # no ties, where only the order of equals would decide
    metric = classification.AdaptiveCalibrationError(task="multiclass", num_classes=6, num_bins=15)
    metric.update(logits.softmax(1), labels)
    assert float(metric.compute()) == pytest.approx(Suite.of(logits, labels).summary()["aece"], abs=2e-6)


def test_torch_uncertainty_depends_on_the_order_of_ties_and_we_do_not(predictions):
    classification = pytest.importorskip("torch_uncertainty.metrics.classification")
    probs = torch.full((40, 2), 0.5)
    probs[:, 0], probs[:, 1] = 0.8, 0.2
    labels = torch.tensor([0] * 20 + [1] * 20)
    values = []
    for order in (slice(None), torch.randperm(40, generator=torch.Generator().manual_seed(0))):
        metric = classification.AdaptiveCalibrationError(task="multiclass", num_classes=2, num_bins=4)
        metric.update(probs[order], labels[order])
        values.append(float(metric.compute()))
    assert values[0] != pytest.approx(values[1], abs=1e-3)
    assert Suite.of(probs, labels, kind="probs", bins=4).summary()["aece"] == pytest.approx(0.3, abs=1e-6)


def test_torch_uncertainty_brier_sums_over_classes(predictions):
    classification = pytest.importorskip("torch_uncertainty.metrics.classification")
    probs, labels = predictions
    metric = classification.BrierScore(num_classes=6)
    metric.update(probs, labels)
    assert float(metric.compute()) == pytest.approx(Suite.of(probs, labels, kind="probs").summary()["brier"], abs=2e-6)


@pytest.mark.parametrize("gap", [0.0, 0.05, 0.3])
def test_relplot_smooth_ece(gap):
    relplot = pytest.importorskip("relplot")
    confidence, right = confidences(3000, seed=2, gap=gap)
    theirs, width = relplot.smECE(confidence, right, return_width=True)
    value, ours, _ = smooth_ece(Confidences.of_triples(*as_triples(confidence, right)).cells())
    assert float(value) == pytest.approx(theirs, abs=2e-5)
    assert float(ours) == width


def test_relplot_counts_half_of_what_is_saturated(predictions):
    """Mass on the end of its grid weighs half, so that misses elsewhere count for more than all residuals together."""
    relplot = pytest.importorskip("relplot")
    confidence = np.concatenate([np.ones(900), np.full(100, 0.7)])
    right = np.concatenate([np.ones(900), np.zeros(100)])
    cells = Confidences.of_triples(*as_triples(confidence, right)).cells()
    theirs = relplot.smECE(confidence, right)
    assert float(smooth_ece(cells)[0]) == pytest.approx(theirs, abs=1e-6)
    mean_residual = np.abs(confidence - right).mean()
    assert theirs > 1.5 * mean_residual


def test_uncertainty_calibration_debiased_error():
    """Kumar et al.'s own code, on confidences whose bins each hold one value, as its binning demands."""
    calibration = pytest.importorskip("calibration")
    random = np.random.default_rng(0)
    confidence = random.choice([0.15, 0.35, 0.55, 0.75, 0.95], 2000)
    right = (random.random(2000) < confidence - 0.05).astype(float)
    bins = [[(p, y) for p, y in zip(confidence, right, strict=True) if p == value] for value in np.unique(confidence)]
    theirs = calibration.utils.unbiased_square_ce(bins) ** 0.5
    ours = Bins.of_triples(*as_triples(confidence, right), bins=10).rmsce_debiased
    assert ours == pytest.approx(theirs, abs=1e-9)


def test_sklearn_log_loss_brier_auroc(predictions):
    sklearn = pytest.importorskip("sklearn.metrics")
    logits, labels = logits_and_labels(500, 4)
    logits = logits / 5
    probs = logits.softmax(1)
    confidence, predicted = probs.max(1)
    summary = Suite.of(logits, labels, confusion=True).summary()
    assert summary["nll"] == pytest.approx(sklearn.log_loss(labels, probs.numpy()), abs=1e-9)
    assert summary["auroc"] == pytest.approx(sklearn.roc_auc_score((predicted == labels).numpy(), confidence.numpy()))
    assert summary["class_accuracy"] == pytest.approx(sklearn.balanced_accuracy_score(labels, predicted))
    assert summary["miou"] == pytest.approx(sklearn.jaccard_score(labels, predicted, average="macro"))


def test_brier_of_two_classes_is_twice_scikit_learns():
    sklearn_metrics = pytest.importorskip("sklearn.metrics")
    p, y = torch.tensor([0.8, 0.4, 0.3]), torch.tensor([1, 0, 1])
    ours = Suite.of(torch.stack([1 - p, p], 1), y, kind="probs").summary()["brier"]
    assert ours == pytest.approx(2 * sklearn_metrics.brier_score_loss(y.numpy(), p.numpy()))
