"""Each metric equals its slow NumPy twin."""

import numpy as np
import pytest
import torch

from acls.metrics import Blocks, Confidences, Suite
from acls.metrics.batch import Batch
from acls.metrics.smooth import smooth_ece
from tests.metrics.made import as_triples, confidences, logits_and_labels
from tests.reference import metrics as oracle

CASES = [(1, 2, 15), (7, 3, 15), (150, 4, 10), (211, 12, 15), (90, 40, 7)]


@pytest.mark.parametrize("kind", ["logits", "probs", "log_probs"])
@pytest.mark.parametrize(("n", "k", "bins"), CASES)
def test_suite_equals_the_oracle(n, k, bins, kind):
    logits, labels = logits_and_labels(n, k, seed=n)
    scores = {"logits": logits, "probs": logits.softmax(1), "log_probs": logits.log_softmax(1)}[kind]
    summary = Suite.of(scores, labels, kind=kind, bins=bins, classwise=True, ace=True, confusion=True).summary()
    probs, y = logits.softmax(1).numpy(), labels.numpy()
    confidence, right = oracle.top(probs, y)
    predicted = probs.argmax(1)
    expected = {
        "n": n,
        "accuracy": oracle.accuracy(probs, y),
        "confidence": confidence.mean(),
        "top5": oracle.top5(probs, y),
        "nll": oracle.nll(np.maximum(probs, 1e-300), y),
        "brier": oracle.brier(probs, y),
        "ece": oracle.ece(confidence, right, bins),
        "overconfidence": oracle.overconfidence(confidence, right, bins),
        "underconfidence": oracle.ece(confidence, right, bins) - oracle.overconfidence(confidence, right, bins),
        "mce": oracle.mce(confidence, right, bins),
        "rmsce": oracle.rmsce(confidence, right, bins),
        "rmsce_debiased": oracle.rmsce_debiased(confidence, right, bins),
        "top_brier": ((confidence - right) ** 2).mean(),
        "aece": oracle.aece(confidence, right, bins),
        "ks": oracle.ks(confidence, right),
        "aurc": oracle.aurc(confidence, right),
        "classwise_ece": oracle.classwise_ece(probs, y, bins),
        "brier_calibration": oracle.brier_calibration(probs, y, bins),
        "brier_refinement": oracle.brier(probs, y) - oracle.brier_calibration(probs, y, bins),
        "ace": oracle.ace(probs, y, bins),
        "tace": oracle.ace(probs, y, bins, threshold=0.01),
        "miou": oracle.miou(predicted, y, k),
        "class_accuracy": oracle.class_accuracy(predicted, y),
    }
    if 0 < right.sum() < n:
        expected["auroc"] = oracle.auroc(confidence, right)
    for name, value in expected.items():
        assert summary[name] == pytest.approx(value, rel=1e-9, abs=1e-12), name
    known = {*expected, *(f"{name}_bound" for name in expected), "auroc", "auroc_bound", "smece", "smece_bound"}
    assert set(summary) <= known, "a metric without an oracle"


@pytest.mark.parametrize("ties", [False, True])
def test_smooth_ece_equals_the_oracle(ties):
    confidence, right = confidences(120, seed=3, ties=ties, gap=0.15)
    cells = Confidences.of_triples(*as_triples(confidence, right)).cells()
    value, _, bound = smooth_ece(cells)
    assert float(value) == pytest.approx(oracle.smooth_ece(confidence, right), abs=1e-9)
    assert float(bound) == 0


@pytest.mark.parametrize("n", [13, 14, 15, 16, 300])
def test_ties_share_their_hits_whatever_the_order(n):
    confidence, right = confidences(n, seed=n, ties=True)
    summary = Suite.of_triples(*as_triples(confidence, right)).summary()
    for order in (np.argsort(right), np.argsort(-right), np.random.default_rng(0).permutation(n)):
        other = Suite.of_triples(*as_triples(confidence[order], right[order])).summary()
        assert other == pytest.approx(summary, abs=1e-12, nan_ok=True)
    for name in ("aece", "ece"):
        assert summary[name] == pytest.approx(getattr(oracle, name)(confidence, right, 15), abs=1e-12)
    for name in ("ks", "aurc"):
        assert summary[name] == pytest.approx(getattr(oracle, name)(confidence, right), abs=1e-12)


@pytest.mark.parametrize("k", [10, 100])
def test_few_and_many_classes_in_float32_are_near_float64(k):
    """Both layouts of the one pass: classes first up to 32 of them, rows first beyond."""
    logits, labels = logits_and_labels(3000, k)
    wide, narrow = (Suite.of(logits.to(t), labels, classwise=True).summary() for t in (torch.float64, torch.float32))
    for name in ("accuracy", "top5", "nll", "brier", "confidence", "classwise_ece", "top_brier"):
        assert narrow[name] == pytest.approx(wide[name], rel=3e-6, abs=3e-7), name


def test_dense_maps_equal_their_pixels():
    logits, labels = logits_and_labels(2 * 5 * 6, 4)
    maps = logits.view(2, 5, 6, 4).movedim(-1, 1)
    target = labels.view(2, 5, 6).clone()
    target[0, 1, 2:5] = 255
    seen = target.flatten() != 255
    dense = Suite.of(maps, target, ignore_index=255, classwise=True, confusion=True).summary()
    assert dense == pytest.approx(
        Suite.of(logits[seen], labels[seen], classwise=True, confusion=True).summary(), abs=1e-12
    )


def test_a_row_of_equal_scores_predicts_the_first_class():
    batch = Batch.of(torch.zeros(3, 8), torch.tensor([0, 1, 7]), kind="logits")
    assert batch.top.right.tolist() == [True, False, False]
    assert batch.predicted.tolist() == [0, 0, 0]
    assert batch.top.label_in_five is not None
    assert batch.top.label_in_five.tolist() == [True, False, False]


def test_blocks_agree_with_the_suite():
    logits, labels = logits_and_labels(500, 6)
    suite = Suite.of(logits, labels, classwise=True).summary()
    blocks = Blocks.of(logits, labels, classwise=True).summary()
    for name, value in blocks.items():
        # Blocks keep confidences in coarse cells, which only the metrics of order notice.
        assert value == pytest.approx(suite[name], abs=2e-3 if name in ("aece", "ks", "smece") else 1e-12), name
