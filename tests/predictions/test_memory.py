"""Files larger than the memory they may take."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_five_gigabytes_are_evaluated_in_less_than_one(tmp_path):
    script = Path(__file__).parents[2] / "benchmarks" / "memory.py"
    done = subprocess.run([sys.executable, script, "--folder", tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(tmp_path.iterdir()) == []
