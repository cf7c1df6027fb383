"""Calibrators of dense maps on a network trained by the segmentation recipe: fitted on half of the test images."""

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import nll_loss

from acls.calibrators import IBTS, LTS, Selective, Temperature
from acls.recipes import LossOptions, find
from acls.storage import load_tensors
from acls.train import fit
from acls.train.session import Session

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def maps(tmp_path_factory):
    """Dense logits of the best weights, labels and images; saved predictions hold some pixels of each map only."""
    recipe = replace(find("synthetic_unet"), log=(), accelerator="cpu", loss=LossOptions(name="CE"))
    run = fit(recipe, tmp_path_factory.mktemp("maps") / "run", show=False)
    session = Session(recipe)
    session.judged.load_state_dict(load_tensors(run.folder / "best.safetensors")[0])
    test = session.data.test
    logits, labels, index = (torch.cat(column) for column in zip(*session.outputs(test), strict=True))
    images = torch.stack([test.plain()[int(i)][0] for i in index])
    half = len(index) // 2
    return (logits[:half], labels[:half], images[:half]), (logits[half:], labels[half:], images[half:])


def nll_by_image(log_probs, labels):
    return nll_loss(log_probs, labels, reduction="none").mean((1, 2))


def calibrated(calibrator, maps, with_image):
    (logits, labels, images), (unseen, _, unseen_images) = maps
    if with_image:
        return calibrator.fit(logits, labels, image=images)(unseen, unseen_images)
    return calibrator.fit(logits, labels)(unseen)


@pytest.mark.parametrize(
    ("calibrator", "with_image"),
    [(LTS(), False), (LTS(), True), (IBTS(), False), (IBTS(), True), (Selective(), False)],
    ids=["LTS", "LTS with images", "IBTS", "IBTS with images", "Selective"],
)
def test_unseen_maps_are_no_worse_than_by_one_temperature(maps, calibrator, with_image):
    unseen, labels, _ = maps[1]
    found = calibrated(calibrator, maps, with_image)
    plain = nll_by_image(calibrated(Temperature(), maps, False), labels)
    change = nll_by_image(found, labels) - plain
    assert float(change.mean()) < 2 * float(change.std()) / len(change) ** 0.5
    assert (found.argmax(1) == unseen.argmax(1)).all()


def test_local_temperatures_lower_the_nll_of_unseen_maps(maps):
    labels = maps[1][1]
    change = nll_by_image(calibrated(LTS(), maps, False), labels) - nll_by_image(
        calibrated(Temperature(), maps, False), labels
    )
    assert float(change.mean()) < -2 * float(change.std()) / len(change) ** 0.5
