"""Two processes that share each batch do what one does with the whole of it."""

import os
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

from acls.predictions import Predictions
from acls.recipes import LossOptions
from acls.storage import load_tensors
from acls.train import fit, resume
from acls.train.folder import load_state
from tests.processes import together
from tests.train.quick import STATEFUL, digits, maps

# Batches that do not divide by two. Methods that compare samples with their neighbours do so within a process: after
# one epoch, when they have only remembered, all is the same.
RECIPES = {
    "CE": digits(loss=LossOptions(name="CE"), batch=63),
    "AdaFocal": digits(loss=STATEFUL["AdaFocal"], batch=63),
    "CaPE": digits(loss=STATEFUL["CaPE"], batch=63, eval_batch=2000),
    "Patra": digits(loss=LossOptions(name="Patra", fields={"weight": 0.0}), batch=63),
    "CRL": digits(loss=STATEFUL["CRL"], batch=63, epochs=1),
    "ACLS-ranking": digits(loss=STATEFUL["ACLS-ranking"], batch=63, epochs=1),
    "maps": maps(),
    "resumed": digits(loss=LossOptions(name="CE"), batch=63, save_every=1),
}


def _process(rank, world, folder):
    # What torchrun would have set; the process group itself is there already.
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "TORCHELASTIC_RUN_ID": "test",
    }
    for name, recipe in RECIPES.items():
        if name == "resumed":
            fit(replace(recipe, epochs=1), folder / name, show=False)
            dist.barrier()
            if rank == 0:
                from acls.recipes import save_recipe

                save_recipe(recipe, folder / name / "recipe.yaml")
            dist.barrier()
            resume(folder / name, show=False)
        else:
            fit(recipe, folder / name, show=False)


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    together(_process, folder)
    return folder


@pytest.mark.parametrize("name", [name for name in RECIPES if name != "maps"])
def test_two_processes_train_and_remember_as_one(two_processes, tmp_path, name):
    recipe = RECIPES[name]
    alone = fit(recipe, tmp_path / "one", show=False)
    mine, theirs = (load_state(folder / "resume.safetensors") for folder in (tmp_path / "one", two_processes / name))
    assert theirs["at"]["epoch"] == recipe.epochs
    for part in ("model", "loss"):
        for key, value in mine[part].items():
            torch.testing.assert_close(theirs[part][key], value, rtol=1e-4, atol=1e-5, msg=lambda m, k=key: f"{k}: {m}")
    for one, two in zip(mine["at"]["history"], theirs["at"]["history"], strict=True):
        for key in one:
            # The live view of the regulariser pairs samples within a process, too.
            if key != "seconds" and not key.startswith(("val/regulariser", "val/smoothing")):
                assert two[key] == pytest.approx(one[key], rel=1e-2, abs=1e-3), key
    assert alone.test["n"] == 539


def test_histories_are_exactly_equal(two_processes, tmp_path):
    fit(RECIPES["CRL"], tmp_path / "one", show=False)
    states = [load_state(folder / "resume.safetensors") for folder in (tmp_path / "one", two_processes / "CRL")]
    assert states[0]["loss"]
    for key, value in states[0]["loss"].items():
        assert torch.equal(states[1]["loss"][key], value), key


def test_evaluation_shards_miss_and_repeat_no_sample(two_processes):
    for name, samples in (("CE", 539), ("maps", 32)):
        predictions = Predictions.load(two_processes / name / "predictions" / "test.safetensors")
        if name == "CE":
            assert len(predictions) == samples
        else:
            assert predictions.image.unique().tolist() == list(range(samples))
        _, meta = load_tensors(two_processes / name / "best.safetensors")
        assert meta["recipe"] == RECIPES[name].name


def test_predictions_of_two_processes_are_in_the_order_of_the_samples(two_processes, tmp_path):
    fit(RECIPES["CE"], tmp_path / "one", show=False)
    one, two = (
        Predictions.load(folder / "predictions" / "test.safetensors")
        for folder in (tmp_path / "one", two_processes / "CE")
    )
    assert torch.equal(one.labels, two.labels)
    torch.testing.assert_close(one.scores, two.scores, rtol=1e-3, atol=1e-3)
