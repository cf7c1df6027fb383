"""Stated confidences, as of a language model: measured as they were stated, and calibrated end to end."""

import json

import numpy as np
import pytest

from acls.cli import main

TRUE_ECE = 0.2


@pytest.fixture
def stated(tmp_path):
    """Two CSV files of a model that says 0.2 more than is true, at 0.55, 0.65, ..., 0.95."""
    generator = np.random.default_rng(0)
    for name in ("val", "test"):
        confidence = generator.choice([0.55, 0.65, 0.75, 0.85, 0.95], 4000)
        correct = generator.random(4000) < confidence - TRUE_ECE
        tasks = generator.choice(["qa", "math"], 4000)
        rows = [f"{c},{int(ok)},{task}" for c, ok, task in zip(confidence, correct, tasks, strict=True)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["confidence,correct,task", *rows]) + "\n")
    return tmp_path


def _ece(path, capsys, *flags):
    assert main(["evaluate", str(path), *flags, "--json", "--bootstrap", "0"]) == 0
    return json.dumps(json.loads(capsys.readouterr().out))


@pytest.mark.parametrize("method", ["isotonic", "platt", "beta", "histogram", "temperature"])
def test_calibrating_takes_the_error_away(stated, method, capsys):
    val, test, out = stated / "val.csv", stated / "test.csv", stated / "c.safetensors"
    assert main(["calibrate", str(val), "--method", method, "--test", str(test), "--out", str(out), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    held_out = found["methods"][0]["held_out"]
    assert held_out["before"]["ece"] == pytest.approx(TRUE_ECE, abs=0.02)
    if method != "temperature":  # one number cannot pull confidences below one half
        assert held_out["after"]["ece"] < 0.05
        assert held_out["use"]
    assert main(["apply", str(out), str(test), str(stated / "new.csv")]) == 0
    header, first = (stated / "new.csv").read_text().splitlines()[:2]
    assert {"confidence", "correct"} <= set(header.split(","))
    assert 0 < float(first.split(",")[header.split(",").index("confidence")]) < 1


def test_the_first_number_is_the_true_error_with_and_without_flags(stated, capsys):
    plain = json.loads(_ece(stated / "test.csv", capsys))
    named = json.loads(_ece(stated / "test.csv", capsys, "--confidence", "confidence", "--correct", "correct"))
    assert plain == named
    assert '"ece"' in json.dumps(plain)
    assert main(["evaluate", str(stated / "test.csv"), "--probs", "confidence", "--label", "correct"]) == 2
    assert "--confidence confidence --correct correct" in capsys.readouterr().err


def test_a_calibrator_of_stated_confidences_is_not_applied_to_rows_of_scores(stated, capsys):
    assert (
        main(["calibrate", str(stated / "val.csv"), "--method", "platt", "--out", str(stated / "c.safetensors")]) == 0
    )
    np.savez(stated / "rows.npz", logits=np.zeros((5, 2)), labels=np.zeros(5, int))
    assert main(["apply", str(stated / "c.safetensors"), str(stated / "rows.npz"), str(stated / "o.npz")]) == 2
    assert "was fitted to stated confidences" in capsys.readouterr().err
