"""Files larger than the memory they may take: the peak of the whole process, as the system counts it."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
PEAK = """
import json, re, sys
from acls.cli import main
code = main(sys.argv[1:])
peak = int(re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1]) / 1024
print(json.dumps([code, peak]), file=sys.stderr)
"""
"""The peak in MB; not by `getrusage`, which counts what the parent held when it started the process."""


def test_three_gigabytes_are_evaluated_in_less_than_one(tmp_path):
    script = Path(__file__).parents[2] / "benchmarks" / "memory.py"
    command = [sys.executable, script, "--gb", "3", "--folder", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def imagenet(tmp_path_factory):
    """200,000 rows of 1000 logits, 0.8 GB, twice as sharp as their labels call for; and the first 5,000 alone."""
    folder = tmp_path_factory.mktemp("imagenet")
    random = np.random.default_rng(0)
    labels = np.empty(200_000, dtype=np.int64)
    logits = np.lib.format.open_memmap(folder / "logits.npy", mode="w+", dtype=np.float32, shape=(200_000, 1000))
    for start in range(0, 200_000, 10_000):
        rows = 2 * random.standard_normal((10_000, 1000), dtype=np.float32)
        labels[start : start + 10_000] = (
            rows - np.log(random.standard_exponential(rows.shape, dtype=np.float32).clip(1e-30))
        ).argmax(1)
        logits[start : start + 10_000] = 2 * rows
    logits.flush()
    np.savez(folder / "some.npz", logits=logits[:5000], labels=labels[:5000])
    np.savez(folder / "all.npz", logits=logits, labels=labels)
    (folder / "logits.npy").unlink()
    return folder


def test_two_hundred_thousand_rows_of_a_thousand_classes_pass_every_command_in_a_gigabyte(imagenet):
    commands = {
        "calibrate": "calibrate some.npz --method temperature --out c.safetensors --force --quiet",
        "evaluate": "evaluate all.npz --json --quiet",
        "apply": "apply c.safetensors all.npz out.parquet --quiet",
        "evaluate again": "evaluate out.parquet --json --quiet",
        "report": "report all.npz --out page.html --bootstrap 0 --json",
    }
    told, peaks = {}, {}
    for name, words in commands.items():
        call = [sys.executable, "-c", PEAK, *words.split()]
        done = subprocess.run(call, cwd=imagenet, capture_output=True, text=True, check=False)
        code, peaks[name] = json.loads(done.stderr.splitlines()[-1])
        assert code == 0, f"{name}: {done.stderr}"
        told[name] = done.stdout
    print(peaks)
    before, after = (json.loads(told[name]) for name in ("evaluate", "evaluate again"))
    assert before["n"] == after["n"] == 200_000
    assert after["ece"] < 0.01 < before["ece"]  # labels were drawn at half the logits
    assert max(peaks.values()) < 1000, peaks
