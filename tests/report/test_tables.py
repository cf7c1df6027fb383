import csv
import io
import re
import subprocess

import pytest

from acls.errors import InputError
from acls.report.tables import FORMS, Table, spread


@pytest.fixture
def table():
    return Table(
        ["method", "ECE %"],
        [["a_b & 50 %", "1.00"], ["plain", "12.34 ± 0.1"]],
        marks={(0, 1): "best", (1, 1): "second"},
    )


def test_text_marks_the_best_and_keeps_the_digits_in_line(table):
    header, best, second = table.text().splitlines()
    assert best.endswith("1.00*")
    assert second.endswith("12.34 ± 0.1'")
    assert len(best) == len(second)
    assert header.rstrip().endswith("ECE %")


def test_markdown_has_as_many_cells_in_every_line():
    lines = Table(["a|b", "c"], [["x|y", "<script>"]], marks={(0, 0): "best"}).markdown().splitlines()
    assert {len(re.split(r"(?<!\\)\|", line)) for line in lines} == {4}
    assert "**x\\|y**" in lines[2]
    assert "\\<script>" in lines[2]


def test_latex_is_bold_and_underlined_with_every_special_character_written_out(table):
    text = table.latex()
    assert r"a\_b \& 50 \%" in text
    assert r"\textbf{1.00}" in text
    assert r"\underline{12.34 $\pm$ 0.1}" in text
    hostile = Table(["x"], [[r"\input{/etc/passwd} $x^2$ ~#"]]).latex()
    assert r"\input" not in hostile
    assert r"\textbackslash{}input\{/etc/passwd\} \$x\textasciicircum{}2\$ \textasciitilde{}\#" in hostile


def test_csv_reads_back_as_it_was():
    rows = [["a,b", '1 "2"'], ["line\nbreak", ""]]
    assert list(csv.reader(io.StringIO(Table(["x", "y"], rows).csv()))) == [["x", "y"], *rows]


def test_html_escapes_what_comes_from_files():
    text = Table(["<b>"], [['<script>alert("x")</script>']], marks={(0, 0): "best"}).html()
    assert "<script>" not in text
    assert "<strong>&lt;script&gt;alert(&quot;x&quot;)&lt;/script&gt;</strong>" in text
    assert "&lt;b&gt;" in text


@pytest.mark.parametrize("form", FORMS)
def test_every_form_shows_every_cell_and_fills_up_short_rows(form):
    text = Table(["name", "one", "two"], [["first", "1"], ["second", "2", "3"]]).show(form)
    for cell in ("name", "two", "first", "second", "3"):
        assert cell in text


def test_an_unknown_form_is_refused_with_the_known_ones():
    with pytest.raises(InputError, match="did you mean 'latex'"):
        Table(["x"]).show("latx")


def test_spread_is_the_sample_deviation():
    assert spread([1.0, 2.0, 4.0], decimals=4) == "2.3333 ± 1.5275"
    assert spread([0.5], scale=100) == "50.00"


def test_latex_compiles_where_there_is_a_compiler(table, tmp_path):
    import shutil

    if shutil.which("pdflatex") is None:
        pytest.skip("no pdflatex to compile with")
    body = "\\documentclass{article}\\usepackage{booktabs}\\begin{document}" + table.latex() + "\\end{document}"
    (tmp_path / "t.tex").write_text(body)
    subprocess.run(["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "t.tex"], cwd=tmp_path, check=True)


def test_a_column_that_is_empty_in_every_row_can_be_left_out():
    table = Table(["net", "debiased", "ECE %", "note"], [["a", "", "5.3"], ["b", "", "6.1", ""]])
    table.marks[1, 2] = "best"
    assert table.filled().header == ["net", "ECE %"]
    assert table.filled().marks == {(1, 1): "best"}
    assert Table(["net"], []).filled().header == ["net"]
