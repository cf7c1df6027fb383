"""Every format gives back what was written, whole or in slices, and says what is wrong with a file and where."""

import json
import re
import tracemalloc

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made import assert_same, make, write_csv

from acls.errors import InputError
from acls.predictions import KINDS, Columns, Predictions, open_batches, save_batches

FORMATS = [".npz", ".safetensors", ".parquet"]
TEXT = [".csv", ".tsv"]
quickly = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@quickly
@given(
    suffix=st.sampled_from(FORMATS),
    kind=st.sampled_from(KINDS),
    dtype=st.sampled_from([torch.float16, torch.float32, torch.float64]),
    n=st.integers(1, 60),
    rows=st.integers(1, 70),
    k=st.integers(2, 6),
    extra=st.booleans(),
)
def test_what_is_written_comes_back_whole_and_in_slices(tmp_path, suffix, kind, dtype, n, rows, k, extra):
    p = make(n, k, kind, dtype=dtype, group=extra, image=extra)
    path = tmp_path / f"p{suffix}"
    p.save(path)
    whole = Predictions.load(path)
    assert_same(whole, p)
    assert whole.meta == p.meta
    batches = open_batches(path, rows=rows)
    assert batches.n_rows == n
    slices = list(batches)
    assert all(len(part) <= rows for part in slices)
    assert_same(Predictions.concat(slices), p)
    assert_same(Predictions.concat(list(batches)), p)  # a second time


@pytest.mark.parametrize("suffix", FORMATS)
def test_names_of_groups_come_back(tmp_path, suffix):
    p = make(7)
    named = Predictions(
        p.scores, p.labels, p.kind, group=torch.tensor([0, 1, 0, 2, 1, 1, 0]), group_names=("b", "a", "ü")
    )
    named.save(tmp_path / f"p{suffix}")
    assert Predictions.load(tmp_path / f"p{suffix}").group_names == ("b", "a", "ü")
    slices = list(open_batches(tmp_path / f"p{suffix}", rows=2))
    assert_same(Predictions.concat(slices), named)
    assert slices[-1].group_names == ("b", "a", "ü")


@pytest.mark.parametrize("suffix", FORMATS)
def test_parts_that_number_their_groups_differently_agree_on_names(tmp_path, suffix):
    p = make(4)
    for at, names in enumerate([("a", "b"), ("b", "a")]):
        half = Predictions(p.scores, p.labels, p.kind, group=torch.tensor([0, 1, 1, 0]), group_names=names)
        half.save(tmp_path / f"{at}{suffix}")
    both = list(open_batches([tmp_path / f"0{suffix}", tmp_path / f"1{suffix}"]))
    assert [both[-1].group_names[code] for part in both for code in part.group.tolist()] == list("abba" + "baab")


def test_bfloat16_keeps_its_values(tmp_path):
    p = make(dtype=torch.bfloat16)
    for suffix in FORMATS:
        p.save(tmp_path / f"p{suffix}")
        assert torch.equal(Predictions.load(tmp_path / f"p{suffix}").scores.float(), p.scores.float())
        assert torch.equal(next(iter(open_batches(tmp_path / f"p{suffix}"))).scores.float(), p.scores.float())


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("order", ["C", "F"])
def test_npz_of_any_making_is_read_in_slices(tmp_path, save, order):
    p = make(41)
    save(tmp_path / "p.npz", logits=np.asarray(p.scores, order=order), labels=p.labels.numpy().astype(">i2"))
    assert_same(Predictions.load(tmp_path / "p.npz"), p)
    assert_same(Predictions.concat(list(open_batches(tmp_path / "p.npz", rows=6))), p)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_memory_does_not_grow_with_the_file(tmp_path, save):
    path = tmp_path / "p.npz"
    save(path, logits=np.zeros((400_000, 10), np.float32), labels=np.zeros(400_000, np.uint8))
    tracemalloc.start()
    total = sum(len(batch) for batch in open_batches(path, rows=1000))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert total == 400_000
    assert peak < 4_000_000  # of 16 MB


def test_a_network_of_several_in_one_file_is_named_by_its_index(tmp_path):
    nets = [make(9, kind="probs", seed=seed) for seed in range(3)]
    stacked = torch.stack([p.scores for p in nets]).numpy()
    for order in "CF":
        for save in (np.savez, np.savez_compressed):
            save(tmp_path / "nets.npz", probs=np.asarray(stacked, order=order), labels=nets[1].labels)
            for name in ("probs[1]", "probs[-2]"):
                assert_same(Predictions.load(tmp_path / "nets.npz", probs=name), nets[1])
                streamed = Predictions.concat(list(open_batches(tmp_path / "nets.npz", Columns(probs=name), rows=4)))
                assert_same(streamed, nets[1])
    with pytest.raises(InputError, match=r"pass one of them, probs\[0\] to probs\[2\]"):
        open_batches(tmp_path / "nets.npz")
    with pytest.raises(InputError, match=r"'probs\[3\]' is out of range: 'probs' has shape \(3, 9, 5\)"):
        Predictions.load(tmp_path / "nets.npz", probs="probs[3]")


def test_foreign_names_are_named_and_kinds_are_said(tmp_path):
    p = make(9)
    np.savez(tmp_path / "x.npz", resnet20=p.scores, resnet32=p.scores + 1, y=p.labels)
    assert_same(Predictions.load(tmp_path / "x.npz", logits="resnet20", labels="y"), p)
    with pytest.raises(InputError, match=r"it has resnet20 \(9, 5\), resnet32 \(9, 5\), y \(9,\): .*--logits resnet20"):
        Predictions.load(tmp_path / "x.npz")
    with pytest.raises(InputError, match="did you mean 'resnet20'"):
        Predictions.load(tmp_path / "x.npz", logits="resnt20")
    with pytest.raises(InputError, match=r"no 'labels' for the labels; it has .*--label "):
        Predictions.load(tmp_path / "x.npz", logits="resnet20")
    with pytest.raises(InputError, match="no kind of column 'logit': did you mean 'logits'"):
        Predictions.load(tmp_path / "x.npz", logit="resnet20")
    with pytest.raises(InputError, match="logits and probs are both given"):
        Columns(logits="a", probs="b")


def test_two_kinds_in_one_file_must_be_told_apart(tmp_path):
    p = make(9)
    np.savez(tmp_path / "x.npz", logits=p.scores, probs=p.scores.softmax(1), labels=p.labels)
    with pytest.raises(InputError, match="contains logits and probs: choose one, as in --logits logits"):
        Predictions.load(tmp_path / "x.npz")
    assert Predictions.load(tmp_path / "x.npz", probs="probs").kind == "probs"


def test_dense_maps_in_a_file_are_read_as_pixels(tmp_path):
    scores, labels = torch.randn(5, 3, 2, 4), torch.randint(0, 3, (5, 2, 4))
    np.savez(tmp_path / "d.npz", logits=scores, labels=labels)
    expected = Predictions.dense(scores, labels, "logits")
    assert_same(Predictions.load(tmp_path / "d.npz"), expected)
    assert_same(Predictions.concat(list(open_batches(tmp_path / "d.npz", rows=2))), expected)
    np.savez(tmp_path / "d.npz", logits=scores.movedim(1, -1), labels=labels)
    with pytest.raises(InputError, match="the classes belong on axis 1"):
        Predictions.load(tmp_path / "d.npz")


def test_one_column_is_the_score_of_class_1(tmp_path):
    p = make(20, 2, "probs", dtype=torch.float64)
    for kind, column in {
        "probs": p.scores[:, 1],
        "log_probs": p.scores[:, 1].log(),
        "logits": (p.scores[:, 1] / p.scores[:, 0]).log(),
    }.items():
        for shape in ((20,), (20, 1), (5, 1, 4), (5, 1, 2, 2)):
            labels = p.labels.reshape(shape[:1] + shape[2:])
            np.savez(tmp_path / "b.npz", **{kind: column.reshape(shape)}, labels=labels)
            torch.testing.assert_close(Predictions.load(tmp_path / "b.npz").log_probs(), p.log_probs())


@pytest.mark.parametrize("columns", ["list", "fixed", "numbered", "named"])
def test_parquet_of_any_making(tmp_path, columns):
    p = make(23, 3, "probs")
    rows = p.scores.numpy()
    table = {
        "list": {"probs": pa.array(rows.tolist(), pa.list_(pa.float32()))},
        "fixed": {"probs": pa.array(rows.tolist(), pa.list_(pa.float32(), 3))},
        "numbered": {f"p{at}": rows[:, at] for at in (2, 0, 1)},
        "named": {name: rows[:, at] for at, name in enumerate(("cat", "dog", "eel"))},
    }[columns]
    names = np.array(["young", "old"])[p.labels.numpy() % 2]
    pq.write_table(
        pa.table({**table, "labels": p.labels.numpy(), "group": names}), tmp_path / "p.parquet", row_group_size=4
    )
    named = {"probs": "cat,dog,eel"} if columns == "named" else {}
    got = Predictions.concat(list(open_batches(tmp_path / "p.parquet", Columns(**named), rows=7)))
    assert torch.equal(got.scores, p.scores)
    assert [got.group_names[code] for code in got.group.tolist()] == names.tolist()


def test_a_folder_or_a_glob_of_parts_is_one_data_set(tmp_path):
    p = make(30, group=True)
    for at in range(3):
        p[10 * at : 10 * at + 10].save(tmp_path / "parts" / f"part-{at}.parquet")
    (tmp_path / "parts" / "_metadata").write_text("x")
    for name in (
        tmp_path / "parts",
        str(tmp_path / "parts" / "part-*.parquet"),
        sorted((tmp_path / "parts").glob("p*")),
    ):
        batches = open_batches(name, rows=7)
        assert batches.n_rows == 30
        assert_same(Predictions.concat(list(batches)), p)
    assert_same(Predictions.load(tmp_path / "parts"), p)
    with pytest.raises(InputError, match="no file matches"):
        open_batches(str(tmp_path / "absent*.parquet"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"has no \.parquet files"):
        open_batches(tmp_path / "empty")


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_text_is_read_in_slices(tmp_path, separator):
    p = make(23, 3, "probs", dtype=torch.float64)
    path = write_csv(tmp_path / "p.csv", p, separator=separator)
    for probs in ("p0,p1,p2", "p"):
        slices = list(open_batches(path, Columns(probs=probs, labels="y"), rows=5))
        assert [len(part) for part in slices] == [5, 5, 5, 5, 3]
        assert_same(Predictions.concat(slices), p)
    assert_same(Predictions.load(path, labels="y"), p)


def test_numbered_columns_may_start_at_1_but_have_no_gap(tmp_path):
    path = tmp_path / "p.csv"
    path.write_text("p2,p3,p1,labels\n0.2,0.3,0.5,0\n")
    assert Predictions.load(path).scores.tolist() == [[0.5, 0.2, 0.3]]
    path.write_text("p0,p3,p1,labels\n0.2,0.3,0.5,0\n")
    _raises(path, "has nothing named logits, probs or log_probs")


def test_text_may_hold_quotes_names_and_triples(tmp_path):
    path = tmp_path / "llm.csv"
    path.write_text('answer,conf,right,"asked, by"\n1,0.5,1,"a, b"\n0,0.9,1.0,c\n\n2,1,2,"a, b"\n')
    p = Predictions.load(path, confidence="conf", predicted="answer", labels="right", group="asked, by")
    assert p.correct().tolist() == [True, False, True]
    assert p.group_names == ("a, b", "c")
    assert p.group.tolist() == [0, 1, 0]


@pytest.mark.parametrize("rows", [1, 2, 3, 100])
def test_a_quoted_text_may_hold_line_breaks_across_slices(tmp_path, rows):
    path = tmp_path / "asked.csv"
    path.write_text(
        'q,p0,p1,labels,group\n"a\nb, ""c""",0.5,0.5,0,7\nplain,0.1,0.9,1,x\n"d\n\ne",0.2,0.8,1,7\nlast,1,0,0,y'
    )
    slices = list(open_batches(path, rows=rows))
    assert all(len(part) <= rows for part in slices)
    p = Predictions.concat(slices)
    assert p.scores.tolist() == [[0.5, 0.5], [0.1, 0.9], [0.2, 0.8], [1, 0]]
    assert p.group_names == ("7", "x", "y")
    assert p.group.tolist() == [0, 1, 0, 2]


# What is wrong, and where.


def _raises(path, message, **columns):
    with pytest.raises(InputError, match=message) as caught:
        list(open_batches(path, Columns(**columns), rows=5))
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("keep", [0, 3, 0.3, 0.9, -1])
def test_a_truncated_file_is_named(tmp_path, suffix, keep):
    path = tmp_path / f"p{suffix}"
    make(500).save(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * keep) if isinstance(keep, float) else keep])
    _raises(path, "truncated|not a complete")


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_changed_byte_does_not_pass_for_data(tmp_path, save):
    path = tmp_path / "p.npz"
    p = make(5000)
    save(path, logits=p.scores.double().round(decimals=1), labels=p.labels)
    damaged = bytearray(path.read_bytes())
    damaged[10_000] ^= 1
    path.write_bytes(damaged)
    _raises(path, r"cannot be read after row \d+: the file is truncated or damaged")


def test_a_text_that_ends_within_a_row_is_named(tmp_path):
    path = write_csv(tmp_path / "p.csv", make(23, 3, "probs"))
    path.write_text(path.read_text()[:-30].rsplit(",", 1)[0])
    _raises(path, "row 22: . values for 4 columns: the file is truncated", labels="y")


@pytest.mark.parametrize("suffix", FORMATS)
def test_nan_is_named_with_its_row(tmp_path, suffix):
    p = make(23)
    p.scores[17, 2] = float("nan")
    p.save(tmp_path / f"p{suffix}")
    _raises(tmp_path / f"p{suffix}", "row 17: the logits contain NaN")


def test_nan_in_a_part_is_named_with_the_row_of_that_part(tmp_path):
    p = make(23)
    p.scores[17, 2] = float("nan")
    p[:10].save(tmp_path / "a.parquet")
    p[10:].save(tmp_path / "b.parquet")
    with pytest.raises(InputError, match=r"b\.parquet: row 7: the logits contain NaN"):
        list(open_batches(tmp_path, rows=3))


def test_mixed_class_counts_are_named(tmp_path):
    rows = [[0.5, 0.5]] * 8 + [[0.2, 0.3, 0.5]]
    pq.write_table(pa.table({"probs": rows, "labels": [0] * 9}), tmp_path / "p.parquet")
    with pytest.raises(InputError, match=r"p\.parquet: row 8: .*3 classes"):
        list(open_batches(tmp_path / "p.parquet", rows=5))
    with pytest.raises(InputError, match=r"p\.parquet: row 8: .*3 classes"):
        list(open_batches(tmp_path / "p.parquet", rows=8))
    (tmp_path / "parts").mkdir()
    make(5, 3).save(tmp_path / "parts" / "a.parquet")
    make(5, 4).save(tmp_path / "parts" / "b.parquet")
    with pytest.raises(InputError, match=r"b\.parquet: row 0: got logits of 4 classes, expected logits of 3 classes"):
        list(open_batches(tmp_path / "parts"))


def test_missing_columns_and_wrong_types_are_named(tmp_path):
    path = tmp_path / "p.parquet"
    pq.write_table(pa.table({"logits": [[0.1, 0.2]], "target": [1]}), path)
    _raises(path, "has no 'labels' for the labels; it has logits list<.*, target int64: pass the name of the labels")
    pq.write_table(pa.table({"logits": [[0.1, 0.2], None], "labels": [1, 0]}), path)
    _raises(path, "row 1: 'logits' is null")
    pq.write_table(pa.table({"logits": [[0.1, 0.2]], "labels": ["cat"]}), path)
    _raises(path, "'labels' has dtype text: expected integers")
    pq.write_table(pa.table({"logits": ["high"], "labels": [1]}), path)
    _raises(path, "'logits' has dtype .*: expected numbers")
    pq.write_table(pa.table({"logits": [[0.1, 0.2]] * 2, "labels": [1.0, 0.5]}), path)
    _raises(path, "row 1: 'labels' is 0.5: expected an integer")


def test_text_that_is_no_number_is_named(tmp_path):
    path = tmp_path / "p.csv"
    path.write_text("p0,p1,labels\n0.5,0.5,0\n0.4,,1\n")
    _raises(path, "row 1: 'p1' is empty")
    path.write_text("p0,p1,labels\n0.5,0.5,0\n0.4,high,1\n")
    _raises(path, "row 1: 'p1' is 'high', which is not a number")
    path.write_text("")
    _raises(path, "is empty: expected a header line")
    path.write_bytes(b"\xff\xfe\x00\x01")
    _raises(path, "is not a text file")


def test_arrays_that_do_not_fit_are_named(tmp_path):
    path = tmp_path / "p.npz"
    np.savez(path, logits=np.zeros((10, 30)), labels=np.zeros(30, int))
    _raises(
        path, r"'logits' has shape \(10, 30\), but there are 30 labels: axis 0 holds the samples, so save its transpose"
    )
    np.savez(path, logits=np.zeros((30, 10)), labels=np.eye(10, dtype=int).repeat(3, 0))
    _raises(path, "for one-hot labels, save the argmax")
    np.savez(path, logits=np.zeros((30, 10)), labels=np.array([None] * 30))
    _raises(path, "'labels' contains Python objects, which need pickle")
    np.savez(path, logits=np.zeros((30, 10), complex), labels=np.zeros(30, int))
    _raises(path, "'logits' has dtype complex128: expected numbers")


def test_an_unknown_ending_lists_the_known_ones(tmp_path):
    (tmp_path / "p.pkl").write_text("")
    with pytest.raises(InputError, match=r"ends in \.npz, \.safetensors, \.parquet, \.csv"):
        open_batches(tmp_path / "p.pkl")
    with pytest.raises(InputError, match=r"ends in \.npz, \.safetensors, \.parquet, \.csv"):
        make().save(tmp_path / "p.pkl")
    with pytest.raises(InputError, match="there is no file"):
        open_batches(tmp_path / "absent.npz")


@pytest.mark.parametrize("suffix", FORMATS)
def test_a_failed_write_leaves_nothing(tmp_path, suffix):
    def batches():
        yield make()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        save_batches(tmp_path / f"p{suffix}", batches())
    with pytest.raises(InputError, match="no predictions"):
        save_batches(tmp_path / f"p{suffix}", [])
    assert list(tmp_path.iterdir()) == []


def test_a_file_from_the_library_itself_is_plain_for_others(tmp_path):
    p = make(7, group=True)
    p.save(tmp_path / "p.npz")
    with np.load(tmp_path / "p.npz", allow_pickle=False) as arrays:
        assert sorted(arrays) == ["group", "labels", "logits", "meta"]
        assert json.loads(str(arrays["meta"])) == {"acls": "predictions", **p.meta}
    p.save(tmp_path / "p.parquet")
    assert re.match("fixed_size_list", str(pq.read_schema(tmp_path / "p.parquet").field("logits").type))


@pytest.mark.parametrize("suffix", TEXT)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_text_comes_back_as_the_same_numbers(tmp_path, suffix, kind, dtype):
    p = make(23, 4, kind, dtype=dtype, group=True)
    p.save(tmp_path / f"p{suffix}")
    back = Predictions.load(tmp_path / f"p{suffix}")
    assert back.kind == kind
    column = "scores" if p.scores is not None else "confidence"
    assert torch.equal(getattr(back, column).to(getattr(p, column)), getattr(p, column))
    assert torch.equal(back.labels, p.labels)
    assert [back.group_names[code] for code in back.group] == [str(code) for code in p.group.tolist()]


# Stated confidences.

STATED = "task,confidence,correct\na,0.9,1\nb,0.8,0\na,0.7,TRUE\n"


@pytest.mark.parametrize("suffix", [*FORMATS, *TEXT])
def test_stated_confidences_are_found_by_their_names_and_come_back(tmp_path, suffix):
    path = tmp_path / "llm.csv"
    path.write_text(STATED)
    p = Predictions.load(path, group="task")
    assert p.stated
    assert p.correct().tolist() == [True, False, True]
    assert p.confidence.tolist() == [0.9, 0.8, 0.7]
    p.save(tmp_path / f"again{suffix}")
    assert_same(Predictions.load(tmp_path / f"again{suffix}"), p)


@pytest.mark.parametrize(
    ("text", "columns", "message"),
    [
        (STATED, {"probs": "confidence", "labels": "correct"}, "pass --confidence confidence --correct correct"),
        ("conf,z\n0.9,1\n", {}, "pass --confidence conf --correct NAME"),
        ("conf,is_correct\n0.9,1\n", {}, "pass --confidence conf --correct is_correct"),
        ("confidence,correct\n0.9,2\n", {}, r"row 0: expected 1 \(correct\) or 0 \(wrong\), got 2"),
        ("confidence,correct\n90,1\n", {}, "confidence is 90, outside 0..1: divide percent by 100"),
        ("confidence,correct\n0.9,maybe\n", {}, "row 0: 'correct' is 'maybe'"),
        ("confidence,correct,confidence\n0.9,1,0.1\n", {}, "several columns named 'confidence'"),
        ("p0,p1,p0,labels\n0.9,0.1,0.5,1\n", {}, "several columns named 'p0'"),
        ("p0,p1,p2,p3,y0,y1,y2,y3\n1,0,0,0,1,1,0,0\n", {}, "y0 to y3: multilabel predictions.* are not supported"),
        ("stated,right\n0.9,1\n", {"confidence": "stated"}, "name of the right answers, as in --correct right"),
        ("my conf,it is right\n0.9,1\n", {}, "pass --confidence 'my conf' --correct NAME"),
        ("prob,label\n0.9,1\n0.1,0\n", {}, "as in --probs prob --label label or probs='prob'"),
        ("a cat,dog,y\n0.9,0.1,0\n", {}, "as in --probs 'a cat,dog' --label y or"),
        ("score,y\n-0.9,1\n", {}, "as in --logits NAME --label y or"),
        ("score,y\n0.9,1\n0.1,0\n", {"logits": "score", "labels": "y"}, "all lie in 0..1, .* pass --probs score"),
        ("p0,p1,the target\n1,0,0\n", {}, "--label 'the target'"),
        ("p0,p1,target\n1,0,0\n", {}, "--label target"),
        ("p0,p1,other\n1,0,0\n", {}, "--label other"),
        ("p0,p1,labels\n0.5,0.5,0_1\n", {}, "row 0: 'labels' is '0_1', which is not a number"),
        ("p0,p1,labels\n0.5,0.5,0\n0.5,0.5,1e30\n", {}, r"row 1: 'labels' is 1e\+30: expected an integer"),
        ("p0,p1,labels\n1.015,0,0\n", {}, "row 0: probs range from 0 to 1.015, outside 0..1"),
    ],
)
def test_what_a_table_holds_is_told_with_the_right_hint(tmp_path, text, columns, message):
    (tmp_path / "t.csv").write_text(text)
    _raises(tmp_path / "t.csv", message, **columns)


@pytest.mark.parametrize("roles", [("probs", "labels"), ("logits", "labels"), ("confidence", "correct")])
def test_columns_of_length_1_are_rows_of_a_file(tmp_path, roles):
    arrays = [np.array([0.9, -0.2 if roles[0] == "logits" else 0.2, 0.7]), np.array([1, 0, 0])]
    np.savez(tmp_path / "flat.npz", **dict(zip(roles, arrays, strict=True)))
    np.savez(tmp_path / "two.npz", **dict(zip(roles, (array[:, None] for array in arrays), strict=True)))
    found = Predictions.load(tmp_path / "two.npz")
    assert found.image is None
    assert_same(found, Predictions.load(tmp_path / "flat.npz"))


def test_one_column_of_parquet_is_hinted_as_what_it_holds(tmp_path):
    pq.write_table(pa.table({"score": [0.9, 0.2], "label": [1, 0]}), tmp_path / "t.parquet")
    _raises(tmp_path / "t.parquet", "as in --probs score --label label or")
    pq.write_table(pa.table({"score": [0.9, 2.2], "label": [1, 0]}), tmp_path / "t.parquet")
    _raises(tmp_path / "t.parquet", "as in --logits NAME --label label or")
    assert len(Predictions.load(tmp_path / "t.parquet", logits="score", labels="label")) == 2


def test_confidence_correct_and_labels_are_not_named_together():
    with pytest.raises(InputError, match="expected correct, or predicted and labels, got both"):
        Columns(confidence="c", correct="ok", labels="y")
