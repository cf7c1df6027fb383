"""Every loss of the package goes through the same loop, on labels and on label maps."""

import json
import math

import pytest

from acls.predictions import Predictions
from acls.recipes import LossOptions
from acls.train import fit
from acls.train.session import build_loss
from tests.train.quick import ALL, digits, maps


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("recipe", [digits, maps], ids=["digits", "maps"])
def test_every_loss_trains(name, recipe, tmp_path):
    result = fit(recipe(loss=ALL[name]), tmp_path / "run", show=False)
    row = result.history[-1]
    assert len(result.history) == 2
    assert all(math.isfinite(value) for value in row.values())
    assert 0 <= row["val/regulariser_active"] <= 1
    settings = json.loads((tmp_path / "run" / "summary.json").read_text())["loss"]
    again = build_loss(LossOptions(name=ALL[name].name, fields=settings), ignore_index=0)
    assert again.settings() == settings
    assert len(Predictions.load(tmp_path / "run" / "predictions" / "test.safetensors")) > 0


def test_the_protocols_margin_goes_to_methods_that_have_one_and_the_users_field_wins():
    options = ALL["ACLS"]
    assert build_loss(options, ignore_index=-100).margin == 1.0
    assert build_loss(ALL["MbLS"], ignore_index=255).ignore_index == 255
    assert build_loss(ALL["CRL"], ignore_index=-100).margin is True
    own = type(options)(name="acls", protocol={"margin": 6.0}, fields={"margin": 2.0, "base": "Focal"})
    assert build_loss(own, ignore_index=-100).margin == 2.0
    assert type(build_loss(own, ignore_index=-100).base).__name__ == "Focal"
