import json

import pytest

from acls.cli import main
from tests.report.made import file, predictions, run


def test_files_become_a_page_a_table_and_figures(tmp_path, capsys):
    one, two = file(tmp_path, "one.npz"), file(tmp_path, "two.npz", sharpness=1.0)
    page, figures = tmp_path / "page.html", tmp_path / "figures"
    words = [str(one), str(two), "--out", str(page), "--figures", str(figures), "--format", "svg", "--table", "latex"]
    assert main(["report", *words, "--bootstrap", "10"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("two.npz has the lowest ECE, ")
    assert r"\begin{tabular}" in out
    assert out.rstrip().endswith(f"report: {page}")
    assert page.read_text().startswith("<!doctype html>")
    names = {path.name for path in figures.iterdir()}
    assert {"reliability-one.npz.svg", "classes-two.npz-after-Temperature.svg", "overlay.svg", "pareto.svg"} <= names


def test_a_runs_page_is_put_into_its_folder(tmp_path, capsys):
    folder = run(tmp_path / "run")
    assert main(["report", str(folder), "--bootstrap", "0", "--json", "--figures", str(tmp_path / "f")]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["report"] == str(folder / "report.html")
    assert (folder / "report.html").is_file()
    assert any("epochs" in name for name in told["figures"])
    assert told["verdict"][0].startswith("ACLS(margin=6.0): Miscalibrated, overconfident")
    assert [(one["name"], one["seed"]) for one in told["models"]] == [("ACLS(margin=6.0)", 1)]
    assert told["models"][0]["temperature"] > 1


def test_a_run_that_is_not_finished_is_left_out_with_a_note(tmp_path, capsys):
    run(tmp_path / "done", loss="CE()")
    begun = run(tmp_path / "begun", loss="CE()", seed=2)
    (begun / "predictions" / "test.safetensors").unlink()
    for folders in ([tmp_path], [tmp_path / "done", begun]):
        page = str(tmp_path / "page.html")
        assert main(["report", *map(str, folders), "--bootstrap", "0", "--json", "--out", page]) == 0
        told = capsys.readouterr()
        assert [sentence.split(":")[0] for sentence in json.loads(told.out)["verdict"]] == ["CE"]
        assert f"left out: {begun} is not finished: continue it with acls train --resume {begun}" in told.err


def test_where_nothing_is_finished_that_is_an_error(tmp_path, capsys):
    begun = run(tmp_path / "begun")
    (begun / "predictions" / "test.safetensors").unlink()
    assert main(["report", str(tmp_path), "--bootstrap", "0"]) == 2
    assert f"{begun} is not finished" in capsys.readouterr().err


def test_runs_of_other_settings_are_lines_of_their_own(tmp_path, capsys):
    folders = [str(run(tmp_path / str(epochs), loss="CE()", epochs=epochs)) for epochs in (3, 1)]
    words = ["--bootstrap", "0", "--table", "csv", "--out", str(tmp_path / "page.html")]
    assert main(["report", *folders, *words]) == 0
    out = capsys.readouterr().out
    assert "CE · epochs 3,none," in out
    assert "CE · epochs 1,none," in out
    assert "over 2 seeds" not in out


def test_the_marks_of_a_plain_table_are_explained(tmp_path, capsys):
    files = [str(file(tmp_path, f"{name}.npz", sharpness=name, n=2000)) for name in (1, 3)]
    words = [*files, "--bootstrap", "10", "--quiet", "--out", str(tmp_path / "page.html"), "--table"]
    assert main(["report", *words, "text"]) == 0
    assert "different from all others by more than chance" in " ".join(capsys.readouterr().out.split())
    assert main(["report", *words, "csv"]) == 0
    assert "by more than chance" not in capsys.readouterr().out


def test_names_of_scores_in_one_file_are_several_networks(tmp_path, capsys):
    import numpy as np

    p = predictions()
    scores = p.scores.numpy()
    np.savez(tmp_path / "nets.npz", a=scores, b=scores / 2, y=p.labels.numpy())
    words = ["--logits", "a", "--logits", "b", "--label", "y", "--bootstrap", "0", "--table", "csv"]
    assert main(["report", str(tmp_path / "nets.npz"), *words, "--out", str(tmp_path / "r.html")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(",")[0] for line in lines if line.startswith(("a,", "b,"))] == ["a", "b", "a", "b"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["absent.npz"], "absent.npz"),
        (["x.npz", "--bootstrap", "-1"], "--bootstrap: expected a whole number"),
    ],
)
def test_bad_input_is_a_sentence_and_exit_code_2(words, sentence, capsys):
    assert main(["report", *words]) == 2
    assert sentence in capsys.readouterr().err


def test_images_with_runs_alone_are_refused(tmp_path, capsys):
    assert main(["report", str(run(tmp_path / "run")), "--images", "x"]) == 2
    assert "got only folders of runs" in capsys.readouterr().err


def test_open_shows_the_page(tmp_path, monkeypatch):
    shown = []
    monkeypatch.setattr("webbrowser.open", shown.append)
    path = file(tmp_path)
    page = tmp_path / "p.html"
    assert main(["report", str(path), "--bootstrap", "0", "--quiet", "--open", "--out", str(page)]) == 0
    assert shown == [page.as_uri()]
