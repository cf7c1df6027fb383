"""Stated confidences, as of a language model, go through every command that reads predictions, under any names."""

import csv
import json
import random

import numpy as np
import pytest

from acls.cli import main

NAMES = ["--confidence", "said", "--correct", "ok"]


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """A model that says .9 where it is right in six of ten cases of law and nine of ten of arithmetic."""
    folder = tmp_path_factory.mktemp("answers")
    for name, seed in (("val.csv", 1), ("test.csv", 2)):
        draw = random.Random(seed)
        with open(folder / name, "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["question", "task", "said", "ok"])
            for number in range(600):
                task, right = draw.choice([("law", 0.6), ("arithmetic", 0.9)])
                said = draw.choice([0.8, 0.9, 1.0])
                writer.writerow([f"what, then, is {number}?", task, said, draw.random() < right])
    unlabelled = [f"{row['task']},{row['said']}" for row in read(folder / "test.csv")]
    (folder / "new.csv").write_text("\n".join(["task,said", *unlabelled]))
    return folder


def read(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def told(capsys, *words):
    code = main([*map(str, words), "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_the_hint_names_the_columns(answers, capsys):
    assert main(["evaluate", str(answers / "test.csv")]) == 2
    assert "pass --confidence said --correct ok" in capsys.readouterr().err


def test_evaluate_by_task_is_the_gap_of_each_task(answers, capsys):
    code, found = told(capsys, "evaluate", answers / "test.csv", *NAMES, "--by", "task")
    assert code == 0
    rows = read(answers / "test.csv")
    for task, group in found["groups"].items():
        own = [row for row in rows if row["task"] == task]
        right = np.mean([row["ok"] == "True" for row in own])
        assert group["n"] == len(own)
        assert group["accuracy"] == pytest.approx(right)
        assert group["overconfidence"] >= np.mean([float(row["said"]) for row in own]) - right - 1e-6


def test_calibrators_are_called_by_the_names_that_the_user_wrote(answers, capsys):
    path = answers / "val.csv"
    _, found = told(capsys, "calibrate", path, *NAMES, "--method", "isotonic,beta", "--test", answers / "test.csv")
    assert [one["method"] for one in found["methods"]] == ["Isotonic", "Beta"]
    assert "stated" not in found["text"]
    assert main(["calibrate", str(path), *NAMES, "--test", str(answers / "test.csv")]) == 0
    assert "p, NLL" not in capsys.readouterr().out  # of the answers not given there is no probability


def test_a_calibrator_corrects_new_answers_that_nobody_has_marked(answers, tmp_path, capsys):
    saved, out = tmp_path / "c.safetensors", tmp_path / "after.csv"
    told(capsys, "calibrate", answers / "val.csv", *NAMES, "--method", "isotonic", "--out", saved)
    code, _ = told(capsys, "apply", saved, answers / "new.csv", out, "--confidence", "said", "--group", "task")
    assert code == 0
    after = read(out)
    assert len(after) == 600
    assert {row["group"] for row in after} == {"law", "arithmetic"}
    right = np.mean([row["ok"] == "True" for row in read(answers / "val.csv")])
    assert np.mean([float(row["confidence"]) for row in after]) == pytest.approx(right, abs=0.03)


def test_the_doctor_does_not_take_answers_for_classes(answers, tmp_path, capsys):
    code, found = told(capsys, "doctor", answers / "test.csv", *NAMES)
    assert (code, found["findings"]) == (0, [])
    (tmp_path / "wrong.csv").write_text("said,ok\n" + "0.9,0\n0.95,no\n" * 50)
    code, found = told(capsys, "doctor", tmp_path / "wrong.csv", *NAMES)
    assert code == 0
    assert found["findings"][0]["sentence"].startswith("every answer is wrong")


@pytest.mark.parametrize(("new", "checks"), [("new.csv", ["ks", "psi"]), ("test.csv", ["ks", "psi", "accuracy"])])
def test_drift_compares_no_classes_of_answers(answers, tmp_path, capsys, new, checks):
    code, found = told(capsys, "drift", answers / "val.csv", answers / new, *NAMES)
    assert code == 0
    assert list(found["checks"]) == checks
    assert found["label_shift"] == 0
    assert (
        main(["drift", str(answers / "val.csv"), str(answers / new), *NAMES, "--out", str(tmp_path / "c.safetensors")])
        == 2
    )
    assert "which have none" in capsys.readouterr().err


def test_files_of_answers_are_compared(answers, tmp_path, capsys):
    rows = (answers / "test.csv").read_text()
    for old, new in (("0.8", "0.7"), ("0.9", "0.75"), ("1.0", "0.8")):
        rows = rows.replace(f",{old},", f",{new},")
    (tmp_path / "modest.csv").write_text(rows)
    files = [answers / "test.csv", tmp_path / "modest.csv"]
    code, found = told(capsys, "compare", *NAMES, "--predictions", *files)
    assert code == 0
    assert next(one["best"] for one in found["ranking"] if one["metric"] == "ece") == "modest.csv"


def test_the_page_of_answers_shows_the_error_of_what_was_said(answers, tmp_path, capsys):
    page = tmp_path / "page.html"
    code, found = told(capsys, "report", answers / "test.csv", *NAMES, "--group", "task", "--out", page)
    assert code == 0
    gap = np.mean([float(row["said"]) - (row["ok"] == "True") for row in read(answers / "test.csv")])
    assert "Miscalibrated, overconfident" in found["verdict"][0]
    _, measured = told(capsys, "evaluate", answers / "test.csv", *NAMES)
    assert measured["ece"] == pytest.approx(gap, abs=0.02)
    assert f"ECE {100 * measured['ece']:.2f} %" in found["verdict"][0]
    assert "test.csv" in page.read_text(encoding="utf-8")


def test_a_threshold_of_one_is_written_with_two_digits(tmp_path, capsys):
    (tmp_path / "sure.csv").write_text("confidence,correct\n" + "1,1\n" * 300 + "0.5,0\n" * 300)
    code, found = told(capsys, "evaluate", tmp_path / "sure.csv", "--max-error", "2%")
    assert code == 0
    assert found["decision"]["accepted"] == 300
    assert found["decision"]["text"].startswith("Accept automatically at or above 1.00: 50 % of the cases")


def test_the_decision_on_a_group_names_the_group(tmp_path, capsys):
    rows = [f"{c},{hit},{task}\n" for task in (0, 1) for c, hit in ((1, 1), (0.5, 0)) for _ in range(300)]
    (tmp_path / "tasks.csv").write_text("confidence,correct,task\n" + "".join(rows))
    assert main(["evaluate", str(tmp_path / "tasks.csv"), "--by", "task", "--max-error", "2%"]) == 0
    assert "group 1: Accept automatically at or above 1.00" in " ".join(capsys.readouterr().out.split())
