"""An output never replaces an input, nor a file that acls did not write."""

import os

import numpy as np
import pytest
import torch

from acls.errors import InputError
from acls.predictions import Predictions
from acls.storage import atomic_write, check_output, load_tensors, save_tensors, write_text

KINDS = ("npz", "safetensors", "parquet")


def _predictions(path):
    p = Predictions(torch.randn(20, 3), torch.arange(20) % 3, kind="logits")
    p.save(path)
    return path


@pytest.mark.parametrize("suffix", KINDS)
def test_our_own_predictions_are_known_and_those_of_others_are_not(tmp_path, suffix):
    ours = _predictions(tmp_path / f"ours.{suffix}")
    check_output(ours, "predictions")
    with pytest.raises(InputError, match=r"is not a page file that acls wrote.*--force"):
        check_output(ours, "page")
    check_output(ours, "page", force=True)
    wrong = (
        r"is not a calibrator file that acls wrote.*--force" if suffix == "safetensors" else r"ends in \.safetensors"
    )
    with pytest.raises(InputError, match=wrong):
        check_output(ours, "calibrator")
    np.savez(tmp_path / "theirs.npz", logits=np.zeros((3, 2)), labels=np.zeros(3, int))
    with pytest.raises(InputError, match="--force"):
        check_output(tmp_path / "theirs.npz", "predictions")


@pytest.mark.parametrize("form", ["png", "svg", "pdf"])
def test_our_own_figures_are_known(tmp_path, form):
    style = pytest.importorskip("acls.report.figures.style")
    figure, _ = style.canvas()
    style.save(figure, tmp_path / f"f.{form}")
    check_output(tmp_path / f"f.{form}", "figure")


@pytest.mark.parametrize("link", ["same", "symbolic", "hard", "dotted"])
def test_an_input_is_known_under_any_name_even_by_force(tmp_path, link):
    source = _predictions(tmp_path / "in.npz")
    out = tmp_path / "out.npz"
    if link == "symbolic":
        out.symlink_to(source)
    elif link == "hard":
        os.link(source, out)
    elif link == "dotted":
        out = tmp_path / "." / "sub" / ".." / "in.npz"
        (tmp_path / "sub").mkdir()
    else:
        out = source
    with pytest.raises(InputError, match="is also an input"):
        check_output(out, "predictions", inputs=[tmp_path / "absent", source], force=True)


def test_a_place_without_the_right_to_write_is_refused_before_any_work(tmp_path):
    with pytest.raises(InputError, match="is a folder"):
        check_output(tmp_path, "page")
    with pytest.raises(InputError, match="not a regular file"):
        check_output("/dev/null", "page", force=True)
    write_text(tmp_path / "file", "")
    with pytest.raises(InputError, match="not a writable folder"):
        check_output(tmp_path / "file" / "page.html", "page")
    check_output(tmp_path / "new" / "folders" / "page.html", "page")


@pytest.mark.parametrize("mask", [0o022, 0o002, 0o077])
def test_the_umask_decides_the_mode_of_every_kind_of_file(tmp_path, mask):
    before = os.umask(mask)
    try:
        save_tensors(tmp_path / "t.safetensors", {"x": torch.zeros(2)}, {})
        for suffix in KINDS:
            _predictions(tmp_path / f"p.{suffix}")
        (tmp_path / "plain").touch()
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o666 & ~mask}


def test_what_a_killed_process_left_goes_with_the_next_write_and_a_living_one_keeps_its_own(tmp_path):
    path = tmp_path / "[odd] name.npz"
    with atomic_write(path) as living:
        living.touch()
        dead = living.with_name(living.name.replace(f"-{os.getpid()}-", "-4194999-"))
        dead.touch()
        write_text(path, "new")
        assert living.exists()
        assert not dead.exists()
        living.write_text("newest")
    assert [one.name for one in tmp_path.iterdir()] == [path.name]


def test_a_full_disk_is_told_with_the_name_of_the_file(tmp_path):
    def full():
        with atomic_write(tmp_path / "x.npz"):
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match=r"No space left on device: '.*x\.npz'"):
        full()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("where", [-1, -30, 150])
def test_a_flipped_byte_is_noticed(tmp_path, where):
    path = tmp_path / "x.safetensors"
    save_tensors(path, {"a": torch.arange(10.0), "b": torch.arange(3)}, {"note": "n" * 100})
    assert torch.equal(load_tensors(path)[0]["a"], torch.arange(10.0))
    damaged = bytearray(path.read_bytes())
    damaged[where] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(InputError, match=r"is damaged: .* does not match its checksum|not a complete safetensors"):
        load_tensors(path)
