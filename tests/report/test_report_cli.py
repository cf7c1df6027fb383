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
    assert "Lowest ECE of 2: two.npz" in out
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
    assert told["verdict"][0].startswith("ACLS(margin=6.0): ECE")


def test_names_of_scores_in_one_file_are_several_networks(tmp_path, capsys):
    import numpy as np

    p = predictions()
    scores = p.scores.numpy()
    np.savez(tmp_path / "nets.npz", a=scores, b=scores / 2, y=p.labels.numpy())
    words = ["--logits", "a", "--logits", "b", "--label", "y", "--bootstrap", "0", "--table", "csv"]
    assert main(["report", str(tmp_path / "nets.npz"), *words, "--out", str(tmp_path / "r.html")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(",")[0] for line in lines if line.startswith(("a,", "b,"))] == ["a", "a", "b", "b"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["absent.npz"], "absent.npz"),
        (["x.npz", "--bootstrap", "-1"], "--bootstrap is -1"),
    ],
)
def test_bad_input_is_a_sentence_and_exit_code_2(words, sentence, capsys):
    assert main(["report", *words]) == 2
    assert sentence in capsys.readouterr().err


def test_images_with_runs_alone_are_refused(tmp_path, capsys):
    assert main(["report", str(run(tmp_path / "run")), "--images", "x"]) == 2
    assert "only folders of runs came" in capsys.readouterr().err


def test_open_shows_the_page(tmp_path, monkeypatch):
    shown = []
    monkeypatch.setattr("webbrowser.open", shown.append)
    path = file(tmp_path)
    page = tmp_path / "p.html"
    assert main(["report", str(path), "--bootstrap", "0", "--quiet", "--open", "--out", str(page)]) == 0
    assert shown == [page.as_uri()]
