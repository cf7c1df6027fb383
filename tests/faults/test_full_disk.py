"""A disk that fills up at any write: one line with the file and the way out, the old files whole, and it goes on."""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from acls.calibrators import Temperature
from acls.cli import main
from acls.study.store import Store
from tests.study.quick import HERE, timeless
from tests.train.quick import assert_same_runs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
LOGITS = 3 * np.random.default_rng(0).normal(size=(600, 3)).astype(np.float32)
LABELS = np.where(np.arange(600) % 4, LOGITS.argmax(1), np.arange(600) % 3)
FAST = "--epochs 1 --limit-batches 2 --quiet --accelerator cpu"
COMMANDS = {
    "calibrate": "calibrate in.npz --out disk/c.safetensors --quiet",
    "apply to npz": "apply c.safetensors in.npz disk/out.npz --quiet",
    "apply to safetensors": "apply c.safetensors in.npz disk/out.safetensors --quiet",
    "apply to parquet": "apply c.safetensors in.npz disk/out.parquet --quiet",
    "apply to csv": "apply c.safetensors in.npz disk/out.csv --quiet --force",
    "report": "report in.npz --out disk/page.html --figures disk/figures --bootstrap 0 --quiet",
    "explain": "explain --figure disk/figure.png",
    "train": f"train digits_cnn --out disk/run {FAST}",
    "compare": f"compare digits_cnn --methods CE --seeds 1 --out disk/study {FAST}",
}


class Disk:
    """A small file system of its own, that is filled to the last byte when a chosen file is opened for writing."""

    def __init__(self, place):
        self.place, self.opened, self.full_at, self.last = place, 0, None, ""

    def heard(self, event, args):
        """Count what is opened for writing; an audit hook, which hears of SQLite's files too."""
        if event == "open":
            path, mode, flags = args
            writes = any(letter in mode for letter in "wax+") if mode else flags & (os.O_WRONLY | os.O_RDWR)
        elif event == "sqlite3.connect":
            path, writes = args[0], True
        else:
            return
        named = os.path.abspath(os.fsdecode(path)) if isinstance(path, str | bytes | Path) else ""
        if writes and named.startswith(f"{self.place}/") and not named.endswith("/filler") and named != self.last:
            self.opened, self.last = self.opened + 1, named
            if self.opened == self.full_at:
                self.fill()

    def fill(self):
        space = os.statvfs(self.place)
        (self.place / "filler").write_bytes(bytes(space.f_bavail * space.f_frsize))

    def empty(self):
        self.full_at = None
        (self.place / "filler").unlink(missing_ok=True)

    def files(self):
        return {
            str(path.relative_to(self.place)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(self.place.rglob("*"))
            if path.is_file() and path.name != "filler"
        }


listening = []


@pytest.fixture(scope="module", autouse=True)
def _hook():
    sys.addaudithook(lambda event, args: [disk.heard(event, args) for disk in listening])


@pytest.fixture
def disk(tmp_path, monkeypatch):
    place = tmp_path / "disk"
    place.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(place)], capture_output=True)
    if done.returncode:
        pytest.skip(f"mounting a small disk is not permitted here: {done.stderr.decode().strip()}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("acls.study.engine.make_engine", lambda *_, **__: HERE)  # in this process, which the hook hears
    np.savez("in.npz", logits=LOGITS, labels=LABELS)
    Temperature().fit(torch.from_numpy(LOGITS), torch.from_numpy(LABELS)).save("c.safetensors")
    listening.append(made := Disk(place))
    yield made
    listening.remove(made)
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.skipif(sys.platform != "linux", reason="mounts a tmpfs")
@pytest.mark.parametrize("name", COMMANDS)
def test_a_disk_that_fills_up_at_any_write_costs_nothing_that_was_written(name, disk, capsys, tmp_path):
    words = COMMANDS[name].split()
    assert main(words) == 0
    writes, whole = disk.opened, tmp_path / "whole"
    assert writes >= 1
    shutil.copytree(disk.place, whole)
    told = set()
    for write in range(1, writes + 1):
        if name in ("train", "compare"):  # which begin anew
            shutil.rmtree(disk.place / words[words.index("--out") + 1].partition("/")[2])
        before = disk.files()
        disk.opened, disk.last, disk.full_at = 0, "", write
        capsys.readouterr()
        code = main(words)
        out, err = capsys.readouterr()
        where = f"{name}, write {write} of {writes}:\n{out}{err}"
        if code == 0 and not err:  # what was opened was not written to, or had room in what it replaced
            assert disk.files().keys() == whole_names(whole), where
            disk.empty()
            continue
        assert code == 2, where
        assert err.count("\n") == 1, where
        assert "disk/" in err, where
        assert "free some space" in err, where
        told.add(err)
        after = disk.files()
        changed = {path for path in before if after.get(path) != before[path]}
        assert changed <= {"page.html"}, where  # which was written whole before a figure could not be
        assert all((disk.place / path).read_text().endswith("</html>\n") for path in changed)
        assert not [path for path in after if os.path.basename(path).startswith(".") and not path.endswith(".lock")]
        disk.empty()
        again = words
        if (disk.place / "run" / "recipe.yaml").exists() and name == "train":
            again = ["train", "--resume", "disk/run", "--quiet"]
        assert main(again) == 0, where
        if name == "train":
            assert_same_runs(whole / "run", disk.place / "run")
        if name == "compare":
            assert timeless(Store(disk.place / "study").rows()) == timeless(Store(whole / "study").rows())
    assert told


def whole_names(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
