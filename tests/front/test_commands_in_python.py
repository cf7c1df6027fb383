"""What a command prints is what the call beside it in docs/python.md gives."""

import importlib
import json
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest

import acls
from acls.cli import COMMANDS, main
from acls.options import to_plain
from acls.report.texts import text
from tests.train.quick import digits

PAGE = (Path(__file__).parents[2] / "docs" / "python.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `(acls .*?)` \| `(acls\..*?)`(.*?) \|$", PAGE, re.M)
NOT_RUN = {"tune", "reproduce"}
"""Their calls name objects that the page does not make; tests/study/test_tune.py and tests/reproduce run them."""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    rng = np.random.default_rng(0)
    z = rng.normal(size=(4, 300, 3)) * 3
    y = (z / 2 + rng.gumbel(size=z.shape)).argmax(2)
    for name, logits, labels in zip(("val", "test", "other"), z, (y[0], y[1], y[1]), strict=False):
        np.savez(folder / f"{name}.npz", logits=logits, labels=labels)
    np.savez(folder / "new.npz", logits=z[3])
    acls.calibrate(z[0], y[0], kind="logits").save(folder / "calibrator.safetensors")
    acls.train.fit(digits(epochs=1), folder / "run", show=False)
    return folder


def _value(call, extra):
    for module in re.findall(r"acls(?:\.[a-z_]+)+(?=\.\w+\()", call):
        importlib.import_module(module)
    found = eval(call, {"acls": acls})
    return found, str(found) if "str" in extra or "a text" in extra else text(found)


def test_the_page_has_every_command_but_the_one_for_shells():
    assert {command.split()[1] for command, _, _ in ROWS} == set(COMMANDS) - {"completion"}


@pytest.mark.parametrize(("command", "call", "extra"), ROWS, ids=[command[5:] for command, _, _ in ROWS])
def test_a_command_prints_what_the_call_gives(command, call, extra, made, tmp_path, monkeypatch, capsys):
    words = shlex.split(command)[1:]
    if words[0] in NOT_RUN:
        pytest.skip("its call needs objects that the page does not make")
    monkeypatch.setenv("COLUMNS", "80")
    if "study" in words:
        acls.front.compare_recipe(digits(epochs=1), methods="CE", seeds=1, out=made / "study", show=False, page=False)
    for name in ("typed", "called"):
        shutil.copytree(made, tmp_path / name)
    if words[:2] == ["compare", "digits_few"]:
        monkeypatch.setattr("acls.front.find", lambda _: digits(epochs=1))
        monkeypatch.setattr("acls.cli.settings.find", lambda _: digits(epochs=1))
    monkeypatch.chdir(tmp_path / "typed")
    assert main(words) in (0, 1)
    printed = capsys.readouterr().out
    monkeypatch.chdir(tmp_path / "called")
    found, said = _value(call, extra)
    capsys.readouterr()
    if not isinstance(found, str):
        assert len(repr(found)) < 300
        assert len(found._repr_html_()) > 20
    assert printed.strip() == said.strip() + (": predictions.npz" if words[0] == "predict" else "")
    if hasattr(found, "as_json") and words[0] in ("evaluate", "calibrate", "drift", "doctor", "methods", "explain"):
        monkeypatch.chdir(tmp_path / "typed")
        assert main([*words, "--json"]) in (0, 1)
        plain = json.loads(capsys.readouterr().out)
        assert plain == json.loads(json.dumps(to_plain(found.as_json())))


def test_a_file_that_is_calibrated_in_python_is_the_one_that_the_command_writes(made, tmp_path, monkeypatch):
    monkeypatch.chdir(made)
    assert main(["apply", "calibrator.safetensors", "test.npz", str(tmp_path / "typed.npz")]) == 0
    done = acls.apply_file("calibrator.safetensors", "test.npz", tmp_path / "called.npz")
    assert done.kind == "log-probabilities"
    typed, called = (np.load(tmp_path / f"{name}.npz") for name in ("typed", "called"))
    assert typed.files == called.files
    for name in typed.files:
        assert (typed[name] == called[name]).all()
    acls.apply_file(acls.calibrators.Calibrator.load("calibrator.safetensors"), "new.npz", tmp_path / "called.npz")


def test_predictions_of_a_run_are_known_as_ours_and_replaced(made, tmp_path):
    for name in ("p.npz", "p.parquet", "p.safetensors"):
        for _ in range(2):
            assert main(["predict", str(made / "run"), "--out", str(tmp_path / name), "--quiet"]) == 0
