"""Whatever happens while a file is written, the reader finds the old one or the whole new one."""

import os

import pytest
import torch

from acls.errors import InputError
from acls.storage import atomic_write, load_tensors, save_tensors, write_text


def test_what_was_written_appears_under_its_name_and_alone(tmp_path):
    write_text(tmp_path / "new" / "folder" / "note.txt", "größer\n")
    assert [p.name for p in (tmp_path / "new" / "folder").iterdir()] == ["note.txt"]
    assert (tmp_path / "new" / "folder" / "note.txt").read_text(encoding="utf-8") == "größer\n"


@pytest.mark.parametrize("failure", [RuntimeError, KeyboardInterrupt])
def test_a_failure_leaves_the_old_file_and_no_trace_of_the_new(tmp_path, failure):
    path = tmp_path / "kept.txt"
    write_text(path, "old")

    def stop_half_way():
        with atomic_write(path) as temporary:
            temporary.write_text("half")
            raise failure

    with pytest.raises(failure):
        stop_half_way()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_reader_sees_the_old_file_until_the_block_ends(tmp_path):
    path = tmp_path / "file.npz"
    write_text(path, "old")
    with atomic_write(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
        assert temporary.parent == tmp_path
        assert temporary.suffix == ".npz"
    assert path.read_text() == "new"


def test_a_reader_that_has_the_old_file_open_keeps_it(tmp_path):
    write_text(tmp_path / "file", "old")
    with open(tmp_path / "file") as reader:
        write_text(tmp_path / "file", "new")
        assert reader.read() == "old"


def test_a_symbolic_link_is_followed(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write_text(tmp_path / "link", "through")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "through"


def test_the_file_has_the_rights_of_any_new_file(tmp_path):
    write_text(tmp_path / "ours", "")
    (tmp_path / "plain").write_text("")
    assert os.stat(tmp_path / "ours").st_mode == os.stat(tmp_path / "plain").st_mode


def test_a_folder_is_refused_before_any_work(tmp_path):
    with pytest.raises(InputError, match="is a folder"), atomic_write(tmp_path):
        pytest.fail("the block must not run")


def test_tensors_and_text_come_back_as_they_were(tmp_path):
    base = torch.arange(12.0).reshape(3, 4)
    tensors = {
        "base": base,
        "same": base,
        "view": base[1:],
        "turned": base.T,
        "half": base.bfloat16(),
        "bool": base > 3,
        "scalar": torch.tensor(3),
        "empty": torch.empty(0, 4),
    }
    save_tensors(tmp_path / "x.safetensors", tensors, {"note": "ä"})
    loaded, meta = load_tensors(tmp_path / "x.safetensors")
    assert meta == {"note": "ä"}
    assert loaded.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert loaded[name].dtype == tensor.dtype
        assert torch.equal(loaded[name], tensor), name


def test_a_truncated_or_missing_file_is_named(tmp_path):
    path = tmp_path / "x.safetensors"
    save_tensors(path, {"a": torch.zeros(100)}, {})
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(InputError, match=r"x\.safetensors is not a complete safetensors file"):
        load_tensors(path)
    with pytest.raises(InputError, match=r"there is no file .*absent\.safetensors"):
        load_tensors(tmp_path / "absent.safetensors")
