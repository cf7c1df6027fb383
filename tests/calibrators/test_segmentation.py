"""Post-hoc calibration of a real segmentation network: fitted on half of the images, judged on the other half."""

import numpy as np
import pytest
import torch
from torch.nn.functional import nll_loss

from acls.calibrators import IBTS, LTS, Selective, Temperature, judge

pytestmark = pytest.mark.slow

PIXELS = 400
"""Scattered pixels of each image: their neighbours are not in the file, so each is a map of one position."""


@pytest.fixture(scope="module")
def voc(outputs):
    arrays = np.load(outputs("voc2012_espnetv2_pixels"))
    logits = torch.from_numpy(arrays["logits"].astype(np.float32))
    labels = torch.from_numpy(arrays["labels"].astype(np.int64))
    first = arrays["image_index"] < arrays["image_index"].max() // 2
    return logits[first], labels[first], logits[~first], labels[~first]


@pytest.mark.parametrize("calibrator", [LTS(steps=20), IBTS(steps=20), Selective()], ids=repr)
def test_unseen_images_are_no_worse_for_it(voc, calibrator):
    """The network is well calibrated, so nothing is to be gained; nothing may be lost beyond the noise of images."""
    z, y, unseen, truth = voc
    calibrated = calibrator.fit(z, y)(unseen)
    change = nll_loss(calibrated, truth, reduction="none") - nll_loss(unseen.log_softmax(1), truth, reduction="none")
    by_image = change.reshape(-1, PIXELS).mean(1)
    assert float(by_image.mean()) < 2 * float(by_image.std()) / len(by_image) ** 0.5
    assert (calibrated.argmax(1) == unseen.argmax(1)).all()


@pytest.mark.parametrize("calibrator", [LTS(steps=20), IBTS(steps=20), Selective()], ids=repr)
def test_an_overconfident_network_gets_better_on_unseen_images(voc, calibrator):
    z, y, unseen, truth = voc
    calibrated = calibrator.fit(3 * z, y)(3 * unseen)
    assert nll_loss(calibrated, truth) < 0.6 * nll_loss((3 * unseen).log_softmax(1), truth)


def test_a_well_calibrated_network_is_left_alone(voc):
    """Its ECE is 0.4 %: fitted temperature lowers the NLL within its error and raises the ECE."""
    z, y, _, _ = voc
    told = judge(Temperature(), z, y, group=torch.arange(len(y)) // PIXELS)
    assert not told.use
