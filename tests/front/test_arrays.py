"""Arrays of every library give the same numbers, and nothing is guessed that could be wrong."""

import numpy as np
import pytest
import torch

from acls import Suite
from acls.arrays import as_tensor, scored
from acls.errors import InputError

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
        (LOGITS[:, 0], LABELS, "expected 0 and 1 with one score per row, got [23]"),
        (LOGITS, LABELS + 0.5, "expected class ids, got"),
        (LOGITS, np.array(["cat"] * 300), "labels: expected numbers, got ndarray of <U3"),
    ],
)
def test_what_cannot_be_is_named(scores, labels, message):
    with pytest.raises(InputError, match=message):
        scored(scores, labels)


def test_a_tensor_is_not_copied_and_a_read_only_array_is():
    tensor = torch.zeros(3)
    assert as_tensor(tensor).data_ptr() == tensor.data_ptr()
    array = np.zeros(3)
    array.flags.writeable = False
    as_tensor(array)[0] = 1.0
    assert array[0] == 0
