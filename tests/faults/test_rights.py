"""Where one may not read or write: a read-only disk, and the files of another user."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch

from acls.calibrators import Temperature
from acls.cli import main
from acls.study.runs import run_study
from tests.study.quick import HERE, cells

LOGITS = np.random.default_rng(0).normal(size=(90, 3)).astype(np.float32)
LABELS = np.arange(90) % 3
WRITES = {
    "calibrate": "calibrate in.npz --method temperature --force --out {}/c.safetensors",
    "apply": "apply c.safetensors in.npz {}/out.npz",
    "report": "report in.npz --bootstrap 0 --out {}/page.html",
    "explain": "explain --figure {}/figure.png",
    "drift": "drift in.npz in.npz --out {}/c.safetensors",
    "predict": "predict study/runs/CE-1 --out {}/out.npz",
    "share": "share study {}/shared",
    "train": "train digits_cnn --epochs 1 --quiet --out {}/run",
    "compare": "compare digits_cnn --methods CE --seeds 1 --epochs 1 --quiet --out {}/study",
    "tune": "tune digits_cnn --loss ACLS --space margin=1|2 --epochs 1 --quiet --out {}/search",
    "reproduce": "reproduce table2 --quiet --out {}/paper",
}


def made(folder):
    np.savez(folder / "in.npz", logits=LOGITS, labels=LABELS)
    Temperature().fit(torch.from_numpy(LOGITS), torch.from_numpy(LABELS)).save(folder / "c.safetensors")
    run_study(cells(folder / "study", methods="CE", seeds=(1,), epochs=1), HERE)
    (folder / "locked").mkdir()
    return folder


@pytest.fixture(scope="module")
def place():
    """A folder that everyone may look into, which pytest's own are not."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield made(Path(name))


def test_the_umask_decides_the_mode_of_every_file_of_a_study(place):
    os.umask(mask := os.umask(0o022))
    modes = {path.stat().st_mode & 0o777 for path in (place / "study").rglob("*") if path.is_file()}
    assert modes == {0o666 & ~mask}


@pytest.fixture
def read_only(place, monkeypatch):
    disk = place / "disk"
    disk.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "ro,size=1m", "tmpfs", str(disk)], capture_output=True)
    if done.returncode:
        disk.rmdir()
        pytest.skip(f"mounting a read-only disk is not permitted here: {done.stderr.decode().strip()}")
    monkeypatch.chdir(place)
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)
    disk.rmdir()


@pytest.mark.skipif(sys.platform != "linux", reason="mounts a tmpfs")
def test_a_read_only_disk_is_told_before_any_work(read_only, capsys, monkeypatch):
    monkeypatch.setattr("acls.train.loop.Session", lambda *_, **__: pytest.fail("data was loaded before"))
    for name, words in WRITES.items():
        code = main(words.format("disk").split())
        out, err = capsys.readouterr()
        assert (code, out, err.count("\n")) == (2, "", 1), f"{name}: {code}\n{out}{err}"
        assert "disk" in err, err
        assert any(told in err for told in ("Read-only file system", "not a writable folder")), err


AS_ANOTHER = """
import contextlib, io, json, os, sys
from acls.cli import main

def run(commands):
    told = {}
    for name, words in commands.items():
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(words.split())
        told[name] = [code, out.getvalue(), err.getvalue()]
    return told

first, then = json.load(sys.stdin)
run(first)  # so that all is imported that the other user may not read
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
json.dump(run(then), sys.stdout)
"""
RUN = "study/runs/CE-1"


def by_nobody(folder, warm, commands):
    """What commands say that another user runs, in a process that has run others before as root."""
    call, given = [sys.executable, "-c", AS_ANOTHER], json.dumps([warm, commands])
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(call, input=given, capture_output=True, check=False, cwd=folder, env=env, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root can become another user")
def test_another_user_is_told_what_is_not_permitted_and_may_do_the_rest(place):
    for name in ("open", "warm"):
        (place / name).mkdir()
        os.chmod(place / name, 0o777)
    secrets = [f"secret.{suffix}" for suffix in ("npz", "safetensors", "csv", "parquet")]
    for name in secrets:
        (place / name).write_bytes(b"not for you")
        os.chmod(place / name, 0o600)
    os.chmod(place / RUN / "resume.safetensors", 0o600)
    allowed = {
        "evaluate": "evaluate in.npz", "evaluate a run": f"evaluate {RUN}/predictions/test.safetensors",
        "report on a study": "report study --bootstrap 0 --out {}/page.html", "apply": WRITES["apply"],
        "predict": WRITES["predict"], "share": WRITES["share"], "reproduce": WRITES["reproduce"],
    }  # fmt: skip
    refused = {name: words.format("locked") for name, words in WRITES.items()}
    refused |= {name: f"evaluate {name}" for name in secrets}
    refused |= {"calibrator": "apply secret.safetensors in.npz open/x.npz", "page in the study": "report study"}
    refused |= {"resume": f"train --resume {RUN} --quiet"}
    warm = {name: words.format("warm") for name, words in (WRITES | allowed).items()}
    warm |= {"drawn": "train digits_cnn --epochs 1 --quiet --out warm/drawn"}
    before = {path: path.stat().st_mtime_ns for path in place.rglob("*") if not {"open", "warm"} & set(path.parts)}
    then = {f"may {name}": words.format("open") for name, words in allowed.items()}
    told = by_nobody(place, warm, refused | then)
    for name in refused:
        code, out, err = told[name]
        assert (code, out, err.count("\n")) == (2, "", 1), f"{name}: {code}\n{out}{err}"
        assert any(words in err for words in ("Permission denied", "not a writable folder")), f"{name}: {err}"
        assert any(part in err for part in ("locked", "secret.", "study")), f"{name}: {err}"
    for name in then:
        assert told[name][0] == 0, f"{name}: {told[name]}"
    after = {path: path.stat().st_mtime_ns for path in place.rglob("*") if not {"open", "warm"} & set(path.parts)}
    assert after == before
