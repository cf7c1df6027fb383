"""Protocols: streamed as whole, hashable, each with its difference."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from acls.calibrators import Temperature
from acls.errors import InputError
from acls.metrics.batch import Batch
from acls.metrics.protocols import PROTOCOLS, interpolated_aece, protocol
from acls.predictions import to_logits
from tests.metrics.made import as_triples, confidences, logits_and_labels
from tests.reference import metrics as oracle


def test_the_issue_names_them_all():
    assert set(PROTOCOLS) == {
        "pooled", "guo", "aece-reference", "mbls-segmentation", "cals-segmentation", "torchmetrics", "ts-grid",
    }  # fmt: skip
    with pytest.raises(InputError, match="did you mean 'guo'"):
        protocol("gou")


def test_a_protocol_is_a_record_that_numbers_can_carry():
    assert len(set(PROTOCOLS.values())) == len(PROTOCOLS)
    assert dataclasses.replace(PROTOCOLS["guo"], bins=10) != PROTOCOLS["guo"]
    assert all(one.why for one in PROTOCOLS.values())


@pytest.mark.parametrize("name", PROTOCOLS)
@pytest.mark.parametrize("rows", [11, 50, 97])
def test_a_stream_gives_the_numbers_of_the_whole(name, rows):
    logits, labels = logits_and_labels(200, 4)
    image = torch.arange(200) // 9
    whole = PROTOCOLS[name].measure(logits, labels, image=image)
    meter = PROTOCOLS[name].meter()
    for start in range(0, 200, rows):
        part = slice(start, start + rows)
        meter.add(Batch.of(logits[part], labels[part], kind="logits"), image[part])
    assert meter.result() == pytest.approx(whole, abs=1e-12)


def test_maps_are_images_of_their_own_also_across_batches():
    logits, labels = logits_and_labels(4 * 30, 3)
    maps, target = logits.view(4, 5, 6, 3).movedim(-1, 1), labels.view(4, 5, 6)
    image = torch.arange(4).repeat_interleave(30)
    for name in ("mbls-segmentation", "cals-segmentation"):
        expected = PROTOCOLS[name].measure(logits, labels, image=image)
        assert PROTOCOLS[name].measure(maps, target) == pytest.approx(expected, abs=1e-12)
        meter = PROTOCOLS[name].meter()
        for start in range(4):
            meter.add(Batch.of(maps[start : start + 1], target[start : start + 1], kind="logits"))
        assert meter.result() == pytest.approx(expected, abs=1e-12)
    with pytest.raises(InputError, match="pass image="):
        PROTOCOLS["cals-segmentation"].measure(logits, labels)


def test_an_image_of_background_only_is_left_out():
    logits, labels = logits_and_labels(60, 3)
    image = torch.arange(60) // 20
    labels[20:40] = 0
    one_by_one = dataclasses.replace(PROTOCOLS["mbls-segmentation"], images=1)
    keep = (image != 1).nonzero()[:, 0]
    expected = one_by_one.measure(logits[keep], labels[keep], image=image[keep])
    assert one_by_one.measure(logits, labels, image=image) == pytest.approx(expected, abs=1e-12)
    assert one_by_one.measure(logits, torch.zeros_like(labels), image=image) == {}


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("n", [1, 2, 14, 15, 16, 300])
def test_the_reference_rule_drops_the_least_confident(n, ties):
    confidence, right = confidences(n, seed=n, ties=ties)
    value = interpolated_aece(torch.tensor(confidence), torch.tensor(right), 15)
    assert value == pytest.approx(oracle.aece_reference(confidence, right, 15), abs=1e-12)
    # Whatever the least confident sample's label, the value is the same.
    flipped = np.where(confidence == confidence.min(), 1 - right, right)
    assert interpolated_aece(torch.tensor(confidence), torch.tensor(flipped), 15) == value


def test_torchmetrics_splits_the_saturated_from_the_last_bin():
    confidence = np.array([1.0, 1.0, 0.95, 0.95])
    right = np.array([0.0, 1.0, 1.0, 1.0])
    meter = PROTOCOLS["torchmetrics"].meter()
    meter.add(Batch.of_triples(*as_triples(confidence, right)))
    assert (
        meter.result()["ece"] == pytest.approx(oracle.ece_left_closed(confidence, right, 15)) == pytest.approx(1.1 / 4)
    )
    pooled = PROTOCOLS["pooled"].meter()
    pooled.add(Batch.of_triples(*as_triples(confidence, right)))
    assert pooled.result()["ece"] == pytest.approx(0.9 / 4)


def test_the_grid_takes_probabilities_too():
    logits, labels = logits_and_labels(100, 3)
    of_logits = PROTOCOLS["ts-grid"].measure(logits, labels)
    of_probs = PROTOCOLS["ts-grid"].measure(logits.softmax(1).clamp(min=1e-300), labels, kind="probs")
    assert of_probs == pytest.approx(of_logits, abs=1e-9)
    assert of_logits["ece"] <= PROTOCOLS["guo"].measure(logits, labels)["ece"] + 1e-12


def test_rounded_probabilities_have_one_temperature_by_protocol_and_by_calibrator():
    """The protocol once took the logarithm of 0: its NLL was infinite, and its temperature another."""
    logits, labels = logits_and_labels(2000, 3)
    rounded = ((4 * logits).softmax(1).double() * 100).round() / 100
    assert (rounded == 0).any()
    found = PROTOCOLS["ts-grid"].measure(rounded, labels, kind="probs")
    fitted = Temperature(objective="ece", grid=True).fit(to_logits(rounded, "probs"), labels)
    assert found["temperature"] == pytest.approx(float(fitted.temperature))
    assert math.isfinite(found["nll"])


def test_a_batch_is_measured_by_itself_and_weighs_what_it_holds():
    logits, labels = logits_and_labels(20 * 30, 4)
    image = torch.arange(20).repeat_interleave(30)
    found = PROTOCOLS["mbls-segmentation"].measure(logits, labels, image=image)
    alone = PROTOCOLS["aece-reference"]
    total, weighted = 0, 0.0
    for first in (0, 8, 16):
        rows = (image >= first) & (image < first + 8) & (labels != 0)
        total += int(rows.sum())
        weighted += int(rows.sum()) * alone.measure(logits[rows], labels[rows])["ece"]
    assert found["n"] == total
    assert found["ece"] == pytest.approx(weighted / total, abs=1e-12)
