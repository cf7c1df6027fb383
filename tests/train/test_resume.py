"""A run that is broken off anywhere goes on to the same bits."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch

from acls.errors import InputError
from acls.recipes import LossOptions, save_recipe
from acls.train import fit, resume
from acls.train.folder import load_state, save_state
from acls.train.session import Session
from tests.processes import wait_for
from tests.train.quick import STATEFUL, assert_same_runs, digits, maps


class Power(Exception):
    """The lights went out."""


def break_off(monkeypatch, step):
    """Let training fail in its ``step``-th step from now on, between two saved states."""
    real, done = Session.step, []

    def failing(self, *args):
        done.append(1)
        if len(done) == step:
            raise Power
        return real(self, *args)

    monkeypatch.setattr(Session, "step", failing)


def broken_and_resumed(recipe, folder, monkeypatch, step):
    with monkeypatch.context() as patch:
        break_off(patch, step)
        with pytest.raises(Power):
            fit(recipe, folder, show=False)
    return resume(folder, show=False)


@pytest.mark.parametrize("name", ["CE", *STATEFUL])
@pytest.mark.parametrize("step", [3, 9])
def test_a_method_with_memory_resumes_in_the_middle_of_an_epoch(name, step, tmp_path, monkeypatch):
    """Five steps an epoch, saved after every second: what is lost is repeated, what is kept is not."""
    loss = STATEFUL.get(name, LossOptions(name=name))
    recipe = digits(loss=loss, epochs=3, limit_batches=5, save_every=2)
    fit(recipe, tmp_path / "whole", show=False)
    broken_and_resumed(recipe, tmp_path / "broken", monkeypatch, step)
    assert_same_runs(tmp_path / "whole", tmp_path / "broken")


@pytest.mark.parametrize(
    "changes",
    [
        {"ema": 0.9},
        {"accumulate": 3},
        {"precision": "fp16"},
        {"optim": {"name": "adamw", "lr": 0.01}},
        {"data": {"mix": "cutmix", "pad": 1}},
        {"model": {"dropout": 0.5}},
    ],
    ids=str,
)
def test_all_other_state_resumes_too(changes, tmp_path, monkeypatch):
    recipe = digits(limit_batches=4, save_every=3, loss=LossOptions(name="CE"))
    for name, value in changes.items():
        nested = replace(getattr(recipe, name), **value) if isinstance(value, dict) else value
        recipe = replace(recipe, **{name: nested})
    fit(recipe, tmp_path / "whole", show=False)
    broken_and_resumed(recipe, tmp_path / "broken", monkeypatch, 8)
    assert_same_runs(tmp_path / "whole", tmp_path / "broken")


def test_segmentation_resumes(tmp_path, monkeypatch):
    recipe = maps(save_every=1)
    fit(recipe, tmp_path / "whole", show=False)
    broken_and_resumed(recipe, tmp_path / "broken", monkeypatch, 4)
    assert_same_runs(tmp_path / "whole", tmp_path / "broken")


def test_a_run_broken_off_before_its_first_state_starts_again(tmp_path, monkeypatch):
    recipe = digits()
    fit(recipe, tmp_path / "whole", show=False)
    broken_and_resumed(recipe, tmp_path / "broken", monkeypatch, 2)
    assert_same_runs(tmp_path / "whole", tmp_path / "broken")


def test_a_finished_run_is_not_trained_again(tmp_path, monkeypatch):
    first = fit(digits(), tmp_path / "run", show=False)
    break_off(monkeypatch, 1)
    again = resume(tmp_path / "run", show=False)
    assert again.test == first.test


def test_a_run_leaves_the_callers_random_state_alone(tmp_path):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    fit(digits(), tmp_path / "run", show=False)
    assert torch.equal(torch.rand(3), expected)


def test_the_state_of_anything_reads_back(tmp_path):
    state = {"a": torch.arange(3), 7: [1.5, (None, True)], "b": {"c": "text", 0: torch.zeros(0)}}
    save_state(tmp_path / "s.safetensors", state)
    again = load_state(tmp_path / "s.safetensors")
    assert torch.equal(again["a"], state["a"])
    assert again[7] == state[7]
    assert again["b"]["c"] == "text"
    assert again["b"][0].shape == (0,)


def test_a_changed_data_set_is_noticed(tmp_path):
    fit(digits(), tmp_path / "run", show=False)
    changed = digits(data=replace(digits().data, split_seed=2))
    save_recipe(changed, tmp_path / "run" / "recipe.yaml")
    with pytest.raises(InputError, match=r"data\.split_seed was 1, now 2"):
        resume(tmp_path / "run", show=False)


# -- real kills, of real processes ---------------------------------------------------------------------------------


def start(config, out, code=""):
    """Run `acls train` in another process, after some code that makes it slower or meaner."""
    program = f"{code}\nimport sys; from acls.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", program, "train", "--config", str(config), "--out", str(out), "--quiet"]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})


SLOW_STEPS = """
import time
from acls.train.session import Session
real = Session.step
def step(self, *args):
    time.sleep(0.05)
    return real(self, *args)
Session.step = step
"""
SLOW_WRITES = """
import time, os
real = os.replace
def replace(temporary, final):
    if str(final).endswith("resume.safetensors") and os.path.exists(final):
        time.sleep(600)  # the second state is never put in its place
    real(temporary, final)
os.replace = replace
"""


@pytest.fixture
def crl(tmp_path, one_thread):
    recipe = digits(loss=LossOptions(name="CRL"), epochs=3, limit_batches=6, save_every=1)
    save_recipe(recipe, tmp_path / "recipe.yaml")
    fit(recipe, tmp_path / "whole", show=False)
    return tmp_path


def test_sigkill_in_training_loses_nothing(crl):
    process = start(crl / "recipe.yaml", crl / "broken", SLOW_STEPS)
    wait_for((crl / "broken" / "metrics.csv").exists, process)  # the first epoch is over
    time.sleep(0.1)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    resume(crl / "broken", show=False)
    assert_same_runs(crl / "whole", crl / "broken")


def test_sigkill_in_the_middle_of_a_checkpoint_keeps_the_one_before(crl):
    process = start(crl / "recipe.yaml", crl / "broken", SLOW_WRITES)
    wait_for((crl / "broken" / "resume.safetensors").exists, process)
    wait_for(lambda: list((crl / "broken").glob(".resume.*")), process)  # written, but not yet in its place
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert list((crl / "broken").glob(".resume.*"))
    assert load_state(crl / "broken" / "resume.safetensors")["at"]["step"] >= 1
    resume(crl / "broken", show=False)
    assert_same_runs(crl / "whole", crl / "broken")


def test_sigterm_saves_the_state_and_stops(crl):
    recipe = digits(loss=LossOptions(name="CRL"), epochs=3, limit_batches=6)
    save_recipe(recipe, crl / "plain.yaml")
    process = start(crl / "plain.yaml", crl / "broken", SLOW_STEPS)
    wait_for((crl / "broken" / "metrics.csv").exists, process)
    time.sleep(0.12)
    process.terminate()
    assert process.wait() == 130
    assert load_state(crl / "broken" / "resume.safetensors")["at"]["step"] > 0
    save_recipe(replace(recipe, save_every=1), crl / "broken" / "recipe.yaml")
    resume(crl / "broken", show=False)
    assert_same_runs(crl / "whole", crl / "broken")


def test_an_average_of_weights_keeps_batch_statistics_too(tmp_path, monkeypatch):
    """Running means and counts are averaged and resumed with the weights."""
    recipe = digits(ema=0.8, save_every=1, limit_batches=2, model=replace(digits().model, name="resnet8"))
    fit(recipe, tmp_path / "whole", show=False)
    broken_and_resumed(recipe, tmp_path / "broken", monkeypatch, 3)
    assert_same_runs(tmp_path / "whole", tmp_path / "broken")


@pytest.mark.parametrize(
    ("change", "named"), [({"batch": 32}, "batch was 64, now 32"), ({"seed": 2}, "seed was 1, now 2")]
)
def test_an_edited_recipe_is_named_on_resume(change, named, tmp_path):
    fit(digits(epochs=1), tmp_path / "run", show=False)
    save_recipe(digits(epochs=1, **change), tmp_path / "run" / "recipe.yaml")
    with pytest.raises(InputError, match=named):
        resume(tmp_path / "run", show=False)


def test_an_edited_loss_is_named_and_settings_that_change_nothing_are_not(tmp_path):
    recipe = digits(epochs=1, loss=LossOptions(name="ACLS", fields={"margin": 4.0}))
    fit(recipe, tmp_path / "run", show=False)
    save_recipe(replace(recipe, epochs=2, save_every=3, log=()), tmp_path / "run" / "recipe.yaml")
    assert len(resume(tmp_path / "run", show=False).history) == 2
    edited = replace(recipe, loss=LossOptions(name="ACLS", fields={"margin": 5.0}))
    save_recipe(edited, tmp_path / "run" / "recipe.yaml")
    with pytest.raises(InputError, match=r"loss\.fields\.margin was 4\.0, now 5\.0"):
        resume(tmp_path / "run", show=False)


def test_a_run_in_use_is_refused_with_who_uses_it(tmp_path):
    fit(digits(epochs=1), tmp_path / "run", show=False)
    code = "import sys, time; from acls.storage import hold\n"
    code += "with hold(sys.argv[1]): print('held', flush=True); time.sleep(600)"
    other = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "run" / ".lock")], stdout=subprocess.PIPE)
    try:
        assert other.stdout.readline() == b"held\n"
        for call in (lambda: resume(tmp_path / "run", show=False), lambda: fit(digits(), tmp_path / "run", show=False)):
            with pytest.raises(InputError, match=f"in use by process {other.pid}"):
                call()
    finally:
        other.kill()
        other.wait()
