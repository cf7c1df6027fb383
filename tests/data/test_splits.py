"""Splits: a partition, the same for the same seed, classes in proportion."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from acls.data.splits import hold_out, per_class, subset
from acls.errors import InputError

LABELS = torch.arange(1000) % 7


@given(
    st.lists(st.integers(0, 5), min_size=2, max_size=80),
    st.floats(0, 0.9),
    st.sampled_from(["stratified", "shuffled"]),
    st.integers(0, 1000),
)
@settings(deadline=None, max_examples=50)
def test_kept_and_held_out_are_a_partition(labels, share, rule, seed):
    kept, held = hold_out(torch.tensor(labels), share, rule=rule, seed=seed)
    assert sorted([*kept.tolist(), *held.tolist()]) == list(range(len(labels)))
    again = hold_out(torch.tensor(labels), share, rule=rule, seed=seed)
    assert torch.equal(kept, again[0])


def test_a_stratified_split_takes_the_same_share_of_every_class():
    _, held = hold_out(LABELS, 0.1, seed=3)
    counts = torch.bincount(LABELS[held])
    assert int(counts.max() - counts.min()) <= 1


def test_no_class_loses_its_last_sample():
    kept, held = hold_out(torch.tensor([0] * 50 + [1]), 0.5)
    assert 50 in kept.tolist()
    assert 50 not in held.tolist()


def test_the_shuffled_split_is_cifars_reference_rule():
    """np.random.seed(1), shuffle all numbers, the first tenth validates."""
    _, held = hold_out(torch.zeros(5000), 0.1, rule="shuffled", seed=1)
    random = np.random.RandomState(1)
    numbers = np.arange(5000)
    random.shuffle(numbers)
    assert held.tolist() == sorted(numbers[:500].tolist())


def test_another_seed_is_another_split():
    assert not torch.equal(hold_out(LABELS, 0.1, seed=1)[1], hold_out(LABELS, 0.1, seed=2)[1])


def test_a_subset_keeps_the_classes_in_proportion():
    labels = torch.tensor([0] * 600 + [1] * 300 + [2] * 100)
    chosen = subset(labels, torch.arange(1000), 100)
    assert torch.bincount(labels[chosen]).tolist() == pytest.approx([60, 30, 10], abs=1)
    assert len(chosen) == 100


def test_ten_of_each_class_validate_and_the_rest_tests():
    rest, held = per_class(LABELS.repeat(1), 10)
    assert torch.bincount(LABELS[held]).tolist() == [10] * 7
    assert len(rest) == 1000 - 70


def test_a_share_of_one_is_refused():
    with pytest.raises(InputError, match=r"data\.val: expected a held-out share in \[0, 1\), got 1\.0"):
        hold_out(LABELS, 1.0)
