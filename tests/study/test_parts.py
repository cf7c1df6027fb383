"""Parts counted by several processes give what one pass over all of them gives."""

import json

import pytest
import torch

from acls.cli import main
from acls.errors import InputError
from acls.predictions import Predictions, open_batches
from acls.results import count
from acls.study.engine import Local
from acls.study.parts import count_parts
from tests.study.quick import HERE


@pytest.fixture
def parts(tmp_path):
    """Three parts of unequal length, whose groups come in another order in each."""
    random = torch.Generator().manual_seed(0)
    for number, (rows, names) in enumerate([(70, ("cat", "dog")), (31, ("dog", "eel")), (112, ("eel", "cat"))]):
        scores = torch.randn(rows, 4, generator=random) * 2
        labels = torch.randint(4, (rows,), generator=random)
        group = torch.randint(2, (rows,), generator=random)
        Predictions(scores, labels, "logits", group=group, group_names=names).save(tmp_path / f"{number}.parquet")
    return tmp_path


def assert_same(one, other):
    mine, theirs = one.result(), other.result()
    assert mine.values == pytest.approx(theirs.values, abs=1e-12)
    assert mine.p == pytest.approx(theirs.p, abs=1e-9)
    for name, interval in mine.intervals.items():
        assert interval == pytest.approx(theirs.intervals[name], abs=1e-9)


def test_parts_add_up_to_the_whole(parts):
    batches = open_batches(parts)
    whole, shared = count(batches, by_group=True), count_parts(batches, HERE, by_group=True)
    assert_same(whole, shared)
    assert whole.labels == shared.labels
    mine, theirs = whole.result().groups, shared.result().groups
    assert mine.keys() == theirs.keys() == {"cat", "dog", "eel"}
    for name, group in mine.items():
        assert group.values == pytest.approx(theirs[name].values, abs=1e-12)


def test_processes_count_as_this_one_does(parts):
    batches = open_batches(parts)
    assert_same(count(batches), count_parts(batches, Local(workers=2, threads=1)))


def test_labels_in_another_order_are_other_samples(parts):
    forth, back = (open_batches([parts / f"{number}.parquet" for number in order]) for order in ((0, 1, 2), (2, 1, 0)))
    assert count(forth).labels != count(back).labels


def test_parts_of_other_classes_are_refused(parts):
    scores = torch.randn(9, 7)
    Predictions(scores, torch.zeros(9, dtype=torch.int64), "logits").save(parts / "9.parquet")
    with pytest.raises(InputError, match="expected logits of 4 classes, got logits of 7"):
        count_parts(open_batches(parts), HERE)


def test_images_are_not_shared_out(parts):
    with pytest.raises(InputError, match="leave out --workers"):
        count_parts(open_batches(parts), HERE, by_image=True)


def test_evaluate_with_workers_prints_the_same(parts, capsys, monkeypatch):
    monkeypatch.setattr("acls.study.engine.make_engine", lambda *_, **__: HERE)
    printed = []
    for options in ([], ["--workers", "2"]):
        assert main(["evaluate", str(parts), "--json", "--bootstrap", "100", *options]) == 0
        printed.append(json.loads(capsys.readouterr().out))
    assert printed[0]["n"] == printed[1]["n"] == 213
    assert printed[0]["ece"] == pytest.approx(printed[1]["ece"], abs=1e-12)
