"""A run folder and a study that version 0.1.0 wrote are read by every command that reads such things.

Made at revision 3deed4c by ``acls train digits_cnn --epochs 2 --out run`` and ``acls compare digits_cnn --methods
"CE, ACLS" --seeds 2 --epochs 2 --out study``, without what nothing reads again: the study's page, locks and states to
resume from.
"""

from __future__ import annotations

import html
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from acls.cli import main
from acls.results import keeping
from acls.study.store import Store

GOLDEN = Path(__file__).parent / "v0.1.0"
EXACT = 1e-7  # 0.1.0 summed confidences in single precision
ACLS_ECE = 0.1559841141574679
"""Of the run's test part, by its own summary.json of that time."""


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A copy that commands may write into."""
    return Path(shutil.copytree(GOLDEN, tmp_path / "old"))


def told(capsys: pytest.CaptureFixture[str], *words: str | Path) -> Any:
    """What a command prints with --json, after checking that it succeeds."""
    capsys.readouterr()
    assert main([*map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_evaluate_gives_the_numbers_that_were_recorded(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded = json.loads((old / "run/summary.json").read_text(encoding="utf-8"))
    assert recorded["test"]["ece"] == ACLS_ECE
    for part in ("val", "test"):
        found = told(capsys, "evaluate", old / f"run/predictions/{part}.safetensors")
        for name in ("n", "accuracy", "ece", "aece", "nll", "brier", "ks", "smece", "mce"):
            assert found[name] == pytest.approx(recorded[part][name], rel=EXACT), name


def test_calibrate_apply_doctor_and_drift_read_the_predictions(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    val, test = (old / f"run/predictions/{part}.safetensors" for part in ("val", "test"))
    assert told(capsys, "calibrate", val, "--test", test)["test"]["as it is"]["ece"] == pytest.approx(ACLS_ECE)
    assert told(capsys, "doctor", val, "--against", test)["n"] == 250
    assert told(capsys, "drift", val, test)["n_new"] == 539
    calibrator = old / "study/runs/CE-1/calibrators/Temperature.safetensors"
    assert main(["apply", str(calibrator), str(test), str(old / "after.npz")]) == 0


def test_advise_predict_and_resume_read_the_run(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, "advise", old / "run")["epochs"]
    again = old / "again.npz"
    assert main(["predict", str(old / "run"), "--out", str(again), "--quiet"]) == 0
    assert told(capsys, "evaluate", again)["ece"] == pytest.approx(ACLS_ECE, abs=1e-6)
    assert main(["train", "--resume", str(old / "run"), "--quiet", "--no-figures"]) == 0
    resumed = json.loads((old / "run/summary.json").read_text(encoding="utf-8"))
    assert resumed["test"]["ece"] == pytest.approx(ACLS_ECE, abs=1e-6)


def test_shift_reads_the_run(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = told(capsys, "shift", old / "run", "--corruptions", "noise", "--severity", "1", "--limit", "50")
    assert [one["n"] for one in found["conditions"]] == [50, 50]


@pytest.mark.parametrize("source", ["run", "study"])
def test_report_reads_the_run_and_the_study(old: Path, source: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = told(capsys, "report", old / source, "--table", "csv")
    assert Path(found["report"]).is_file()
    assert "ACLS(margin=6.0, form='paper')" in found["tables"][0]


def test_compare_finds_the_study_finished_and_share_copies_it(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = {file: file.stat().st_mtime_ns for file in old.glob("study/runs/*/best.safetensors")}
    words = ["--seeds", "2", "--epochs", "2", "--workers", "1", "--quiet", "--no-report", "--out", old / "study"]
    assert main(["compare", "digits_cnn", *map(str, words), "--methods", "CE, ACLS"]) == 2
    assert "has ACLS(margin=6.0, form='paper') instead of ACLS(margin=6.0)" in capsys.readouterr().err
    found = told(capsys, "compare", "digits_cnn", *words, "--methods", "CE, ACLS(form=paper)")
    assert len(weights) == 4
    assert weights == {file: file.stat().st_mtime_ns for file in weights}  # nothing was trained again
    assert len(found["rows"]) == 8  # two methods, two seeds, as they are and after temperature scaling
    assert main(["share", str(old / "study"), str(old / "shared")]) == 0
    shared = told(capsys, "report", old / "shared", "--table", "csv")
    assert shared["tables"] == told(capsys, "report", old / "study", "--table", "csv")["tables"]


def test_the_page_of_compare_shows_the_rows_that_it_ranks(
    old: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The study has CE and ACLS; after the runs, its store and each kept result are read once."""
    words = ["digits_cnn", "--seeds", "2", "--epochs", "2", "--workers", "1", "--quiet", "--out", old / "study"]
    told(capsys, "compare", *words, "--methods", "CE, ACLS(form=paper)")
    read, restored = list[Path](), list[Path]()
    rows, restore = Store.rows, keeping.restore
    monkeypatch.setattr(Store, "rows", lambda store: read.append(store.path) or rows(store))
    monkeypatch.setattr(keeping, "restore", lambda file, key: restored.append(file) or restore(file, key))
    for methods, names in (("CE", {"CE"}), ("CE, ACLS(form=paper)", {"CE", "ACLS(margin=6.0, form='paper')"})):
        found = told(capsys, "compare", *words, "--methods", methods)
        page = html.unescape(Path(found["report"]).read_text(encoding="utf-8"))
        assert {row["method"] for row in found["rows"]} == names
        assert set(re.findall(r'"method":"(.*?)"', page)) == names
        assert "debiased" not in str(found["answer"])  # 0.1.0 stored no such estimates
        assert all(sentence in page for sentence in found["answer"][:1])
        assert len(read) == 2  # before the runs, and after them
        assert sorted(restored) == sorted({*restored})
        read.clear()
        restored.clear()


def test_nothing_in_the_files_names_a_place_on_a_machine() -> None:
    for file in GOLDEN.rglob("*"):
        if file.is_file():
            content = file.read_bytes()
            assert not [place for place in (b"/home/", b"/root/", b"/tmp/", b"/work/") if place in content], file
