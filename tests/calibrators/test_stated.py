"""Stated confidences, as of a language model: measured as they were stated, and calibrated end to end."""

import json

import numpy as np
import pytest

from acls.cli import main

STATED = [0.1, 0.3, 0.5, 0.7, 0.9]
TRUE_ECE = 0.25
"""The mean of the gaps: half of what is said, at each of the five confidences."""


@pytest.fixture
def stated(tmp_path):
    """Two CSV files of a model that is right half as often as it says; taken for two classes, its ECE would be 0.17."""
    generator = np.random.default_rng(0)
    for name in ("val", "test"):
        confidence = generator.choice(STATED, 4000)
        correct = generator.random(4000) < confidence / 2
        tasks = generator.choice(["qa", "math"], 4000)
        rows = [f"{c},{int(ok)},{task}" for c, ok, task in zip(confidence, correct, tasks, strict=True)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["confidence,correct,task", *rows]) + "\n")
    return tmp_path


def evaluated(path, capsys, *flags):
    assert main(["evaluate", str(path), *flags, "--json", "--bootstrap", "0"]) == 0
    return json.loads(capsys.readouterr().out)


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
    plain = evaluated(stated / "test.csv", capsys)
    assert plain["ece"] == pytest.approx(TRUE_ECE, abs=0.02)
    assert evaluated(stated / "test.csv", capsys, "--confidence", "confidence", "--correct", "correct") == plain


@pytest.mark.parametrize(
    ("names", "refused"),
    [
        ("confidence,correct", True), ("confidence,label", True), ("conf,hit", True), ("p,is_correct", True),
        ("Stated_Certainty,y", True), ("self_said,answer", True), ("p,hit", False), ("prob,label", False),
        ("score,y", False), ("uncertainty,y", False), ("measured,y", False),
    ],
)  # fmt: skip
def test_one_column_of_confidences_is_not_taken_for_the_probability_of_class_1(stated, capsys, names, refused):
    """As such `--probs conf --label hit` gave an ECE of 0.17, where the truth is 0.25, without a word."""
    path = stated / "test.csv"
    path.write_text(path.read_text().replace("confidence,correct", names))
    score, label = names.split(",")
    assert main(["evaluate", str(path), "--probs", score, "--label", label]) == (2 if refused else 0)
    way = f"pass --confidence {score} --correct {label}"
    assert (way in capsys.readouterr().err) == refused
    if refused:
        assert evaluated(path, capsys, *way.split()[1:])["ece"] == pytest.approx(TRUE_ECE, abs=0.02)


def test_a_confidence_of_every_class_is_no_stated_confidence(stated):
    np.savez(stated / "rows.npz", confidence=np.full((5, 2), 0.5), labels=np.zeros(5, int))
    assert main(["evaluate", str(stated / "rows.npz"), "--probs", "confidence"]) == 0
    np.savez(stated / "one.npz", confidence=np.full((5, 1), 0.5), labels=np.zeros(5, int))
    assert main(["evaluate", str(stated / "one.npz"), "--probs", "confidence"]) == 2


def test_an_added_column_of_ones_is_the_class_that_was_predicted(stated, capsys):
    """As a user without --correct writes it; `acls calibrate` ended in an AssertionError."""
    header, *rows = (stated / "val.csv").read_text().splitlines()
    (stated / "ones.csv").write_text("\n".join([f"{header},ones", *(f"{row},1" for row in rows)]))
    found = []
    for name, flags in (
        ("val", []),
        ("ones", ["--confidence", "confidence", "--predicted", "ones", "--label", "correct"]),
    ):
        words = ["calibrate", str(stated / f"{name}.csv"), *flags, "--method", "isotonic", "--json"]
        assert main(words) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[0] == found[1]
    assert found[1]["methods"][0]["held_out"]["before"]["ece"] == pytest.approx(TRUE_ECE, abs=0.02)


def test_a_calibrator_of_stated_confidences_is_not_applied_to_rows_of_scores(stated, capsys):
    assert (
        main(["calibrate", str(stated / "val.csv"), "--method", "platt", "--out", str(stated / "c.safetensors")]) == 0
    )
    np.savez(stated / "rows.npz", logits=np.zeros((5, 2)), labels=np.zeros(5, int))
    assert main(["apply", str(stated / "c.safetensors"), str(stated / "rows.npz"), str(stated / "o.npz")]) == 2
    assert "was fitted to stated confidences" in capsys.readouterr().err
