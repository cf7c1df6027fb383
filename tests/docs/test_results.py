"""Published results: every page is what the stored studies give, and nothing in them tells where they were made."""

import re
import runpy
import shutil
from pathlib import Path

import pytest

RESULTS = Path(__file__).parents[2] / "docs" / "results"
ACCURATE = ("accurate", "tiny_imagenet_finetune", "cifar10_finetune", "cifar10_resnet20", "voc_finetune", "auto")
PAGES = ("README", "cifar10", "variants", "tiny_imagenet", "voc", *ACCURATE)


@pytest.fixture(scope="module")
def rebuilt(tmp_path_factory):
    """The pages made anew from a copy of the stored studies; the interactive pages, which hold a date, left out."""
    project = tmp_path_factory.mktemp("project")
    here = project / "docs" / "results"
    kept = shutil.ignore_patterns("*.html", "figures", *(f"{name}.md" for name in PAGES))
    shutil.copytree(RESULTS, here, ignore=kept)
    shutil.copyfile(RESULTS.parents[1] / "README.md", project / "README.md")
    build = runpy.run_path(str(here / "build.py"))
    build["main"](interactive=False)
    return project


@pytest.mark.parametrize("name", PAGES)
def test_the_stored_studies_give_every_number_of_a_page(name, rebuilt):
    assert (rebuilt / "docs" / "results" / f"{name}.md").read_text() == (RESULTS / f"{name}.md").read_text()


def test_the_readmes_table_is_the_stores(rebuilt):
    assert (rebuilt / "README.md").read_text() == (RESULTS.parents[1] / "README.md").read_text()


def test_there_are_sixty_runs_or_more():
    text = (RESULTS / "README.md").read_text()
    assert int(re.search(r"(\d+) networks were trained", text).group(1)) >= 60
    assert "All" in (RESULTS.parents[1] / "README.md").read_text()


def test_no_stored_file_names_a_place_on_a_machine():
    for file in RESULTS.rglob("*"):
        if file.is_file() and file.suffix in (".yaml", ".json", ".sqlite", ".md", ".html", ".csv"):
            assert not re.search(rb"(?<![\w.])/(home|root|tmp|work|Users)/", file.read_bytes()), file
