"""Every loss of the package goes through the same loop, on labels and on label maps."""

import json
import math
from dataclasses import replace

import pytest

from acls.losses import make_loss
from acls.predictions import Predictions
from acls.recipes import load_recipe
from acls.train import fit
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
    assert make_loss(settings).settings() == settings
    recorded = load_recipe(tmp_path / "run" / "recipe.yaml").loss
    assert replace(recorded, protocol={}).build(ignore_index=settings["ignore_index"]).settings() == settings
    assert len(Predictions.load(tmp_path / "run" / "predictions" / "test.safetensors")) > 0


def test_the_protocols_margin_goes_to_methods_that_have_one_and_the_users_field_wins():
    options = ALL["ACLS"]
    assert options.build().margin == 1.0
    assert ALL["MbLS"].build(ignore_index=255).ignore_index == 255
    assert ALL["CRL"].build().margin is True
    own = type(options)(name="acls", protocol={"margin": 6.0}, fields={"margin": 2.0, "base": "Focal"})
    assert own.build().margin == 2.0
    assert type(own.build().base).__name__ == "Focal"
    nested = type(options)(name="MDCA", protocol={"margin": 6.0}, fields={"base": {"name": "DCA", "base": "ACLS"}})
    assert repr(nested.build()) == "MDCA(base=DCA(base=ACLS(margin=6.0)))"
