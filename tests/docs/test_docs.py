"""The site builds offline without a warning, and every piece of code on it runs."""

import doctest
import importlib
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from acls.cli import main
from tests.contract.losses import BATTERY

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS))
runner, methods, calibrators, protocols, text, when, measured = (
    importlib.import_module(f"pages.{name}")
    for name in ("runner", "methods", "calibrators", "protocols", "text", "when", "measured")
)
WRITTEN = sorted(DOCS.glob("*.md"))
EXAMPLES = [path for path in sorted((ROOT / "acls").rglob("*.py")) if ">>>" in path.read_text(encoding="utf-8")]
EXACT = {"confidences"}
"""Pages whose outputs are the same on every machine; elsewhere networks are trained, whose digits depend on it."""


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.stem)
def test_every_piece_of_code_of_a_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    runner.run(page.read_text(encoding="utf-8"), check_outputs=page.stem in EXACT)


@pytest.mark.parametrize("name", methods.REGISTRY)
def test_the_code_of_a_methods_page_runs(name):
    page = methods.page(name, methods.REGISTRY[name])
    assert [block.language for block in runner.blocks(page)] == ["python"]
    runner.run(page)


@pytest.mark.parametrize("name", calibrators.REGISTRY)
def test_the_code_of_a_calibrators_page_runs(name):
    runner.run(calibrators.page(name, calibrators.REGISTRY[name]))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_examples_in_docstrings_print_what_they_say(path):
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    failed, tried = doctest.testmod(importlib.import_module(module))
    assert tried
    assert not failed


def test_code_that_fails_or_that_nobody_runs_is_an_error():
    with pytest.raises(ZeroDivisionError):
        runner.run("```python\n1 / 0\n```")
    with pytest.raises(RuntimeError, match="ended with 2"):
        runner.run("```bash\nacls evaluate nowhere.npz\n```")
    with pytest.raises(RuntimeError, match="mark the block as text"):
        runner.run("```bash\nrm something\n```")


def test_an_output_that_no_command_prints_is_an_error():
    printed = "```python\nprint('ECE 11.40 %')\nprint('n 5')\n```\n```text\n{}\n```"
    runner.run(printed.format("...\nn 5"), check_outputs=True)
    for shown in ("ECE 15.40 %", "NLL 11.40 %", "n 5\nECE 11.40 %"):
        with pytest.raises(RuntimeError, match="was not printed"):
            runner.run(printed.format(shown), check_outputs=True)


@pytest.mark.parametrize("page", [ROOT / "README.md", DOCS / "index.md"], ids=["readme", "home"])
def test_the_sample_at_the_top_is_what_the_command_prints(page, outputs, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    (tmp_path / "resnets.npz").symlink_to(outputs("cifar10_akamaster_resnets"))
    sample = re.search(r"```text\n\$ acls (.*?)\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.S)
    assert main(shlex.split(sample[1])) == 0
    runner.check(sample[2], capsys.readouterr().out)


def test_a_method_is_added_as_its_page_says(tmp_path):
    page = (DOCS / "adding.md").read_text(encoding="utf-8")
    files = {block.title: block.code for block in runner.blocks(page) if block.title}
    assert list(files) == ["modest.py", "register.py", "check.py"]
    for name, code in files.items():
        (tmp_path / name).write_text(code, encoding="utf-8")
    paths = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    ran = subprocess.run([sys.executable, "check.py"], cwd=tmp_path, env=paths, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip() == f"{len(BATTERY)} checks passed"


def test_formulas_are_set_and_names_are_left_alone():
    page = methods.page("ACLS", methods.REGISTRY["ACLS"])
    assert "Σ<sub>j≠ŷ</sub> max(0, z<sub>ŷ</sub> - z<sub>j</sub> - margin)<sup>2</sup>" in page
    assert r"alpha pos\_lambda" in page
    assert text.escape("k_{i+1} < |x|^2 in `p_y^2` and n_train") == (
        r"k<sub>i+1</sub> \< \|x\|<sup>2</sup> in `p_y^2` and n\_train"
    )
    for name, kind in methods.REGISTRY.items():
        left = re.findall(r"\^|\\\{", text.prose(kind))
        assert not left, (name, left)


def test_a_methods_page_opens_with_when_to_use_it_its_formula_and_what_it_did_on_real_data():
    page = methods.page("ACLS", methods.REGISTRY["ACLS"])
    places = [
        page.index(part) for part in ("Use it when logits grow", r"$$-\log p_y", "## On real data", "## Definition")
    ]
    assert places == sorted(places)
    rows = measured.measured("ACLS").splitlines()
    stored = (DOCS / "results" / "cifar10.md").read_text(encoding="utf-8")
    ece = re.search(r"^\| ACLS[^|]* \| none \| [^|]+ \| ([\d.]+)", stored, flags=re.M)[1]
    assert any(f"| {ece}" in row for row in rows)
    assert any(row.startswith("|  | `CE` |") for row in rows)
    assert measured.measured("Nothing") == ""


def test_every_formula_is_set_as_mathml():
    formulas = pytest.importorskip("pages.formulas")
    for name, section in when.when().items():
        assert "$$" not in formulas.typeset(section), name
    set_ = formulas.typeset("before $$z_{\\hat y}^2$$ after")
    assert "<msubsup>" in set_
    assert set_.startswith("before ")


def test_the_protocols_table_has_every_protocol():
    from acls.metrics.protocols import PROTOCOLS

    assert protocols.PLACE in (DOCS / "metrics.md").read_text(encoding="utf-8")
    for name in PROTOCOLS:
        assert f"`{name}`" in protocols.table()


def test_advice_is_given_on_nothing_that_is_not_there():
    assert set(when.when()) <= {*methods.REGISTRY, *calibrators.REGISTRY}


def test_the_site_builds_without_a_warning_and_needs_no_network(tmp_path):
    pytest.importorskip("mkdocs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    pages = {path.relative_to(tmp_path).as_posix(): path.read_text("utf-8") for path in tmp_path.rglob("*.html")}
    for name in methods.REGISTRY:
        assert f"methods/{name}.html" in pages
        assert (tmp_path / "methods" / f"{name}.svg").is_file()
    for name, html in pages.items():
        fetched = re.findall(r'<(?:script|img|link)[^>]*(?:src|href)="(https?://[^"]+)"', html)
        assert not fetched, (name, fetched)
        assert protocols.PLACE not in html
    assert "<math" in pages["methods/ACLS.html"]
    assert (tmp_path / "search" / "search_index.js").is_file()  # what the search reads where there is no server
    assert 'src="javascripts/iframe-worker.js"' in pages["index.html"]
