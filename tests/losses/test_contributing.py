"""The loss that CONTRIBUTING shows passes what `make test` asks of a loss, as printed."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_example_passes_lint_types_and_the_battery_in_a_copy_of_the_package(tmp_path):
    example = re.search(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.S).group(1)
    for name in ("acls", "tests"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "v0.1.0"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "acls/losses/modest.py").write_text(example)
    package = tmp_path / "acls/losses/__init__.py"
    text = package.read_text().replace(
        "from acls.losses.patra", "from acls.losses.modest import Modest\nfrom acls.losses.patra"
    )
    package.write_text(re.sub(r"(\bPatra),\n", r"\1, Modest,\n", text, count=1))
    for command in (
        ["ruff", "check", "acls/losses/modest.py"],
        ["ruff", "format", "--check", "acls/losses/modest.py"],
        ["mypy", "acls/losses/modest.py"],
        ["pytest", "-q", "-p", "no:cacheprovider", "tests/contract/test_losses.py", "-k", "Modest"],
        ["pytest", "-q", "-p", "no:cacheprovider", "tests/losses/test_rule.py", "-k", "table or losses"],
    ):
        done = subprocess.run(
            [sys.executable, "-m", *command], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
