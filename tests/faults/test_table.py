"""A table of faults over every command: each is one line and exit code 2, nothing is lost, nothing is written."""

import contextlib
import hashlib
import io
import json
import re
import shutil
import sqlite3
import struct
import subprocess
import sys
import tracemalloc
import zipfile
from contextlib import closing

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file

import acls
from acls.calibrators import Temperature, make_calibrator
from acls.cli import COMMANDS, main
from acls.errors import InputError
from acls.losses import make_loss
from acls.predictions import Predictions, open_batches
from acls.storage import check_output, load_tensors
from acls.study.runs import run_study
from tests.study.quick import HERE, cells

N, K = 60, 3
LOGITS = np.random.default_rng(0).normal(size=(N, K)).astype(np.float32)
LABELS = np.arange(N) % K


def _npz(change=None, compression=zipfile.ZIP_STORED, **arrays):
    """An .npz file, with a change to the bytes of the member logits.npy before it is packed."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", compression) as archive:
        for name, array in ({"logits": LOGITS, "labels": LABELS} | arrays).items():
            member = io.BytesIO()
            np.save(member, array, allow_pickle=True)
            raw = member.getvalue()
            archive.writestr(f"{name}.npy", change(raw) if change and name == "logits" else raw)
    return packed.getvalue()


def _damaged(raw, at, flip=0x55):
    raw = bytearray(raw)
    raw[at] ^= flip
    return bytes(raw)


def _flag(raw, offset, value):
    """Set a field of the first local and central header of a zip file."""
    raw = bytearray(raw)
    central = raw.index(b"PK\x01\x02")
    for start in (offset, central + offset + 2):
        raw[start : start + 2] = struct.pack("<H", value)
    return bytes(raw)


def _tensors(header, body=b"\0" * (N * K * 4 + N * 8)):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def _entry(shape, begin, end, dtype="F32"):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


END = N * K * 4
ROWS = {"labels": _entry([N], END, END + N * 8, "I64")}


def _parquet(**columns):
    packed = io.BytesIO()
    pq.write_table(pa.table(columns), packed)
    return packed.getvalue()


def _twice():
    packed = io.BytesIO()
    pq.write_table(
        pa.table([pa.array([[0.1, 0.9]]), pa.array([1]), pa.array([0])], ["logits", "labels", "labels"]), packed
    )
    return packed.getvalue()


FILES = {
    "empty.npz": b"",
    "text.npz": b"this is no archive",
    "cut.npz": _npz()[:-40],
    "encrypted.npz": _flag(_npz(), 6, 1),
    "unknown_compression.npz": _flag(_npz(), 8, 77),
    "deflate.npz": _damaged(_npz(compression=zipfile.ZIP_DEFLATED), 300),
    "lzma.npz": _damaged(_npz(compression=zipfile.ZIP_LZMA), 300),
    "bzip2.npz": _damaged(_npz(compression=zipfile.ZIP_BZIP2), 300),
    "flipped.npz": _damaged(_npz(), 400),
    "header.npz": _npz(lambda raw: raw.replace(b"'descr'", b"'dexcr'")),
    "magic.npz": _npz(lambda raw: b"x" + raw[1:]),
    "syntax.npz": _npz(lambda raw: raw.replace(b"{", b"(")),
    "huge_k.npz": _npz(lambda raw: raw.replace(b"(60, 3), }          ", b"(60, 1000000000000)}")),
    "negative.npz": _npz(lambda raw: raw.replace(b"(60, 3)", b"(-6, 3)")),
    "shape.npz": _npz(lambda raw: raw.replace(b"(60, 3)", b"(60, 6)")),
    "pickle.npz": _npz(logits=np.array([None] * N)),
    "rows.npz": _npz(labels=LABELS[:-1]),
    "labels_out.npz": _npz(labels=LABELS + 1),
    "labels_wrap.npz": _npz(labels=LABELS.astype(np.uint64) + np.uint64(2**63)),
    "labels_half.npz": _npz(labels=LABELS + 0.5),
    "nan.npz": _npz(logits=np.where(LOGITS > 2, np.nan, LOGITS) * np.where(np.arange(N) == 5, np.nan, 1)[:, None]),
    "inf.npz": _npz(logits=np.where(np.arange(N)[:, None] == 5, np.inf, LOGITS)),
    "complex.npz": _npz(logits=LOGITS.astype(complex)),
    "member.npz": _npz(labels=np.broadcast_to(np.uint8(0), 20_000_000), compression=zipfile.ZIP_DEFLATED),
    "onehot.npz": _npz(labels=np.eye(K, dtype=int)[LABELS]),
    "multilabel.npz": _npz(labels=np.ones((N, K), int)),
    "empty.safetensors": b"",
    "shape.safetensors": _tensors({"logits": _entry([N, 6], 0, END), **ROWS}),
    "offsets.safetensors": _tensors({"logits": _entry([N, K], -8, END - 8), **ROWS}),
    "overlap.safetensors": _tensors({"logits": _entry([N, K], 8, END + 8), **ROWS}),
    "beyond.safetensors": _tensors({"logits": _entry([N, K], 0, END), **ROWS}, b"\0" * 10),
    "json.safetensors": _tensors(b"{'logits'"),
    "utf8.safetensors": _tensors(b"\xff\xfe{}"),
    "length.safetensors": struct.pack("<Q", 2**62) + b"{}",
    "huge.safetensors": _tensors({"logits": _entry([N, 10**12], 0, END), **ROWS}),
    "dtype.safetensors": _tensors({"logits": _entry([N, K], 0, END, "F99"), **ROWS}),
    "empty.parquet": b"",
    "text.parquet": b"PAR1 no PAR1",
    "cut.parquet": _parquet(logits=LOGITS.tolist(), labels=LABELS)[:-30],
    "null.parquet": _parquet(logits=[[0.1, 0.2], [None, 0.3]], labels=[0, 1]),
    "null_label.parquet": _parquet(logits=[[0.1, 0.2]] * 2, labels=[0, None]),
    "ragged.parquet": _parquet(logits=[[0.1, 0.2], [0.1, 0.2, 0.3]], labels=[0, 1]),
    "words.parquet": _parquet(logits=[[0.1, 0.2]], labels=["cat"]),
    "twice.parquet": _twice(),
    "empty.csv": b"",
    "binary.csv": b"\xff\xfe\x00p0,p1",
    "latin.csv": "p0,p1,labels,group\n0.5,0.5,0,é\n".encode("latin-1"),
    "ragged.csv": b"p0,p1,labels\n0.5,0.5,0\n0.5,0.5\n",
    "word.csv": b"p0,p1,labels\n0.5,half,0\n",
    "underscore.csv": b"p0,p1,labels\n0.5,0.5,0_1\n",
    "label.csv": b"p0,p1,labels\n0.5,0.5,1e30\n",
    "sum.csv": b"p0,p1,labels\n0.9,0.9,0\n",
    "above.csv": b"p0,p1,labels\n1.015,0,0\n",
    "below.csv": b"p0,p1,labels\n-0.1,1.1,0\n",
    "twice.csv": b"p0,p1,p0,labels\n0.5,0.5,0.5,0\n",
    "multilabel.csv": b"p0,p1,p2,p3,y0,y1,y2,y3\n1,0,0,0,1,1,0,0\n",
    "percent.csv": b"confidence,correct\n90,1\n",
    "correct.csv": b"confidence,correct\n0.9,2\n",
    "nothing.csv": b"a,b\n1,2\n",
    "unknown.pkl": b"x",
}
SAYS = {
    "null.parquet": "row 1", "null_label.parquet": "row 1", "ragged.parquet": "row 1", "label.csv": r"row 0.*1e\+30",
    "above.csv": r"1\.015", "below.csv": r"-0\.1", "twice.csv": "p0", "twice.parquet": "labels", "word.csv": "half",
    "nan.npz": "row 5", "inf.npz": "row 5", "correct.csv": "2", "percent.csv": "90",
    "labels_wrap.npz": "uint64|9223372036854775808",
    "member.npz": "20,?000,?000|rows",
}  # fmt: skip
"""What the line must say besides the file's name: the row, the value, the column."""
ON_FILES = {
    "evaluate": ["{file}", "--bootstrap", "0"],
    "calibrate": ["{file}", "--out", "new.safetensors"],
    "report": ["{file}", "--bootstrap", "0", "--out", "new.html"],
    "apply": ["c.safetensors", "{file}", "new.npz"],
    "drift": ["good.npz", "{file}"],
}
SETTINGS = [
    "--model.dropout 2", "--model.dropout nan", "--optim.momentum -1", "--optim.momentum 1", "--optim.lr -1",
    "--optim.lr inf", "--optim.weight-decay -1", "--optim.eps 0", "--schedule.warmup -1", "--schedule.milestones 1,-2",
    "--data.pad -3", "--data.val 1", "--data.val -0.1", "--data.workers -1", "--data.scale 0", "--data.mix-prob 2",
    "--data.erase 1.5", "--seed 1180591620717411303424", "--seed -1", "--epochs 0", "--epochs 1e3", "--batch 0",
    "--save-every -1", "--clip 0", "--ema 1", "--patience 0", "--limit-batches 0", "--passes -1", "--devices 0",
    "--precision fp8", "--optim.name adam", "--data.flip maybe", "--epochs", "--loss nonsense", "--model nonsense",
    "--loss.margin nan", "--loss.nothing 1",
]  # fmt: skip
WORDS = [
    "evalute", "evaluate", "evaluate absent.npz", "evaluate good.npz --bins 1000000000", "evaluate good.npz --bins 0",
    "evaluate good.npz --bins many", "evaluate good.npz --bootstrap -1", "evaluate good.npz --workers 0",
    "evaluate good.npz --workers -1", "evaluate good.npz --logits nothing", "evaluate good.npz --by group",
    "evaluate good.npz --protocol nothing", "evaluate good.npz --nothing", "evaluate . ", "evaluate '*.none'",
    "evaluate c.safetensors", "evaluate foreign.txt", "evaluate stated.csv --probs confidence --label correct",
    "evaluate good.npz --ignore-index x",
    "calibrate good.npz --out good.npz", "calibrate ours.safetensors --out ours.safetensors",
    "calibrate good.npz --out link.safetensors --test ours.safetensors", "calibrate good.npz --out c.pt",
    "calibrate good.npz --out foreign.safetensors", "calibrate good.npz --folds 1",
    "calibrate good.npz --method nothing",
    "calibrate good.npz --method temperature(objective=nothing)", "calibrate good.npz --method LTS",
    "calibrate good.npz --out folder.safetensors",
    "apply c.safetensors good.npz good.npz", "apply c.safetensors good.npz linked.npz",
    "apply c.safetensors ours.safetensors c.safetensors", "apply c.safetensors ours.safetensors foreign.npz",
    "apply good.npz good.npz new.npz", "apply ours.safetensors good.npz new.npz",
    "apply absent.safetensors good.npz new.npz",
    "apply c.safetensors good.npz new.txt", "apply c.safetensors four.npz new.npz",
    "apply c.safetensors stated.csv new.csv",
    "apply c.safetensors good.npz good.npz/new.npz",
    "report good.npz --out good.npz", "report good.npz --out foreign.html", "report absent.npz --out new.html",
    "report good.npz --bootstrap -1", "report . --out new.html", "report good.npz --out folder.safetensors",
    "explain --logits 1,x", "explain --logits 1", "explain --logits 1,inf", "explain --label 9", "explain --label 0_1x",
    "explain --methods nothing", "explain --methods CE(x={[]:1})", "explain --methods ACLS(margin=1e999)",
    "explain --figure foreign.png", "explain --figure new.bmp", "explain --figure folder.safetensors",
    "doctor absent.npz", "doctor text.npz", "drift good.npz absent.npz", "drift good.npz good.npz --alpha 2",
    "drift good.npz good.npz --psi nan", "predict absent --out new.npz", "predict good.npz --out new.npz",
    "predict . --out new.npz", "advise .", "advise absent", "share . out", "share absent out", "recipes nothing",
    "train nothing", "train --resume absent", "train --resume .", "train --config absent.yaml",
    "train --config bad.yaml",
    "train --config binary.yaml", "compare nothing", "compare digits_cnn --methods nothing", "compare --workers 0",
    "compare --seeds x",
    "compare digits_cnn --methods MCDropout(rate=2)", "compare --posthoc nothing",
    "compare --predictions absent.npz good.npz",
    "tune digits_cnn --space nothing", "tune digits_cnn --space lr=1 --trials 0", "tune nothing --space margin=1|2",
    "tune digits_cnn --loss ACLS --space margin=1|2 --accuracy-floor 2", "reproduce nothing",
    "reproduce table1 --seeds 0", "shift absent", "shift . --severity 9", "shift . --limit 0", "completion nothing",
    "methods --nothing",
]  # fmt: skip


def _calibrator(**values):
    """The bytes of a calibrator's file with other values, as whoever tampers with it would write them."""
    tensors = {"temperature": torch.tensor(1.5)} | {k: v for k, v in values.items() if isinstance(v, torch.Tensor)}
    meta = {"acls": "calibrator", "class": "Temperature", "fields": "{}"}
    meta |= {name: value for name, value in values.items() if isinstance(value, str)}
    return tensors, {name: value for name, value in meta.items() if value != "-"}


CALIBRATORS = {
    "nan": {"temperature": torch.tensor(float("nan"))},
    "zero": {"temperature": torch.tensor(0.0)},
    "negative": {"temperature": torch.tensor(-1.0)},
    "infinite": {"temperature": torch.tensor(float("inf"))},
    "shape": {"temperature": torch.ones(3)},
    "more": {"other": torch.ones(3)},
    "no class": {"class": "-"},
    "no fields": {"fields": "-"},
    "class": {"class": "Nothing"},
    "bad fields": {"fields": "{"},
    "field": {"fields": '{"nothing": 1}'},
    "report": {"report": '{"rows": 1}'},
    "kind": {"acls": "predictions"},
}
RUN = "study/runs/CE-1"
TRAINED = {
    "a changed rate": (
        f"{RUN}/recipe.yaml",
        ("  lr: 0.1", "  lr: 0.5"),
        f"train --resume {RUN}",
        r"lr was 0\.1, now 0\.5",
    ),
    "a changed seed": (f"{RUN}/recipe.yaml", ("\nseed: 1", "\nseed: 2"), f"train --resume {RUN}", "seed was 1, now 2"),
    "a changed batch": (
        f"{RUN}/recipe.yaml",
        ("batch: 64", "batch: 32"),
        f"train --resume {RUN}",
        "batch was 64, now 32",
    ),
    "a changed loss": (
        f"{RUN}/recipe.yaml",
        ("name: CE", "name: Focal"),
        f"train --resume {RUN}",
        "name was CE, now Focal",
    ),
    "a recipe that is no YAML": (f"{RUN}/recipe.yaml", b"{", f"train --resume {RUN}", "recipe.yaml"),
    "a recipe that is no text": (f"{RUN}/recipe.yaml", b"\xff\xfe", f"train --resume {RUN}", "recipe.yaml"),
    "a list for a recipe": (f"{RUN}/recipe.yaml", b"[1, 2]", f"train --resume {RUN}", "recipe.yaml"),
    "a flipped byte in the state": (
        f"{RUN}/resume.safetensors",
        -5,
        f"train --resume {RUN}",
        "does not match its checksum",
    ),
    "half a state": (f"{RUN}/resume.safetensors", b"\x10", f"train --resume {RUN}", "not a complete safetensors"),
    "splits that are damaged": (
        f"{RUN}/splits.safetensors",
        -1,
        f"train --resume {RUN}",
        "does not match its checksum",
    ),
    "weights that are damaged": (
        f"{RUN}/best.safetensors",
        -5,
        f"predict {RUN} --out new.npz",
        "does not match its checksum",
    ),
    "weights that are cut": (
        f"{RUN}/best.safetensors",
        b"",
        f"predict {RUN} --out new.npz",
        "not a complete safetensors",
    ),
    "predictions that are damaged": (
        f"{RUN}/predictions/test.safetensors",
        -5,
        f"evaluate {RUN}/predictions/test.safetensors",
        "does not match",
    ),
    "predictions of a page": (
        f"{RUN}/predictions/test.safetensors",
        -5,
        f"report {RUN} --out new.html",
        "does not match",
    ),
    "metrics that are no table": (f"{RUN}/metrics.csv", b"\xff,1\n2", f"report {RUN} --out new.html", "metrics.csv"),
    "metrics without numbers": (f"{RUN}/metrics.csv", b"epoch,val/ece\nx,y\n", f"advise {RUN}", "metrics.csv"),
    "a store that is no database": (
        "study/study.sqlite",
        b"no database, but long enough to look at",
        "report study --out new.html",
        "study.sqlite",
    ),
    "a store that is cut": ("study/study.sqlite", 3000, "report study --out new.html", "study.sqlite"),
    "a study's store to go on with": (
        "study/study.sqlite",
        b"no database at all, but text",
        "compare digits_cnn --methods CE --seeds 1 --out study",
        "study.sqlite",
    ),
}
"""What is damaged in a study: which file, how (words to change, whole content, a byte to flip, a length), and what then
refuses."""
ROWS = {
    "metrics that are no JSON": "UPDATE cells SET metrics = '{'",
    "metrics that are a list": "UPDATE cells SET metrics = '[]'",
    "a number that is a word": """UPDATE cells SET metrics = '{"n": 3, "ece": "low"}'""",
    "metrics of another version": """UPDATE cells SET metrics = '{"ece": {"value": "x"}}'""",
    "settings that are no JSON": "UPDATE cells SET settings = 'x'",
    "a seed that is a word": "UPDATE cells SET seed = 'one'",
    "a missing column": "ALTER TABLE cells DROP COLUMN seconds",
    "a missing table": "DROP TABLE cells",
    "a run outside": "UPDATE cells SET run = '../escape'",
    "a run anywhere": "UPDATE cells SET run = '/etc'",
}
HOLDER = """
import contextlib, sys
from acls.storage import hold
with contextlib.ExitStack() as stack:
    for path in sys.argv[1:]:
        stack.enter_context(hold(path))
    print("held", flush=True)
    sys.stdin.read()
"""
IN_USE = {
    "train digits_cnn --out held": "held/.lock", "train --resume study/runs/CE-1": "study/runs/CE-1/.lock",
    "compare digits_cnn --methods CE --seeds 1 --epochs 1 --out study": "study/study.lock",
    "tune digits_cnn --loss ACLS --space margin=1|2 --out search": "search/tune.lock",
    "reproduce table2 --out paper": "paper/reproduce.lock",
}  # fmt: skip
FOLDERS = [
    "train digits_cnn --out", "compare digits_cnn --methods CE --seeds 1 --out", "reproduce table2 --out",
    "tune digits_cnn --loss ACLS --space margin=1|2 --out",
]  # fmt: skip
COUNTS = {"cases": 0}


@pytest.fixture
def work(made, tmp_path, monkeypatch):
    """A copy of the folder, to work in."""
    shutil.copytree(made, tmp_path, symlinks=True, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with good files of ours, files of others and links."""
    tmp_path = tmp_path_factory.mktemp("made")
    np.savez(tmp_path / "good.npz", logits=LOGITS, labels=LABELS)
    np.savez(tmp_path / "four.npz", logits=np.zeros((5, 4)), labels=np.zeros(5, int))
    Predictions.load(tmp_path / "good.npz").save(tmp_path / "ours.safetensors")
    make_calibrator("vector").fit(torch.from_numpy(LOGITS), torch.from_numpy(LABELS)).save(tmp_path / "c.safetensors")
    (tmp_path / "linked.npz").symlink_to("good.npz")
    (tmp_path / "link.safetensors").symlink_to("ours.safetensors")
    (tmp_path / "folder.safetensors").mkdir()
    (tmp_path / "stated.csv").write_text("confidence,correct\n0.9,1\n0.8,0\n")
    (tmp_path / "bad.yaml").write_text("epochs: [")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    for name in ("txt", "html", "png", "npz", "safetensors"):
        (tmp_path / f"foreign.{name}").write_text("the work of a month")
    (tmp_path / "text.npz").write_text("no archive")
    return tmp_path


def _seen(folder):
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.endswith(".lock")  # which says who was there last
    }


def _refused(words, folder, capsys):
    """Run a command that must fail; check that it says so in one line and leaves everything as it was."""
    before = _seen(folder)
    capsys.readouterr()
    code = main(words)
    out, err = capsys.readouterr()
    lines = [line for line in err.splitlines() if not line.startswith("acls calibrate: ") or "are 0, so" not in line]
    assert code == 2, f"{words}: exit code {code}\n{out}{err}"
    assert len(lines) == 1, f"{words}:\n{err}"
    assert "Traceback" not in err
    assert "this is a bug" not in err, err
    assert out == "", f"{words} printed before it failed:\n{out}"
    assert _seen(folder) == before, f"{words} changed files"
    COUNTS["cases"] += 1
    return lines[0]


CASES = [(name, "evaluate") for name in FILES]
CASES += [(name, command) for name in list(FILES)[::2] for command in list(ON_FILES)[1:] if "multilabel" not in name]


@pytest.mark.parametrize(("name", "command"), CASES)
def test_a_file_that_cannot_be_used_is_told_in_a_line(name, command, work, capsys):
    (work / name).write_bytes(FILES[name])
    line = _refused([command, *(word.format(file=name) for word in ON_FILES[command])], work, capsys)
    assert name in line
    assert re.search(SAYS.get(name, ""), line), line
    with pytest.raises(InputError, match=name.replace(".", r"\.")):
        list(open_batches(name))


def test_a_member_of_an_archive_that_does_not_fit_the_others_is_not_unpacked(work, capsys):
    (work / "member.npz").write_bytes(FILES["member.npz"])
    tracemalloc.start()
    try:
        _refused(["evaluate", "member.npz", "--bootstrap", "0"], work, capsys)
        assert tracemalloc.get_traced_memory()[1] < 5e6, "20 MB of labels were unpacked for 60 rows"
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_setting_out_of_range_is_told_before_any_work(setting, work, capsys):
    flag = setting.split()[0]
    line = _refused(["train", "digits_cnn", "--loss", "ACLS", "--out", "run", *setting.split()], work, capsys)
    assert flag.removeprefix("--").split(".")[-1].replace("-", "_").split("_")[0] in line or "nonsense" in line


@pytest.mark.parametrize("line", WORDS)
def test_a_wrong_command_is_told_in_a_line(line, work, capsys):
    _refused([word.strip("'") for word in line.split()], work, capsys)


@pytest.mark.parametrize("name", CALIBRATORS)
def test_a_tampered_calibrator_is_not_used(name, work, capsys):
    tensors, meta = _calibrator(**CALIBRATORS[name])
    save_file(tensors, "t.safetensors", metadata=meta)
    assert "t.safetensors" in _refused(["apply", "t.safetensors", "good.npz", "new.npz"], work, capsys)


@pytest.mark.parametrize("at", [-1, -2, -9])
def test_a_flipped_byte_in_our_own_files_is_noticed(at, work, capsys):
    for name in ("ours.safetensors", "c.safetensors"):
        (work / name).write_bytes(_damaged((work / name).read_bytes(), at, 1))
    _refused(["evaluate", "ours.safetensors", "--bootstrap", "0"], work, capsys)
    _refused(["apply", "c.safetensors", "good.npz", "new.npz"], work, capsys)
    with pytest.raises(InputError, match="checksum"):
        load_tensors("ours.safetensors")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    run_study(cells(folder / "study", methods="CE", seeds=(1,), epochs=1), HERE)
    return folder


@pytest.fixture
def study(trained, work):
    shutil.copytree(trained, work, dirs_exist_ok=True)
    return work


@pytest.mark.parametrize("name", TRAINED)
def test_a_damaged_run_or_study_is_not_believed(name, study, capsys):
    file, change, words, told = TRAINED[name]
    raw = (study / file).read_bytes()
    if isinstance(change, tuple):
        assert change[0] in raw.decode()
        raw = raw.decode().replace(*change).encode()
    elif isinstance(change, bytes):
        raw = change
    else:
        raw = _damaged(raw, change, 1) if change < 0 else raw[:change]
    (study / file).write_bytes(raw)
    assert re.search(told, _refused(words.split(), study, capsys))


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("words", ["report study --out new.html", "share study shared"])
def test_a_row_of_a_study_that_acls_did_not_write_is_not_believed(name, words, study, capsys):
    with closing(sqlite3.connect("study/study.sqlite")) as database, database:
        database.execute(ROWS[name])
    line = _refused(words.split(), study, capsys)
    assert "study" in line
    assert not (study.parent / "escape").exists()


def test_a_folder_in_use_is_refused_by_every_command_that_writes_in_it(study, capsys):
    for lock in IN_USE.values():
        (study / lock).parent.mkdir(exist_ok=True)
        (study / lock).touch()
    call = [sys.executable, "-c", HOLDER, *IN_USE.values()]
    pipe = subprocess.PIPE
    with subprocess.Popen(call, stdin=pipe, stdout=pipe, text=True) as other:
        assert other.stdout.readline() == "held\n"
        for words in IN_USE:
            assert f"in use by process {other.pid}" in _refused(words.split(), study, capsys)
        other.kill()


@pytest.mark.parametrize("words", FOLDERS)
def test_a_folder_that_acls_did_not_make_is_not_written_into(words, work, capsys):
    (work / "mine").mkdir()
    (work / "mine" / "summary.csv").write_text("the work of a month")
    assert "--force" in _refused([*words.split(), "mine"], work, capsys)
    assert "not a folder" in _refused([*words.split(), "foreign.txt"], work, capsys)


def test_a_list_of_images_that_is_not_text_is_told_in_a_line(work, capsys):
    for name in ("JPEGImages", "SegmentationClass", "ImageSets/Segmentation"):
        (work / "voc" / name).mkdir(parents=True)
    for name in ("train", "val"):
        (work / "voc/ImageSets/Segmentation" / f"{name}.txt").write_bytes(b"2007_000032\xff\n")
    line = _refused(["train", "voc_mini", "--root", "voc", "--out", "run"], work, capsys)
    assert "train.txt" in line
    assert "UTF-8" in line


def test_the_data_is_not_the_place_of_the_run_even_by_force(work, capsys):
    words = ["train", "custom", "--root", "folder.safetensors", "--out", "folder.safetensors", "--force"]
    assert "is also an input" in _refused(words, work, capsys)


def test_a_full_pipe_is_told_in_a_line(work, capsys, monkeypatch):
    with contextlib.suppress(OSError), open("/dev/full", "w") as full:
        monkeypatch.setattr("sys.stdout", full)
        assert main(["evaluate", "good.npz", "--bootstrap", "0"]) == 2
        assert capsys.readouterr().err.count("No space left on device; free some space") == 1


@pytest.mark.parametrize(
    "call",
    [
        lambda: Temperature(objective="nothing"),
        lambda: make_calibrator("nothing"),
        lambda: Predictions(torch.zeros(3, 2), torch.zeros(2).long(), "logits"),
        lambda: Predictions(torch.zeros(3, 2), torch.zeros(3).long(), "nothing"),
        lambda: Temperature().fit(torch.full((4, 2), torch.nan), torch.zeros(4).long()),
        lambda: check_output("/", "page"),
        lambda: acls.CE()(torch.zeros(2, 3), torch.full((2, 3), 2 / 3)),
        lambda: acls.CE()(torch.zeros(2, 3), torch.tensor([[1.5, -0.5, 0.0]] * 2)),
        lambda: acls.CE()(torch.zeros(2, 3), torch.full((2, 3), torch.nan)),
        lambda: acls.CE(weight=[1.0, -1.0, 1.0])(torch.zeros(2, 3), torch.tensor([0, 1])),
        lambda: acls.CE(weight=[1.0, torch.nan, 1.0])(torch.zeros(2, 3), torch.tensor([0, 1])),
        lambda: acls.ACLS(margin=1e999),
        lambda: make_calibrator("MCDropout(rate=2)"),
        lambda: make_loss("MDCA(base=3)"),
        lambda: make_loss("CE(x={[]:1})"),
        lambda: make_loss("ACLS(margin=1, margin=2)"),
        lambda: acls.evaluate(np.zeros((3, 2)), np.array([0, 1, 2**63], dtype=np.uint64), kind="logits"),
        lambda: acls.evaluate(np.array([[0.9, 0.9]]), np.array([0]), kind="probs"),
    ],
)
def test_the_python_calls_raise_the_same_kind_of_error(call):
    with pytest.raises(InputError):
        call()
    COUNTS["cases"] += 1


def test_python_writes_into_no_folder_or_file_of_others_without_force(work):
    x, y = np.zeros((20, 3), dtype=np.float32), np.arange(20) % 2
    calls = [
        lambda **how: acls.compare("mlp", (x, y), test=(x, y), methods="CE", seeds=1, out="foreign", show=False, **how),
        lambda **how: acls.fit("mlp", (x, y), test=(x, y), loss="CE", out="foreign", show=False, **how),
        lambda **how: acls.write_report("foreign/notes.txt", np.eye(2)[y], y, kind="probs", **how),
    ]
    (work / "foreign").mkdir()
    (work / "foreign/notes.txt").write_text("mine")
    for call in calls:
        with pytest.raises(InputError, match="force=True"):
            call()
        COUNTS["cases"] += 1
    assert [path.name for path in (work / "foreign").iterdir()] == ["notes.txt"]
    assert (work / "foreign/notes.txt").read_text() == "mine"
    calls[-1](force=True)
    assert "<html" in (work / "foreign/notes.txt").read_text()


def test_force_replaces_a_foreign_file_and_never_an_input(work):
    assert main(["apply", "c.safetensors", "good.npz", "foreign.npz", "--force", "--quiet"]) == 0
    assert main(["apply", "c.safetensors", "good.npz", "foreign.npz", "--quiet"]) == 0  # it is ours now
    assert main(["apply", "c.safetensors", "good.npz", "good.npz", "--force", "--quiet"]) == 2


def test_a_traceback_is_for_those_who_ask(work, capsys):
    assert main(["evaluate", "absent.npz", "--debug"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_zz_the_table_says_its_counts(capsys):
    """Last in this file: every command has a case, and how many ran."""
    commands = {line.split()[0] for line in WORDS} | set(ON_FILES)
    assert set(COMMANDS) <= commands
    cases = len(CASES) + len(SETTINGS) + len(WORDS) + len(CALIBRATORS) + len(TRAINED) + 2 * len(ROWS) + len(IN_USE)
    cases += 2 * len(FOLDERS) + 30  # flipped bytes, a list, a run in its data, a full pipe, calls of Python
    with capsys.disabled():
        print(f"\nfaults: {cases} cases in the table, {COUNTS['cases']} run and refused in one line")
    assert cases >= 150
