"""Things go wrong: the last good state stays, the message says what to do, the exit code is not 0."""

import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from acls.cli import main
from acls.errors import InputError
from acls.recipes import save_recipe
from acls.storage import load_tensors
from acls.train import fit, resume
from acls.train.folder import load_state
from tests.data.folders import class_folders, mask, masked_folders
from tests.train.quick import assert_same_runs, digits


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 2 MB; needs the right to mount."""
    place = tmp_path / "disk"
    place.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(place)], capture_output=True)
    if done.returncode:
        pytest.skip(f"mounting a small disk is not permitted here: {done.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def fill(place, leave):
    """Write until only so many bytes are free."""
    space = os.statvfs(place)
    (place / "filler").write_bytes(bytes(space.f_bavail * space.f_frsize - leave))


@pytest.mark.skipif(sys.platform != "linux", reason="mounts a tmpfs")
def test_a_full_disk_keeps_the_last_good_state(small_disk, tmp_path, monkeypatch):
    recipe = digits(epochs=3, save_every=1)
    fit(recipe, tmp_path / "whole", show=False)
    out = small_disk / "run"
    from acls.train.session import Session

    real, done = Session.step, []

    def step(self, *args):
        done.append(1)
        if len(done) == 4:  # in the second epoch
            fill(small_disk, 20_000)
        return real(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(Session, "step", step)
        with pytest.raises(OSError, match=r"No space left on device: .*resume\.safetensors"):
            fit(recipe, out, show=False)
    assert load_state(out / "resume.safetensors")["at"]["epoch"] == 1
    assert not [path for path in out.glob(".*") if path.name != ".lock"], "no half-written file is left"
    (small_disk / "filler").unlink()
    resume(out, show=False)
    assert_same_runs(tmp_path / "whole", out)


def test_a_disk_that_fills_is_told_in_the_command_line(tmp_path, monkeypatch, capsys):
    def full(path, state):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("acls.train.folder.save_state", full)
    command = ["train", "digits_cnn", "--epochs", "1", "--log", "", "--quiet", "--out", str(tmp_path / "run")]
    assert main(command) == 2
    told = capsys.readouterr().err
    assert "No space left on device; free some space" in told
    assert "continue from it with --resume" in told


@pytest.mark.parametrize("keep", [0, 5, 300, 20_000])
def test_a_truncated_state_is_told_and_the_weights_are_still_there(keep, tmp_path, capsys):
    out = tmp_path / "run"
    fit(digits(), out, show=False)
    content = (out / "resume.safetensors").read_bytes()
    (out / "resume.safetensors").write_bytes(content[:keep])
    assert main(["train", "--resume", str(out)]) == 2
    message = capsys.readouterr().err
    assert "resume.safetensors" in message
    assert "--model.weights" in message
    assert load_tensors(out / "best.safetensors")[0]


def test_truncated_weights_are_told(tmp_path, capsys):
    out = tmp_path / "run"
    fit(digits(), out, show=False)
    path = out / "best.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    assert main(["predict", str(out), "--out", str(tmp_path / "p.npz")]) == 2
    assert "best.safetensors is not a complete safetensors file" in capsys.readouterr().err


def test_a_state_of_another_kind_is_refused(tmp_path):
    out = tmp_path / "run"
    fit(digits(), out, show=False)
    (out / "resume.safetensors").write_bytes((out / "best.safetensors").read_bytes())
    with pytest.raises(InputError, match="is not a state to resume from"):
        resume(out, show=False)


def train(name, root, tmp_path, *more):
    out = ["--out", str(tmp_path / "run"), "--epochs", "1", "--batch", "4", "--log", "", "--quiet"]
    return main(["train", name, "--root", str(root), "--data.size", "32", "--data.workers", "0", *out, *more])


def test_a_corrupt_image_ends_a_run_with_its_name(tmp_path, capsys):
    root = class_folders(tmp_path / "images")
    for i in range(8):
        path = root / "ant" / f"{i}.png"
        path.write_bytes(path.read_bytes()[:100])
    assert train("custom", root, tmp_path) == 2
    assert "cannot be decoded" in capsys.readouterr().err


def test_a_corrupt_image_that_a_worker_meets_ends_a_run_too(tmp_path, capsys):
    root = class_folders(tmp_path / "images")
    for i in range(8):
        (root / "bee" / f"{i}.png").write_bytes(b"no image")
    assert train("custom", root, tmp_path, "--data.workers", "1") == 2
    error = capsys.readouterr().err
    assert error.startswith("acls train: bee/")
    assert error.count("\n") == 1


def test_an_empty_class_folder_ends_a_run_before_it_starts(tmp_path, capsys):
    root = class_folders(tmp_path / "images")
    (root / "eel").mkdir()
    assert train("custom", root, tmp_path) == 2
    assert "eel contains no image" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_masks_of_another_size_end_a_run_before_it_starts(tmp_path, capsys):
    root = masked_folders(tmp_path / "images")
    mask(root / "masks" / "3.png", size=(36, 40))
    assert train("custom_segmentation", root, tmp_path) == 2
    assert "images/3.jpg has size 40x36, but its mask masks/3.png has size 36x40" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_class_id_out_of_range_ends_a_run_with_the_masks_name(tmp_path, capsys):
    root = masked_folders(tmp_path / "images")
    (root / "classes.txt").write_text("sky\nsea\n")
    assert train("custom_segmentation", root, tmp_path) == 2
    assert "contains the class id 2, outside 0..1" in capsys.readouterr().err


def test_a_model_for_images_is_refused_for_label_maps(tmp_path, capsys):
    root = masked_folders(tmp_path / "images")
    assert train("custom_segmentation", root, tmp_path, "--model", "resnet8") == 2
    assert "expected target of shape" in capsys.readouterr().err


def test_a_data_set_that_shrank_is_noticed_on_resume(tmp_path, capsys):
    root = class_folders(tmp_path / "images")
    assert train("custom", root, tmp_path, "--model", "resnet8", "--no-figures") == 0
    (root / "ant" / "0.png").unlink()
    capsys.readouterr()
    assert main(["train", "--resume", str(tmp_path / "run")]) == 2
    assert "the data set is not the one this run began with" in capsys.readouterr().err


def test_another_thread_count_is_no_error(tmp_path):
    """Only the bits may differ then."""
    fit(digits(epochs=1), tmp_path / "run", show=False)
    save_recipe(replace(digits(epochs=2)), tmp_path / "run" / "recipe.yaml")
    before = torch.get_num_threads()
    torch.set_num_threads(2 if before == 1 else 1)
    try:
        assert len(resume(tmp_path / "run", show=False).history) == 2
    finally:
        torch.set_num_threads(before)
