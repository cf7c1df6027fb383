"""What holds for every tally: merging, order, batches, processes, files. A new one is tested without a line here."""

import math
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from acls.errors import InputError
from acls.metrics import TALLIES, confidences, resampling
from tests.metrics.made import logits_and_labels
from tests.processes import together

ALL = sorted(TALLIES)
EVERYTHING = {"classwise": True, "ace": True, "confusion": True, "bins": 10}
WITH_OPTIONS = [*((name, {}) for name in ALL), ("Suite", EVERYTHING)]
IDS = [name + ("+" if options else "") for name, options in WITH_OPTIONS]


def counted(name, logits, labels, **options):
    return TALLIES[name].of(logits, labels, kind="logits", **options)


def same(one, other, tolerance=1e-12):
    assert one.keys() == other.keys()
    for name, value in one.items():
        if name.endswith("_bound"):
            continue  # depends on how samples share cells, not on what is measured
        assert other[name] == pytest.approx(value, rel=tolerance, abs=1e-15, nan_ok=True), name


@pytest.fixture(autouse=True, scope="module")
def few_blocks():
    """The same code on fewer blocks is faster."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resampling, "BLOCKS", 32)
        yield


@pytest.fixture(params=["exact", "histogram"])
def memory(request, monkeypatch):
    """Small sets are kept one by one; with no room for that, they must merge as large ones do."""
    if request.param == "histogram":
        monkeypatch.setattr(confidences, "EXACT", 8)
    return request.param


@pytest.mark.parametrize(("name", "options"), WITH_OPTIONS, ids=IDS)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_merging_and_permuting_change_no_count_and_no_metric_by_more_than_rounding(name, options, data):
    n = data.draw(st.integers(2, 40), label="n")
    cut = data.draw(st.integers(0, n), label="cut")
    k = data.draw(st.sampled_from([2, 5, 40]), label="classes")
    dtype = data.draw(st.sampled_from([torch.float32, torch.float64]), label="dtype")
    logits, labels = logits_and_labels(n, k, seed=data.draw(st.integers(0, 99)), dtype=dtype)
    whole = counted(name, logits, labels, **options)
    order = torch.tensor(data.draw(st.permutations(range(n)), label="order"))
    logits, labels = logits[order], labels[order]
    parts = counted(name, logits[:cut], labels[:cut], **options) + counted(name, logits[cut:], labels[cut:], **options)
    same(whole.summary(), parts.summary())
    for field, total in whole.tensors().items():
        if not total.is_floating_point():
            assert torch.equal(total, parts.tensors()[field]), field  # a count is the same to the last one


@pytest.mark.parametrize(("name", "options"), WITH_OPTIONS, ids=IDS)
def test_order_and_batch_size_change_nothing(name, options, memory):
    logits, labels = logits_and_labels(101, 5)
    whole = counted(name, logits, labels, **options).summary()
    order = torch.randperm(101, generator=torch.Generator().manual_seed(1))
    for size in (1, 7, 100):
        parts = zip(logits[order].split(size), labels[order].split(size), strict=True)
        same(whole, sum(counted(name, z, y, **options) for z, y in parts).summary())


@pytest.mark.parametrize(("name", "options"), WITH_OPTIONS, ids=IDS)
def test_whole_weights_equal_repeated_rows_in_every_metric(name, options, memory):
    if name == "Redraws":
        pytest.skip("draws have no weights")
    logits, labels = logits_and_labels(101, 5)
    logits[20:40] = logits[0]  # ties
    weight = torch.randint(0, 4, (101,), generator=torch.Generator().manual_seed(1))
    repeated = counted(name, logits.repeat_interleave(weight, 0), labels.repeat_interleave(weight), **options)
    weighted = counted(name, logits, labels, sample_weight=weight, **options)
    same(repeated.summary(), weighted.summary(), 1e-9)
    parts = [
        counted(name, logits[rows], labels[rows], sample_weight=weight[rows].double(), **options)
        for rows in (slice(0, 30), slice(30, 101))
    ]
    same(weighted.summary(), sum(parts).summary())


@pytest.mark.parametrize(("name", "options"), WITH_OPTIONS, ids=IDS)
def test_only_the_ratios_of_fractional_weights_matter(name, options, memory):
    logits, labels = logits_and_labels(101, 5)
    weight = torch.rand(101, generator=torch.Generator().manual_seed(1)).double()
    one = counted(name, logits, labels, sample_weight=weight, **options).summary()
    other = counted(name, logits, labels, sample_weight=weight / 1000, **options).summary()
    equal = counted(name, logits, labels, sample_weight=torch.full((101,), 0.01), **options).summary()
    plain = counted(name, logits, labels, **options).summary()
    for summary in (one, other, equal, plain):
        summary.pop("n", None)
    same(one, other, 1e-6)
    if name != "Blocks":  # whose cells are coarse, so that bins of equal mass are cut elsewhere
        same({metric: plain[metric] for metric in equal}, equal, 1e-6)


def test_weights_are_checked():
    logits, labels = logits_and_labels(5, 3)
    for wrong, told in ((-1.0, "0 or more, got -1"), (float("nan"), "got nan"), (float("inf"), "got inf")):
        with pytest.raises(InputError, match=f"sample_weight.*{told}"):
            counted("Suite", logits, labels, sample_weight=[1, 1, 1, 1, wrong])
    with pytest.raises(InputError, match=r"one value per sample, shape \(5,\), got \(4,\)"):
        counted("Suite", logits, labels, sample_weight=[1, 1, 1, 1])
    with pytest.raises(InputError, match="weighted is True in one, False in the other"):
        counted("Suite", logits, labels, sample_weight=torch.ones(5)) + counted("Suite", logits, labels)


@pytest.mark.parametrize("name", ALL)
def test_accumulators_are_wide(name, memory):
    logits, labels = logits_and_labels(50, 3, dtype=torch.float32)
    tally = counted(name, logits, labels)
    kept_one_by_one = {tensor for tensor in tally.tensors() if tensor.endswith("parts")}
    for field, tensor in tally.tensors().items():
        assert field in kept_one_by_one or tensor.dtype in (torch.int64, torch.float64), field


@pytest.mark.parametrize("suffix", [".safetensors"])
@pytest.mark.parametrize(("name", "options"), WITH_OPTIONS, ids=IDS)
def test_a_saved_tally_goes_on_where_it_stopped(name, options, suffix, memory, tmp_path):
    logits, labels = logits_and_labels(60, 4)
    counted(name, logits[:33], labels[:33], **options).save(tmp_path / f"part{suffix}")
    loaded = TALLIES[name].load(tmp_path / f"part{suffix}")
    whole = counted(name, logits, labels, **options)
    same(whole.summary(), (loaded + counted(name, logits[33:], labels[33:], **options)).summary())


@pytest.mark.parametrize("name", ALL)
def test_no_samples_count_nothing(name):
    logits, labels = logits_and_labels(20, 3)
    tally = counted(name, logits, labels)
    same(tally.summary(), (tally + counted(name, logits[:0], labels[:0])).summary())
    assert all(math.isnan(value) or value == 0 for value in counted(name, logits[:0], labels[:0]).summary().values())


@pytest.mark.parametrize("name", ALL)
def test_what_is_no_such_tally_is_refused(name, tmp_path):
    logits, labels = logits_and_labels(20, 3)
    tally = counted(name, logits, labels)
    with pytest.raises(TypeError):
        tally + 1.0
    tally.save(tmp_path / "tally.safetensors")
    other = next(one for one in ALL if one != name)
    with pytest.raises(InputError, match=f"got {name}"):
        TALLIES[other].load(tmp_path / "tally.safetensors")
    if TALLIES[name].whole:
        with pytest.raises(InputError, match="needs the scores of every class"):
            TALLIES[name].of_triples(torch.rand(3), torch.zeros(3).long(), torch.zeros(3).long())


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_is_refused_with_its_row(name, value):
    logits, labels = logits_and_labels(20, 3)
    logits[13, 1] = value
    with pytest.raises(InputError, match="row 13 contains"):
        counted(name, logits, labels)


SIZES = (37, 64)  # that do not divide


def _one_of_two(rank, world, folder, limit):
    confidences.EXACT = limit
    logits, labels = logits_and_labels(sum(SIZES), 5)
    mine = slice(0, SIZES[0]) if rank == 0 else slice(SIZES[0], None)
    results = {}
    for name, options in WITH_OPTIONS:
        results[name + str(bool(options))] = counted(name, logits[mine], labels[mine], **options).all_reduce().summary()
    torch.save(results, f"{folder}/{rank}.pt")


@pytest.mark.parametrize("limit", [8, 1 << 20], ids=["histogram", "exact"])
def test_two_processes_equal_one(limit, monkeypatch):
    monkeypatch.setattr(confidences, "EXACT", limit)
    logits, labels = logits_and_labels(sum(SIZES), 5)
    with tempfile.TemporaryDirectory() as folder:
        together(_one_of_two, folder, limit)
        of_each = [torch.load(Path(folder) / f"{rank}.pt", weights_only=True) for rank in (0, 1)]
    for name, options in WITH_OPTIONS:
        alone = counted(name, logits, labels, **options).summary()
        for results in of_each:
            same(alone, results[name + str(bool(options))])
