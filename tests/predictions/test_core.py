"""Predictions in memory: what they are, and what is refused."""

import pytest
import torch
from made import assert_same, make

from acls.errors import InputError
from acls.predictions import KINDS, Predictions


def test_all_kinds_of_one_model_say_the_same():
    logits, probs, log_probs, triples = (make(kind=kind, dtype=torch.float64) for kind in KINDS)
    for other in (probs, log_probs):
        torch.testing.assert_close(other.log_probs(), logits.log_probs())
    for other in (probs, log_probs, triples):
        torch.testing.assert_close(other.top(), logits.top(), check_dtype=False)
        assert torch.equal(other.correct(), logits.correct())


def test_half_precision_is_widened_before_the_softmax():
    p = make(dtype=torch.float16)
    assert p.log_probs().dtype == torch.float32
    torch.testing.assert_close(p.log_probs(), p.scores.float().log_softmax(1))
    torch.testing.assert_close(p.top()[0], p.scores.float().softmax(1).amax(1))


def test_slices_put_together_are_the_whole():
    p = make(group=True, image=True)
    assert_same(Predictions.concat([p[:7], p[7:8], p[8:]]), p)
    assert_same(p[torch.arange(len(p)) < 7], p[:7])


def test_dense_maps_become_a_row_a_labelled_pixel():
    scores, labels = torch.randn(2, 3, 4, 5), torch.randint(0, 3, (2, 4, 5))
    labels[1, 2, 3] = 255
    p = Predictions.dense(scores, labels, "logits", ignore_index=255, first_image=10)
    assert len(p) == 39
    assert p.image.unique(return_counts=True)[1].tolist() == [20, 19]
    assert int(p.image.min()) == 10
    assert torch.equal(p.scores[6], scores[0, :, 1, 1])
    assert int(p.labels[6]) == int(labels[0, 1, 1])


def test_a_kind_must_be_said():
    with pytest.raises(TypeError, match="kind"):
        Predictions(torch.zeros(2, 2), torch.zeros(2).long())
    with pytest.raises(InputError, match="did you mean 'logits'"):
        Predictions(torch.zeros(2, 2), torch.zeros(2).long(), kind="logit")


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (lambda: Predictions(torch.zeros(3, 2, 4), torch.zeros(3).long(), "logits"), "Predictions.dense"),
        (lambda: Predictions(torch.zeros(5, 3), torch.zeros(3).long(), "logits"), r"so pass scores.T"),
        (lambda: Predictions(torch.zeros(3, 5).long(), torch.zeros(3).long(), "logits"), "floating point"),
        (lambda: Predictions(torch.zeros(3, 1), torch.zeros(3).long(), "logits"), "at least 2 classes"),
        (
            lambda: Predictions(torch.zeros(3, 5), torch.zeros(3), "logits"),
            "expected labels of dtype torch.int64",
        ),
        (lambda: Predictions(torch.zeros(3, 5), torch.zeros(3, 5).long(), "logits"), "expected labels of shape"),
        (lambda: Predictions(torch.zeros(3, 5), torch.zeros(3).long(), "triples"), "confidence=, predicted="),
        (lambda: Predictions(None, torch.zeros(3).long(), "logits"), "expected scores"),
        (lambda: make(kind="triples").log_probs(), "expected rows of K scores"),
        (lambda: Predictions.concat([make(), make(k=4)]), "logits of 5 classes and logits of 4"),
        (lambda: Predictions.concat([]), "no predictions"),
    ],
)
def test_what_cannot_be_is_refused_with_the_way_out(made, says):
    with pytest.raises(InputError, match=says):
        made()


@pytest.mark.parametrize(
    ("kind", "row", "says"),
    [
        ("logits", [0.0, float("nan")], "row 105: the logits contain NaN"),
        ("logits", [0.0, float("inf")], "row 105: the largest of the logits is inf"),
        ("logits", [float("-inf"), float("-inf")], "row 105: the largest of the logits is -inf"),
        ("probs", [0.5, float("nan")], "row 105: the probs contain NaN"),
        ("probs", [3.0, -2.0], "row 105: probs range from -2 to 3"),
        ("probs", [0.5, 0.6], r"row 105: probs add up to 1.1, not 1"),
        ("log_probs", [0.0, 0.0], "row 105: log_probs belong to probabilities that add up to 2"),
    ],
)
def test_the_first_bad_row_is_named(kind, row, says):
    p = make(k=2, kind=kind)
    p.check()
    p.scores[5] = torch.tensor(row)
    p.scores[9] = torch.tensor(row)
    with pytest.raises(InputError, match=f"^file.npz: {says}"):
        p.check(where="file.npz", first_row=100)


@pytest.mark.parametrize("kind", KINDS)
def test_labels_outside_the_classes_are_named_unless_they_are_to_be_ignored(kind):
    p = make(kind=kind)
    p.labels[3] = -100
    p.check()
    assert len(p.labelled()) == len(p) - 1
    p.labels[4] = -7
    with pytest.raises(InputError, match=r"row 4: the label is -7, .*--ignore-index -7"):
        p.check()
    if kind != "triples":
        p.labels[4] = 5
        with pytest.raises(InputError, match=r"row 4: the label is 5, outside 0..4: --ignore-index 5"):
            p.check()


def test_labels_to_be_ignored_are_left_out_when_a_file_is_loaded(tmp_path):
    p = make()
    p.labels[3] = 255
    for name in ("p.npz", "p.parquet"):
        p.save(tmp_path / name)
        with pytest.raises(InputError, match="--ignore-index 255"):
            Predictions.load(tmp_path / name)
        assert_same(Predictions.load(tmp_path / name, ignore_index=255), p.labelled(255))


def test_a_class_that_is_masked_out_is_no_fault():
    p = make()
    p.scores[:, 2] = float("-inf")
    p.labels.clamp_(max=1)
    p.check()
    assert p.log_probs()[:, 2].isinf().all()


def test_percent_is_told_from_a_fraction():
    p = make(kind="triples")
    p.confidence[2] = 87.0
    with pytest.raises(InputError, match=r"row 2: confidence is 87, outside 0..1: divide percent by 100"):
        p.check()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_row_of_probabilities_has_the_same_logits_whatever_rows_stand_beside_it(dtype):
    rows = [[1, 0, 0], [0.999, 0.001, 0], [0.5, 0.5, 0], [1 - 1e-12, 1e-12, 0], [1, 1e-38, 0]]
    p = Predictions(torch.tensor(rows, dtype=dtype), torch.zeros(5, dtype=torch.int64), kind="probs")
    together = p.logits()
    assert torch.equal(together, torch.cat([p[row : row + 1].logits() for row in range(5)]))
    assert together.isfinite().all()
    assert together[:3, 2].exp().tolist() == pytest.approx([1e-7] * 3)
    assert (together[:, 2] <= together[:, 1]).all()  # a zero is never taken for more than what was not one
    positive = p.scores > 0
    assert torch.equal(together[positive], p.scores[positive].log())
    assert Predictions(p.scores, p.labels, kind="log_probs").logits() is p.scores


@pytest.mark.parametrize("kind", ["logits", "triples"])
def test_binary_labels_of_minus_one_and_one_are_to_be_converted(kind):
    """The way out was to ignore -1, half of the rows."""
    labels = torch.tensor([1, -1, 1])
    if kind == "logits":
        p = Predictions(torch.randn(3, 2), labels, "logits")
    else:
        p = Predictions(None, labels, "triples", confidence=torch.full((3,), 0.5), predicted=torch.tensor([1, 0, 1]))
    with pytest.raises(InputError, match=r"the label is -1.*labels of two classes are 0 and 1; .*\(y \+ 1\) // 2"):
        p.check()
    with pytest.raises(InputError, match="--ignore-index -1"):
        Predictions(torch.randn(3, 2), torch.tensor([1, -1, 0]), "logits").check()
