"""Arrays of every library give the same numbers, and nothing is guessed that could be wrong."""

import numpy as np
import pytest
import torch

import acls
from acls import Suite
from acls.arrays import as_tensor, scored
from acls.errors import InputError
from acls.predictions import Predictions
from acls.results import evaluate

RANDOM = np.random.default_rng(0)
LOGITS = RANDOM.normal(size=(300, 4)).astype("float32") * 3
LABELS = RANDOM.integers(0, 4, 300)
PROBS = np.exp(LOGITS) / np.exp(LOGITS).sum(1, keepdims=True)


def as_jax(array):
    return pytest.importorskip("jax.numpy").asarray(array)


def as_pandas(array):
    pandas = pytest.importorskip("pandas")
    return pandas.DataFrame(array) if array.ndim == 2 else pandas.Series(array)


def as_polars(array):
    polars = pytest.importorskip("polars")
    return polars.DataFrame(array) if array.ndim == 2 else polars.Series(array)


@pytest.mark.parametrize("made", [np.asarray, torch.as_tensor, as_pandas, as_polars, as_jax, lambda a: a.tolist()])
def test_any_librarys_arrays_give_the_same_numbers(made):
    expected = Suite.of(torch.as_tensor(LOGITS), torch.as_tensor(LABELS)).summary()
    assert Suite.of(made(LOGITS), made(LABELS)).summary() == pytest.approx(expected, abs=1e-6)


def test_probabilities_are_never_taken_for_logits():
    """Without a word they gave an ECE of a tenth of the true one."""
    with pytest.raises(InputError, match='kind="probs"'):
        Suite.of(PROBS, LABELS)
    assert Suite.of(PROBS, LABELS, kind="probs").summary()["ece"] == pytest.approx(
        Suite.of(LOGITS, LABELS).summary()["ece"], abs=1e-6
    )
    assert Suite.of(PROBS, LABELS, kind="logits").n == 300


def one_bad_row():
    bad = PROBS.copy()
    bad[299] = [0.5, 0.9, 0.9, 0.9]
    return bad


@pytest.mark.parametrize(
    ("scores", "kind"),
    [(PROBS.round(1), "probs"), (one_bad_row(), "probs"), (PROBS[:, :1], "probs"), (np.log(PROBS[:, 0]), "log_probs"),
     (PROBS.astype("float32") * np.float32(1.0001), "probs")],
    ids=["rounded", "one bad row", "one column", "logarithms", "just above 1"],
)  # fmt: skip
def test_scores_that_may_not_be_logits_need_a_kind_whatever_their_sums(scores, kind):
    """Rounded to one decimal, or with one bad row, they were taken for logits: an ECE of 0.16 for 0.52."""
    labels = LABELS if scores.shape[-1] == 4 else LABELS > 1
    with pytest.raises(InputError, match=f'pass kind="{kind}" or kind="logits"'):
        Suite.of(scores, labels)
    assert Suite.of(scores, labels, kind="logits").n == 300


def test_rows_of_log_probabilities_are_logits():
    expected = Suite.of(LOGITS, LABELS).summary()
    assert Suite.of(np.log(PROBS), LABELS).summary() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("dtype", ["int64", "int32", "uint8"])
def test_triples_are_arrays_of_any_library(dtype):
    confidence, predicted = PROBS.max(1), PROBS.argmax(1)
    expected = Suite.of_triples(*map(torch.as_tensor, (confidence, predicted, LABELS))).summary()
    given = (confidence.tolist(), predicted.astype(dtype), LABELS.astype(dtype))
    assert Suite.of_triples(*given, sample_weight=np.ones(300, int)).summary() == pytest.approx(expected, abs=1e-6)
    two = Predictions(PROBS, LABELS.astype(dtype), "probs", group=np.zeros(300, dtype))
    assert evaluate(two)["ece"] == pytest.approx(expected["ece"], abs=1e-6)


@pytest.mark.parametrize(
    "call",
    [
        lambda: acls.CE()(LOGITS, LABELS),
        lambda: acls.effective_label(acls.CE(), LOGITS, LABELS),
        lambda: acls.effective_label(torch.nn.CrossEntropyLoss(), LOGITS, LABELS),
        lambda: acls.Temperature().fit(LOGITS, LABELS),
        lambda: acls.Temperature().fit(torch.as_tensor(LOGITS), torch.as_tensor(LABELS))(LOGITS),
    ],
)
def test_where_gradients_or_devices_matter_a_tensor_is_asked_for(call):
    with pytest.raises(InputError, match=r"expected logits as a tensor, got ndarray: pass torch.as_tensor\(logits\)"):
        call()
    with pytest.raises(InputError, match=r"expected target as a tensor, got ndarray: pass torch.as_tensor\(target\)"):
        acls.CE()(torch.as_tensor(LOGITS), LABELS)


@pytest.mark.parametrize("shape", [(300,), (300, 1)])
@pytest.mark.parametrize("dtype", ["int64", "float32", "bool", "uint8"])
def test_binary_scores_are_those_of_class_1(shape, dtype):
    labels = (LABELS > 1).astype(dtype)
    p = 1 / (1 + np.exp(-LOGITS[:, 0]))
    two = Suite.of(np.stack([1 - p, p], 1), (LABELS > 1).astype("int64"), kind="probs").summary()
    assert Suite.of(p.reshape(shape), labels, kind="probs").summary() == pytest.approx(two, abs=1e-6)
    assert Suite.of(LOGITS[:, 0].reshape(shape), labels.reshape(shape)).summary() == pytest.approx(two, abs=1e-6)
    with pytest.raises(InputError, match='kind="probs"'):
        Suite.of(p, labels)


@pytest.mark.parametrize(
    ("scores", "labels", "message"),
    [
        (LOGITS, np.eye(4)[LABELS], "multilabel"),
        (LOGITS, np.eye(4)[LABELS][:, :3], "multilabel"),
        (PROBS[:, 0], np.eye(4)[LABELS], r"got shape \(300, 4\) for scores of shape \(300,\).*multilabel"),
        (LOGITS[:, 0], LABELS, "expected 0 or 1 with one score per row, got [23]"),
        (LOGITS[:, 0], (LABELS > 1) + 1, "subtract 1 from labels 1 and 2"),
        (LOGITS, LABELS > 1, "got true and false for 4 classes: .* confidence=, .* correct= to acls.evaluate"),
        (PROBS * 100, LABELS, 'may be percent: divide them by 100 and pass kind="probs"'),
        ((PROBS * 100).round(), LABELS, 'may be percent: divide them by 100 and pass kind="probs"'),
        (PROBS[:, 0] * 100, LABELS > 1, 'may be percent: divide them by 100 and pass kind="probs"'),
        (np.ma.masked_array(LOGITS, LOGITS < 0), LABELS, "scores: expected no masked values: drop those rows"),
        (LOGITS, np.ma.masked_array(LABELS, LABELS > 2), "labels: expected no masked values: drop those rows"),
        (LOGITS, LABELS + 0.5, "expected class ids, got"),
        (LOGITS, np.array(["cat"] * 300), "labels: expected numbers, got ndarray of <U3: pass class ids"),
        (np.array([["cat"]]), LABELS, "scores: expected numbers, got ndarray of <U3: pass an array of numbers"),
    ],
)
def test_what_cannot_be_is_named(scores, labels, message):
    with pytest.raises(InputError, match=message):
        scored(scores, labels)


def test_a_masked_array_without_masked_values_is_an_array():
    assert torch.equal(as_tensor(np.ma.masked_array(LOGITS)), torch.as_tensor(LOGITS))


def test_a_lazy_frame_is_to_be_collected():
    polars = pytest.importorskip("polars")
    with pytest.raises(InputError, match=r"got LazyFrame of object: pass the result of its .collect\(\)"):
        scored(polars.DataFrame(LOGITS).lazy(), LABELS)


def test_a_tensor_is_not_copied_and_a_read_only_array_is():
    tensor = torch.zeros(3)
    assert as_tensor(tensor).data_ptr() == tensor.data_ptr()
    array = np.zeros(3)
    array.flags.writeable = False
    as_tensor(array)[0] = 1.0
    assert array[0] == 0
