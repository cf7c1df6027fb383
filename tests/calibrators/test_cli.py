"""The commands calibrate and apply, from file to file."""

import json

import numpy as np
import pytest

from acls.calibrators import Calibrator, Temperature
from acls.cli import main
from acls.metrics import Suite
from acls.predictions import Predictions
from tests.calibrators.synthetic import overconfident, well_calibrated

pytest.importorskip("safetensors")


@pytest.fixture
def files(tmp_path):
    for name, seed in (("val", 0), ("test", 1)):
        logits, target = overconfident(n=1500, k=4, seed=seed)
        np.savez(tmp_path / f"{name}.npz", logits=logits.numpy(), labels=target.numpy())
    return tmp_path


def test_calibrate_then_apply(files, capsys):
    saved = files / "calibrator.safetensors"
    assert main(["calibrate", str(files / "val.npz"), "--test", str(files / "test.npz"), "--out", str(saved)]) == 0
    out = capsys.readouterr().out
    assert "Recommended: Temperature() with temperature = 2." in out
    assert "95 % interval" in out
    assert isinstance(Calibrator.load(saved), Temperature)
    assert main(["apply", str(saved), str(files / "test.npz"), str(files / "out.npz")]) == 0
    calibrated = Predictions.load(files / "out.npz")
    assert calibrated.kind == "log_probs"
    assert Suite.of(calibrated.scores, calibrated.labels, kind="log_probs").summary()["ece"] < 0.05


def test_several_methods_are_compared_and_the_simplest_of_the_good_is_taken(files, capsys):
    main(["calibrate", str(files / "val.npz"), "--method", "isotonic,Temperature,beta", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert told["recommended"] == "Temperature"
    assert [one["method"] for one in told["methods"]] == ["Isotonic", "Temperature", "Beta"]
    assert told["methods"][1]["held_out"]["use"]


def test_methods_are_written_with_their_fields(files, capsys):
    saved = files / "c.safetensors"
    methods = "Vector(space=log_probs), vector, Vector(space='log_probs')"
    assert main(["calibrate", str(files / "val.npz"), "--method", methods, "--json", "--out", str(saved)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [one["method"] for one in told["methods"]] == ["Vector(space='log_probs')", "Vector"]  # each once
    assert repr(Calibrator.load(saved)).removesuffix("()") == told["recommended"]


def test_a_calibrated_model_is_kept(tmp_path, capsys):
    logits, target = well_calibrated(n=1500)
    np.savez(tmp_path / "val.npz", probs=logits.softmax(1).numpy(), labels=target.numpy())
    main(["calibrate", str(tmp_path / "val.npz"), "--out", str(tmp_path / "c.safetensors")])
    out = capsys.readouterr().out
    assert "Recommended: keep the model as it is." in out
    assert "although the advice" in out


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--method", "temprature"], "did you mean 'Temperature'?"),
        (["--method", "vector,,"], "names no calibrators: write them as in temperature"),
        (["--method", "vector(spice=logits)"], "Vector has no field 'spice'"),
        (["--method", "vector(space=log)"], "space='log' is not among"),
        (["--folds", "1"], "--folds must be 2 or more"),
        (["--out", "c.pt"], "ends in .safetensors"),
    ],
)
def test_bad_options_are_refused_before_any_work(files, capsys, options, reason):
    assert main(["calibrate", str(files / "val.npz"), *options]) == 2
    assert reason in capsys.readouterr().err


def test_a_file_that_is_no_calibrator_is_refused(files, capsys):
    Predictions.load(files / "val.npz").save(files / "val.safetensors")
    assert main(["apply", str(files / "val.safetensors"), str(files / "test.npz"), str(files / "out.npz")]) == 2
    assert "holds no calibrator" in capsys.readouterr().err
