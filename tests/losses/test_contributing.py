"""The loss that CONTRIBUTING shows passes what `make test` asks of a loss, as printed."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYTEST = ["pytest", "-q", "-p", "no:cacheprovider"]


@pytest.fixture
def run(tmp_path):
    """Run a module of Python in a copy of the package that has the example."""
    for name in ("acls", "tests"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "v0.1.0"))
    for name in ("docs", "examples", "pyproject.toml", "constraints.txt", "README.md", "CONTRIBUTING.md"):
        (tmp_path / name).symlink_to(ROOT / name)
    example = re.search(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.S).group(1)
    (tmp_path / "acls/losses/modest.py").write_text(example)
    package = tmp_path / "acls/losses/__init__.py"
    text = package.read_text().replace(
        "from acls.losses.patra", "from acls.losses.modest import Modest\nfrom acls.losses.patra"
    )
    package.write_text(re.sub(r"(\bPatra),\n", r"\1, Modest,\n", text, count=1))

    def command(*words):
        done = subprocess.run([sys.executable, "-m", *words], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    return command


def test_the_example_passes_lint_and_the_battery_in_a_copy_of_the_package(run):
    pytest.importorskip("ruff")  # which make matrix does not install
    run("ruff", "check", "acls/losses/modest.py")
    run("ruff", "format", "--check", "acls/losses/modest.py")
    run(*PYTEST, "tests/contract/test_losses.py", "-k", "Modest")  # exits with 5 where it selects no test


@pytest.mark.slow
@pytest.mark.timeout(3600)  # the tests of all losses, one after the other
def test_the_example_passes_types_and_all_tests_that_go_over_the_losses(run):
    run("mypy", "acls/losses/modest.py")
    run(*PYTEST, "tests/contract", "tests/losses", "tests/test_spec.py", "tests/test_layers.py", "tests/cli")
