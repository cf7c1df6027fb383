"""The commands calibrate and apply, from file to file."""

import json

import numpy as np
import pytest
import torch

from acls.calibrators import LTS, Calibrator, Temperature
from acls.cli import main
from acls.metrics import Suite
from acls.predictions import Predictions
from acls.results import recommend
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
    logits, target = well_calibrated(n=1000)
    np.savez(tmp_path / "val.npz", probs=logits.softmax(1).numpy(), labels=target.numpy())
    main(["calibrate", str(tmp_path / "val.npz"), "--out", str(tmp_path / "c.safetensors")])
    out = capsys.readouterr().out
    assert out.startswith("Recommended: keep the model as it is.")
    assert "Nothing is saved; --force saves the best calibrator anyway." in out
    assert not (tmp_path / "c.safetensors").exists()
    main(["calibrate", str(tmp_path / "val.npz"), "--out", str(tmp_path / "c.safetensors"), "--force"])
    assert isinstance(Calibrator.load(tmp_path / "c.safetensors"), Temperature)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--method", "temprature"], "did you mean 'Temperature'?"),
        (["--method", "vector,,"], "expected a calibrator, or several separated by commas"),
        (["--method", "vector(spice=logits)"], "Vector has no field 'spice'"),
        (["--method", "vector(space=log)"], "expected one of logits, log_probs, got 'log'"),
        (["--folds", "1"], "--folds: expected a whole number in [2, 1000]"),
        (["--out", "c.pt"], "ends in .safetensors"),
    ],
)
def test_bad_options_are_refused_before_any_work(files, capsys, options, reason):
    assert main(["calibrate", str(files / "val.npz"), *options]) == 2
    assert reason in capsys.readouterr().err


def test_data_without_labels_can_be_calibrated(files):
    saved, new = files / "c.safetensors", files / "new.npz"
    main(["calibrate", str(files / "val.npz"), "--out", str(saved)])
    logits = np.load(files / "test.npz")["logits"]
    np.savez(new, logits=logits)
    assert main(["apply", str(saved), str(new), str(files / "out.npz")]) == 0
    expected = Calibrator.load(saved)(torch.from_numpy(logits))
    torch.testing.assert_close(torch.from_numpy(np.load(files / "out.npz")["log_probs"]), expected)


@pytest.mark.parametrize("method", ["Matrix", "Isotonic", "Histogram", "Spline", "PTS"])
@pytest.mark.parametrize("fitted_in", [np.float64, np.float32])
def test_what_was_fitted_in_one_dtype_is_applied_in_another(files, method, fitted_in):
    arrays = np.load(files / "val.npz")
    used_in = {np.float64: np.float32, np.float32: np.float64}[fitted_in]
    np.savez(files / "wide.npz", logits=arrays["logits"].astype(fitted_in), labels=arrays["labels"])
    np.savez(files / "other.npz", logits=arrays["logits"].astype(used_in), labels=arrays["labels"])
    saved = files / "c.safetensors"
    assert main(["calibrate", str(files / "wide.npz"), "--method", method, "--out", str(saved), "--quiet"]) == 0
    for name in ("wide", "other"):
        assert main(["apply", str(saved), str(files / f"{name}.npz"), str(files / f"{name}-out.npz")]) == 0
    first, second = (np.load(files / f"{name}-out.npz")["log_probs"] for name in ("wide", "other"))
    assert np.exp(first) == pytest.approx(np.exp(second), abs=1e-3)


def test_probabilities_that_were_rounded_to_zero_do_not_rule_the_fit(files, capsys):
    """With four decimals the temperature is within a tenth of that of the unrounded probabilities."""
    found = []
    for decimals in (None, 4):
        arrays = np.load(files / "val.npz")
        probs = torch.from_numpy(arrays["logits"]).double().softmax(1).numpy()
        probs = probs if decimals is None else probs.round(decimals)
        np.savez(files / "probs.npz", probs=probs / probs.sum(1, keepdims=True), labels=arrays["labels"])
        main(["calibrate", str(files / "probs.npz"), "--json", "--out", str(files / "c.safetensors")])
        told = capsys.readouterr()
        json.loads(told.out)
        assert ("each is replaced by 1e-07" in told.err) == (decimals is not None)
        found.append(float(Calibrator.load(files / "c.safetensors").temperature))
    assert found[1] == pytest.approx(found[0], rel=0.1)


def test_a_fit_that_only_its_range_stops_is_not_recommended(tmp_path, capsys):
    logits, _ = overconfident(n=76, k=4)
    np.savez(tmp_path / "val.npz", logits=logits.numpy(), labels=logits.argmax(1).numpy())  # every sample is right
    main(["calibrate", str(tmp_path / "val.npz"), "--method", "temperature,vector"])
    out = capsys.readouterr().out
    assert "Recommended: keep the model as it is." in out
    assert "a fit ends at the boundary of its range" in " ".join(out.split())


@pytest.mark.parametrize("command", ["calibrate", "apply"])
def test_calibrators_of_whole_maps_are_refused_for_files(command, files, capsys):
    if command == "calibrate":
        assert main(["calibrate", str(files / "val.npz"), "--method", "LTS"]) == 2
    else:
        logits, target = overconfident(n=40, k=3)
        saved = files / "lts.safetensors"
        LTS(steps=1).fit(logits.reshape(10, 2, 2, 3).movedim(-1, 1), target.reshape(10, 2, 2)).save(saved)
        assert main(["apply", str(saved), str(files / "test.npz"), str(files / "out.npz")]) == 2
    assert "LTS needs a position's neighbours" in capsys.readouterr().err


def test_a_test_file_of_one_row_has_numbers_without_intervals(files, capsys):
    arrays = np.load(files / "test.npz")
    np.savez(files / "one.npz", logits=arrays["logits"][:1], labels=arrays["labels"][:1])
    assert main(["calibrate", str(files / "val.npz"), "--test", str(files / "one.npz")]) == 0
    assert "as it is" in capsys.readouterr().out.split("which no method has seen")[1]


def test_where_every_row_is_ignored_there_is_nothing_to_fit_to(files, capsys):
    logits = np.load(files / "val.npz")["logits"]
    np.savez(files / "void.npz", logits=logits, labels=np.full(len(logits), -100))
    assert main(["calibrate", str(files / "void.npz")]) == 2
    assert "nothing to fit: " in capsys.readouterr().err


def test_a_file_that_is_no_calibrator_is_refused(files, capsys):
    Predictions.load(files / "val.npz").save(files / "val.safetensors")
    assert main(["apply", str(files / "val.safetensors"), str(files / "test.npz"), str(files / "out.npz")]) == 2
    assert "does not contain a calibrator" in capsys.readouterr().err


def test_what_is_called_unfit_is_not_recommended(tmp_path, capsys):
    logits, target = overconfident(n=120, k=6)
    np.savez(tmp_path / "val.npz", logits=logits.numpy(), labels=target.numpy())
    main(["calibrate", str(tmp_path / "val.npz"), "--method", "matrix,temperature", "--json"])
    found = json.loads(capsys.readouterr().out)
    matrix, temperature = found["methods"]
    assert "too few samples" in matrix["fit"]["warnings"][0]
    assert not matrix["use"]
    assert found["recommended"] in (None, temperature["method"])


def test_calibrate_report_and_python_find_the_same_temperature(files, capsys):
    probs = torch.from_numpy(np.load(files / "val.npz")["logits"]).softmax(1).numpy().round(3)
    np.savez(
        files / "rounded.npz", probs=probs / probs.sum(1, keepdims=True), labels=np.load(files / "val.npz")["labels"]
    )
    main(["calibrate", str(files / "rounded.npz"), "--json", "--quiet"])
    by_calibrate = json.loads(capsys.readouterr().out)["methods"][0]["parameters"]["temperature"]
    assert main(["report", str(files / "rounded.npz"), "--out", str(files / "page.html"), "--json"]) == 0
    (model,) = json.loads(capsys.readouterr().out)["models"]
    assert model["temperature"] == pytest.approx(by_calibrate, rel=1e-6)
    advice = recommend(Predictions.load(files / "rounded.npz"))
    assert advice.candidates[0].parameters == {"temperature": by_calibrate}
    assert advice.chosen is advice.candidates[0]
