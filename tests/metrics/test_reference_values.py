"""Numbers that others computed: the golden file, and real networks' published or tabulated values."""

import json

import numpy as np
import pytest
import torch

from acls.metrics import Suite
from acls.metrics.protocols import PROTOCOLS
from tests.conftest import GOLDEN


@pytest.fixture(scope="module")
def golden():
    return json.loads(GOLDEN.read_text())


@pytest.fixture(scope="module")
def golden_set(golden):
    """The 300 closed-form predictions of the golden file."""
    i, j = np.arange(300)[:, None], np.arange(5)[None]
    scale = np.where(i % 3 == 0, 0.25, 1)
    logits = scale * (4 * np.sin(1.7 * i + 2.3 * j) + 2.5 * np.cos(0.37 * i * (j + 1)))
    return torch.tensor(logits), torch.tensor(golden["metrics"]["labels"])


@pytest.fixture(scope="module")
def golden_maps(golden):
    k, c = np.arange(84).reshape(2, 1, 6, 7), np.arange(21).reshape(1, 21, 1, 1)
    logits = 9 * np.sin(0.7 * k + 1.3 * c) + 2 * np.cos(0.11 * k * c)
    labels = np.array(golden["cases"]["seg_2_21_6_7"]["labels"]).reshape(2, 6, 7)
    return torch.tensor(logits), torch.tensor(labels)


def close(value):
    return pytest.approx(value, rel=1e-9, abs=1e-12)


def test_golden_metrics(golden, golden_set):
    expected = golden["metrics"]
    summary = Suite.of(*golden_set, classwise=True).summary()
    focal, mdca = expected["focal_calibration"], expected["mdca_repo"]
    assert summary["ece"] == close(focal["ECE15"]) == close(mdca["ECE15"])
    assert summary["mce"] == close(focal["MCE15"])
    assert summary["rmsce"] == close(focal["l2_15"])
    assert summary["classwise_ece"] == close(focal["CECE15"]) == close(mdca["SCE15"])
    assert summary["brier"] == close(mdca["brier"])
    assert summary["nll"] == close(expected["nll"])
    assert summary["accuracy"] == close(expected["accuracy"])
    assert summary["ks"] == close(expected["ks_top1"])
    assert summary["smece"] == close(expected["relplot"]["smECE"])
    assert summary["aece"] == close(expected["equal_mass_exact_15 (sorted, array_split, weighted)"])
    assert Suite.of(*golden_set, bins=10).summary()["ece"] == close(focal["ECE10"])


def test_golden_conventions(golden, golden_set):
    logits, labels = golden_set
    focal = golden["metrics"]["focal_calibration"]
    assert PROTOCOLS["aece-reference"].measure(logits, labels)["aece"] == close(focal["AECE15"])
    chosen = golden["posthoc"]["grid_0.1_to_10_step_0.1"]["ece"]
    grid = PROTOCOLS["ts-grid"].measure(logits, labels)
    assert (grid["temperature"], grid["ece"]) == (close(chosen["T"]), close(chosen["value"]))


@pytest.mark.parametrize(
    ("case", "name", "images"),
    [
        ("mbls_one_batch_of_2_no_background", "mbls-segmentation", 8),
        ("mbls_two_batches_of_1_no_background", "mbls-segmentation", 1),
        ("cals_per_image_with_background", "cals-segmentation", 1),
        ("pooled_all_valid_pixels_with_background", "aece-reference", 0),
    ],
)
def test_golden_segmentation(golden, golden_maps, case, name, images):
    import dataclasses

    protocol = dataclasses.replace(PROTOCOLS[name], images=images)
    numbers = protocol.measure(*golden_maps, ignore_index=255)
    for metric, value in golden["segmentation_eval"][case].items():
        assert numbers["classwise_ece" if metric == "cece" else metric] == close(value), metric


# The table's percentages were rounded to three decimals before two (5.0845 became 5.085, then 5.09).
PERCENT = 0.0056


def percent(value):
    return pytest.approx(value, abs=PERCENT)


@pytest.mark.parametrize(
    ("net", "error", "ece", "aece", "nll"),
    [
        ("resnet20", 8.27, 5.32, 5.30, 0.3727),
        ("resnet32", 7.37, 5.09, 5.07, 0.3741),
        ("resnet44", 6.90, 4.69, 4.64, 0.3333),
        ("resnet56", 6.61, 4.65, 4.64, 0.3458),
    ],
)
def test_cifar10_resnets(outputs, net, error, ece, aece, nll):
    data = np.load(outputs("cifar10_akamaster_resnets"))
    numbers = PROTOCOLS["aece-reference"].measure(torch.tensor(data[net]), torch.tensor(data["labels"]))
    assert 100 * (1 - numbers["accuracy"]) == pytest.approx(error, abs=1e-9)
    assert 100 * numbers["ece"] == percent(ece)
    assert 100 * numbers["aece"] == percent(aece)
    assert numbers["nll"] == pytest.approx(nll, abs=6e-5)


@pytest.mark.parametrize(
    ("file", "model", "accuracy", "ece", "aece"),
    [
        ("cifar10_widmann_14nets_probs", "densenet121", None, 4.10, 4.04),
        ("cifar10_widmann_14nets_probs", "googlenet", None, 1.37, 1.28),
        ("cifar10_widmann_14nets_probs", "resnet18", None, 5.35, 5.25),
        ("cifar10_widmann_14nets_probs", "vgg19_bn", None, 4.92, 4.86),
        ("cifar10_netcal_probs", "lenet_5_probs", 53.08, 10.79, 10.79),
        ("cifar10_netcal_probs", "wideresnet_16_4_probs", 91.09, 5.37, 5.37),
        ("cifar10_vgg16_verified_probs", "probs", 93.59, 3.98, 3.97),
    ],
)
def test_networks_of_others(outputs, file, model, accuracy, ece, aece):
    data = np.load(outputs(file))
    probs = data["probs"][list(data["models"]).index(model)] if "models" in data else data[model]
    labels = torch.tensor(data["labels"]).long()
    numbers = PROTOCOLS["aece-reference"].measure(torch.tensor(probs), labels, kind="probs")
    assert 100 * numbers["ece"] == percent(ece)
    assert 100 * numbers["aece"] == percent(aece)
    if accuracy is not None:
        assert 100 * numbers["accuracy"] == pytest.approx(accuracy, abs=1e-9)


def test_voc_pixels_under_every_protocol(outputs):
    data = np.load(outputs("voc2012_espnetv2_pixels"))
    logits, labels, image = (torch.tensor(data[name]) for name in ("logits", "labels", "image_index"))
    numbers = PROTOCOLS["pooled"].measure(logits, labels)
    assert 100 * numbers["accuracy"] == percent(92.18)
    assert 100 * numbers["ece"] == percent(0.42)
    assert 100 * numbers["aece"] == percent(0.39)
    by_batch = PROTOCOLS["mbls-segmentation"].measure(logits, labels, image=image)
    by_image = PROTOCOLS["cals-segmentation"].measure(logits, labels, image=image)
    # Averages of small batches' errors are many times the error of the whole.
    assert 100 * by_batch["ece"] == percent(8.25)
    assert by_image["ece"] > 10 * numbers["ece"]
