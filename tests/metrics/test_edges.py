"""Where conventions bite: bin edges, saturation, ties, one sample, none."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from acls.errors import InputError
from acls.metrics import Bins, Blocks, Confidences, Suite
from acls.metrics import confidences as kept
from acls.metrics.batch import Batch
from acls.metrics.bins import bin_of
from acls.metrics.cells import Cells, cell_edges, cell_of
from acls.metrics.ordered import adaptive_ece, aurc, auroc, ks_error
from tests.metrics.made import as_triples, confidences, logits_and_labels
from tests.reference import metrics as oracle


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bins", [1, 2, 3, 7, 10, 15, 25, 100, 999])
def test_a_confidence_on_an_edge_is_in_the_bin_below(bins, dtype):
    edges = torch.linspace(0, 1, bins + 1, dtype=dtype)
    assert bin_of(edges[1:], bins).tolist() == list(range(bins))
    just_above = torch.nextafter(edges[:-1], torch.ones(1, dtype=dtype))
    assert bin_of(just_above, bins).tolist() == list(range(bins))
    assert bin_of(edges[:1], bins).tolist() == [0]


@settings(deadline=None)
@given(st.lists(st.floats(0, 1, width=32), min_size=1, max_size=50), st.integers(1, 60))
def test_bins_are_those_of_a_search(values, bins):
    confidence = torch.tensor(values)
    edges = torch.linspace(0, 1, bins + 1)
    searched = torch.bucketize(confidence, edges[1:-1].contiguous())
    assert bin_of(confidence, bins).tolist() == searched.tolist()


def test_saturated_confidence_falls_in_the_last_bin():
    bins = Bins.of_triples(*as_triples(torch.tensor([1.0, 1.0, 0.95]), torch.tensor([1, 0, 1])), bins=10)
    assert bins.samples.tolist() == [0] * 9 + [3]
    assert bins.ece == pytest.approx(abs(2.95 - 2) / 3)


def test_empty_bins_count_for_nothing_and_are_left_out_of_the_diagram():
    bins = Bins.of_triples(*as_triples(torch.tensor([0.05, 0.95]), torch.tensor([0, 1])), bins=10)
    assert bins.mce == pytest.approx(0.05)
    rows = bins.reliability()
    assert rows.count.tolist() == [1] + [0] * 8 + [1]
    assert torch.isnan(rows.accuracy[1:9]).all()


def test_one_sample():
    summary = Suite.of(torch.tensor([[2.0, 0.0, 0.0]]), torch.tensor([0]), classwise=True, ace=True).summary()
    gap = 1 - float(torch.tensor([2.0, 0, 0]).softmax(0)[0])
    for name in ("ece", "mce", "rmsce", "aece", "ks", "underconfidence"):
        assert summary[name] == pytest.approx(gap), name
    assert summary["accuracy"] == 1
    assert summary["rmsce_debiased"] == 0
    assert math.isnan(summary["auroc"])


def test_everyone_tied_at_one():
    right = torch.tensor([1] * 70 + [0] * 30)
    summary = Suite.of_triples(*as_triples(torch.ones(100), right)).summary()
    for name in ("ece", "aece", "ks", "overconfidence", "mce"):
        assert summary[name] == pytest.approx(0.3), name
    assert summary["auroc"] == pytest.approx(0.5)
    assert summary["aurc"] == pytest.approx(0.3)


def test_no_samples():
    summary = Suite.of(torch.empty(0, 3), torch.empty(0, dtype=torch.long)).summary()
    assert summary["n"] == 0
    assert math.isnan(summary["ece"])


def test_extreme_logits_give_finite_scores():
    logits = torch.tensor([[1e4, -1e4, 0], [-1e4, 1e4, 0], [3e38, -3e38, 0]])
    summary = Suite.of(logits, torch.tensor([0, 1, 0])).summary()
    assert summary["nll"] == 0
    assert summary["ece"] == 0


def test_forbidden_classes_may_be_minus_infinity():
    logits = torch.tensor([[1.0, -torch.inf, 0.0]])
    summary = Suite.of(logits, torch.tensor([0])).summary()
    assert summary["nll"] == pytest.approx(math.log(1 + math.exp(-1)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_widened_first(dtype):
    logits, labels = logits_and_labels(200, 5, dtype=dtype)
    assert Suite.of(logits, labels).summary() == Suite.of(logits.float(), labels).summary()


def test_what_cannot_be_counted_is_told():
    logits, labels = logits_and_labels(20, 3)
    with pytest.raises(InputError, match=r"row 0: probs range from .*, outside 0\.\.1: .* pass logits"):
        Suite.of(logits.abs() + 2, labels, kind="probs")
    with pytest.raises(InputError, match="did you mean 'logits'"):
        Suite.of(logits, labels, kind="logit")
    with pytest.raises(InputError, match="soft labels"):
        Suite.of(logits, logits.softmax(1))
    with pytest.raises(InputError, match=r"classes are 0\.\.2: pass ignore_index=7"):
        Suite.of(logits, labels + 7)
    with pytest.raises(InputError, match="shape"):
        Suite.of_triples(torch.rand(3), torch.zeros(4).long(), torch.zeros(3).long())
    with pytest.raises(InputError, match=r"expected confidences within 0\.\.1, got 1\.5 as the largest of row 1"):
        Suite.of_triples(torch.tensor([0.5, 1.5]), torch.zeros(2).long(), torch.zeros(2).long())
    with pytest.raises(InputError, match="row 1 contains NaN"):
        Suite.of_triples(torch.tensor([0.5, torch.nan]), torch.zeros(2).long(), torch.zeros(2).long())
    with pytest.raises(InputError, match="expected 1 to 10000 bins, got 0"):
        Bins.of(logits, labels, bins=0)
    with pytest.raises(InputError, match=r"n_classes is 3 in one, 4 in the other"):
        Suite.of(logits, labels) + Suite.of(*logits_and_labels(5, 4))
    with pytest.raises(InputError, match="classwise is present in one, absent in the other"):
        Suite.of(logits, labels, classwise=True) + Suite.of(logits, labels)
    with pytest.raises(InputError, match=r"one value per sample, shape \(20,\), got \(7,\)"):
        Blocks.of(logits, labels, unit=torch.arange(7))


def test_a_row_is_named_by_its_place_before_ignoring():
    logits, labels = logits_and_labels(20, 3)
    labels[:5] = -100
    logits[2] = torch.nan  # ignored, so nobody minds
    Suite.of(logits, labels)
    logits[9, 0] = torch.nan
    with pytest.raises(InputError, match="row 9 contains NaN"):
        Suite.of(logits, labels)


def test_broken_files_are_told(tmp_path):
    logits, labels = logits_and_labels(20, 3)
    Suite.of(logits, labels).save(tmp_path / "suite.safetensors")
    whole = (tmp_path / "suite.safetensors").read_bytes()
    (tmp_path / "half.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match="is not a complete safetensors file"):
        Suite.load(tmp_path / "half.safetensors")
    with pytest.raises(InputError, match="there is no file"):
        Suite.load(tmp_path / "absent.safetensors")


def test_cells_are_in_order_and_within_their_edges():
    random = np.random.default_rng(0)
    values = np.concatenate(
        [random.random(2000), 1 - random.random(2000) ** 20, random.random(2000) ** 20, [0, 0.5, 1]]
    )
    for cells in (2, 16, 1 << 17):
        index = cell_of(torch.tensor(values), cells)
        lower, upper = cell_edges(cells)
        assert ((lower[index] - 1e-12 <= torch.tensor(values)) & (torch.tensor(values) <= upper[index] + 1e-12)).all()
        assert (index[torch.tensor(values).argsort()].diff() >= 0).all()
    assert cell_of(torch.tensor([1.0, 1 - 2**-53], dtype=torch.float64), 1 << 17).unique().numel() == 2


@pytest.mark.parametrize("cells", [16, 64, 1024])
@pytest.mark.parametrize("ties", [False, True])
@settings(deadline=None, max_examples=50)
@given(seed=st.integers(0, 10_000), n=st.integers(1, 400))
def test_the_exact_value_is_within_the_bound(cells, ties, seed, n):
    """The proof, tried: order metrics from coarse histograms never leave their bound."""
    confidence, right = confidences(n, seed=seed, ties=ties)
    exact = Confidences.of_triples(*as_triples(confidence, right))
    signed = torch.where(torch.tensor(right) > 0, torch.tensor(confidence), -torch.tensor(confidence))[:, None]
    coarse = Confidences.of_histogram(kept._histogram(signed, 1, cells))
    lower, upper = cell_edges(cells)
    table = coarse.table
    assert table is not None
    rough = Cells(*table, lower, upper)
    fine = exact.cells()
    measures = {
        "aece": lambda c: adaptive_ece(c, 15),
        "ks": ks_error,
        "aurc": aurc,
    }
    if 0 < right.sum() < n:
        measures["auroc"] = auroc
    for name, measure in measures.items():
        value, bound = (float(part) for part in measure(rough))
        assert abs(value - float(measure(fine)[0])) <= bound + 1e-12, name


def test_smooth_ece_from_the_histogram_is_within_its_bound():
    confidence, right = confidences(5000, seed=1)
    exact = Confidences.of_triples(*as_triples(confidence, right))
    rough = Confidences.of_histogram(exact.histogram())
    one, other = exact.summary(), rough.summary()
    assert other["smece_bound"] < 1e-4
    for name in ("aece", "ks", "smece", "auroc", "aurc"):
        assert abs(one[name] - other[name]) <= other[f"{name}_bound"] + 1e-12, name


def test_state_is_bounded_and_the_result_says_how_exact_it_is(monkeypatch):
    monkeypatch.setattr(kept, "EXACT", 1000)
    total = None
    for seed in range(40):
        confidence, right = confidences(500, seed=seed)
        suite = Suite.of_triples(*as_triples(confidence, right))
        total = suite if total is None else total + suite
        held = sum(part.nbytes for part in total.confidences.parts)
        held += 0 if total.confidences.table is None else total.confidences.table.nbytes
        assert held <= 8 * 1000 + 24 * kept.CELLS
    summary = total.summary()
    assert 0 < summary["aece_bound"] < 1e-3
    assert 24 * kept.CELLS + 8 * (1 << 20) < 16e6, "at most 16 MB for any number of samples"


def test_batches_slice_like_their_rows():
    logits, labels = logits_and_labels(30, 4)
    batch = Batch.of(logits, labels, kind="logits")
    mask = labels != 0
    sliced = Suite.count(batch[mask]).summary()
    assert sliced == pytest.approx(Suite.of(logits[mask], labels[mask]).summary(), abs=1e-12)


def test_debiased_error_is_nearer_the_truth_than_the_plain_one():
    """With labels drawn from the confidences the true error is 0."""
    plain, debiased = [], []
    for seed in range(50):
        confidence, _ = confidences(300, seed=seed)
        right = (np.random.default_rng(1000 + seed).random(300) < confidence).astype(float)
        bins = Bins.of_triples(*as_triples(confidence, right))
        plain.append(bins.rmsce**2)
        debiased.append(oracle.rmsce_debiased(confidence, right, 15) ** 2)
        assert bins.rmsce_debiased == pytest.approx(debiased[-1] ** 0.5, abs=1e-9)
    assert np.mean(debiased) < np.mean(plain) / 2


def test_probabilities_just_outside_by_rounding_are_taken_to_the_end():
    probs = torch.tensor([[1.0000001, -1e-8, 0.0], [0.2, 0.5, 0.3]])
    given = probs.clone()
    summary = Suite.of(probs, torch.tensor([0, 1]), kind="probs", classwise=True, ace=True).summary()
    assert torch.equal(probs, given), "the user's tensor is left alone"
    clean = Suite.of(probs.clamp(0, 1), torch.tensor([0, 1]), kind="probs", classwise=True, ace=True).summary()
    assert summary == pytest.approx(clean, abs=1e-6, nan_ok=True)
    confidence = torch.tensor([1.0000001, 0.5])
    Suite.of_triples(confidence, torch.zeros(2).long(), torch.zeros(2).long())
    assert float(confidence[0]) > 1, "the user's tensor is left alone"
