"""A threshold with a bound on the error: its bound is kept, it accepts much, and units count as units."""

from __future__ import annotations

import pytest
import torch
from scipy import stats

from acls.errors import InputError
from acls.metrics import Blocks, Confidences
from acls.metrics.batch import Batch
from acls.metrics.decision import Decision, _binomial
from acls.metrics.decision import decide as decide_counted

POPULATIONS = {
    # The error rate at confidence c: smooth, with a step right at the bound, and worst at the very top.
    "smooth": lambda c: 0.5 * (1 - c) ** 2,
    "step": lambda c: torch.where(c > 0.5, 0.03, 0.5),
    "bad top": lambda c: torch.where(c > 0.97, 0.2, torch.where(c > 0.4, 0.02, 0.4)),
}


def decide(
    confidence: torch.Tensor, right: torch.Tensor, *, max_error: float, unit: torch.Tensor | None = None
) -> Decision:
    """The decision for (confidence, hit) pairs."""
    batch = Batch.of_triples(confidence, torch.ones(len(confidence)).long(), right.long())
    blocks = None if unit is None else Blocks.count(batch, unit=unit)
    return decide_counted(Confidences.count(batch), blocks, max_error=max_error)


def _risk(error_at: torch.Tensor, grid: torch.Tensor, threshold: float) -> float:
    return float(error_at[grid >= threshold].mean())


@pytest.mark.parametrize("name", POPULATIONS)
@pytest.mark.parametrize(("n", "max_error"), [(600, 0.1), (2000, 0.04)])
def test_the_accepted_are_wrong_more_often_than_allowed_in_at_most_5_percent_of_data_sets(
    name: str, n: int, max_error: float
) -> None:
    random = torch.Generator().manual_seed(7)
    grid = torch.linspace(0, 1, 20_001, dtype=torch.float64)
    error_at = POPULATIONS[name](grid)
    broken, share = 0, 0.0
    for _ in range(150):
        c = torch.rand(n, generator=random, dtype=torch.float64)
        right = torch.rand(n, generator=random, dtype=torch.float64) >= POPULATIONS[name](c)
        decision = decide(c, right, max_error=max_error)
        if decision.threshold is not None:
            broken += _risk(error_at, grid, decision.threshold) > max_error
            share += decision.share / 150
    assert stats.binom.sf(broken - 1, 150, 0.05) > 0.01  # no evidence that it happens in more than 5 %
    best = max(1 - t for t in torch.linspace(0, 0.99, 100).tolist() if _risk(error_at, grid, t) <= max_error)
    if name == "smooth":
        assert share > 0.7 * best


def test_choosing_by_the_observed_error_alone_breaks_its_bound() -> None:
    """The same simulation finds the fault of what one would do without a bound."""
    random = torch.Generator().manual_seed(7)
    broken = 0
    for _ in range(100):
        c = torch.rand(400, generator=random).sort(descending=True).values
        wrong = torch.rand(400, generator=random) < POPULATIONS["smooth"](c)
        rate = wrong.cumsum(0) / torch.arange(1, 401)
        t = float(c[int((rate <= 0.05).nonzero().max())])
        broken += (1 - t) ** 2 / 6 > 0.05  # the mean of (1 - c)² / 2 over c in [t, 1]
    assert broken > 25


def test_units_that_are_wrong_together_count_as_units() -> None:
    """Images of 50 pixels, whole images wrong: pixels as rows break the bound, images keep it."""
    random = torch.Generator().manual_seed(3)
    broken = {"rows": 0, "images": 0}
    for _ in range(60):
        image = torch.arange(80).repeat_interleave(50)
        c = torch.rand(4000, generator=random)
        bad = torch.rand(80, generator=random) < 0.06  # 6 % of the images are wrong at every confidence
        for name, unit in (("rows", None), ("images", image)):
            broken[name] += decide(c, ~bad[image], max_error=0.05, unit=unit).threshold is not None
    assert broken["images"] <= 7  # 5 % of 60 is 3, and P(X > 7) = 1 %
    assert broken["rows"] >= 14


def test_fewer_than_thirty_units_bound_nothing() -> None:
    image = torch.arange(29).repeat_interleave(100)
    assert decide(torch.rand(2900), torch.ones(2900), max_error=0.5, unit=image).threshold is None


def test_the_p_values_are_scipys() -> None:
    wrong, count = torch.tensor([[0.0, 3, 17, 1900, 30], [10, 200, 1000, 100_000, 1000]], dtype=torch.float64)
    expected = torch.tensor(stats.binom.cdf(wrong, count, 0.02))
    assert torch.allclose(_binomial(wrong, count, 0.02)[:-1], expected[:-1], rtol=1e-6)
    assert _binomial(wrong, count, 0.02)[-1] == 1  # above the mean there is nothing to reject


def test_cells_of_a_histogram_and_rows_decide_alike() -> None:
    random = torch.Generator().manual_seed(0)
    c = torch.rand(3000, generator=random, dtype=torch.float64)
    right = torch.rand(3000, generator=random) >= POPULATIONS["smooth"](c)
    rows = decide(c, right, max_error=0.05)
    assert rows.threshold is not None
    assert rows.accepted == int((c >= rows.threshold).sum())
    # The same rows in steps of 1/100: the threshold is a step, and everything at it is accepted.
    stepped = decide((c * 100).floor() / 100, right, max_error=0.05)
    assert stepped.accepted == int((c >= stepped.threshold).sum())
    counted = Confidences.of_triples(c, torch.ones(3000).long(), right.long())
    table = decide_counted(Confidences.of_histogram(counted.histogram()), max_error=0.05)
    assert (table.accepted, table.wrong) == (rows.accepted, rows.wrong)
    assert table.threshold == pytest.approx(rows.threshold, abs=1e-4)


def test_thresholds_of_units_are_edges_of_cells_and_hold_what_they_say() -> None:
    random = torch.Generator().manual_seed(0)
    image = torch.arange(100).repeat_interleave(60)
    p = 0.5 + 0.5 * torch.rand(6000, generator=random, dtype=torch.float64)
    right = torch.rand(6000, generator=random) < p**0.2
    counted, rows = decide(p, right, max_error=0.05, unit=image), decide(p, right, max_error=0.05)
    assert counted.threshold is not None
    assert counted.accepted == int((p >= counted.threshold).sum())
    assert counted.wrong == int((~right & (p >= counted.threshold)).sum())
    assert 0.2 < rows.share < 1
    assert abs(counted.share - rows.share) < 0.1


def test_ties_are_accepted_together_or_not_at_all() -> None:
    decision = decide(torch.ones(500), torch.arange(500) >= 5, max_error=0.05)
    assert (decision.threshold, decision.accepted, decision.wrong) == (1.0, 500, 5)
    assert decide(torch.ones(500), torch.arange(500) >= 30, max_error=0.05).threshold is None


def test_the_sentence_says_threshold_share_and_bound() -> None:
    c = torch.linspace(0, 1, 1001, dtype=torch.float64)
    assert str(decide(c, c > 0.3, max_error=0.02)).startswith("Accept automatically at or above 0.31")
    assert str(decide(c[:50], c[:50] > 2, max_error=0.02)).startswith("Accept nothing automatically: with n = 50")


def test_what_cannot_be_decided_is_refused() -> None:
    with pytest.raises(InputError, match="between 0 and 1, got 2"):
        decide(torch.rand(5), torch.ones(5), max_error=2)
    weighted = Confidences.of_triples(torch.rand(5), *torch.ones(2, 5).long(), sample_weight=torch.rand(5))
    with pytest.raises(InputError, match="equal weight"):
        decide_counted(weighted, max_error=0.1)
    with pytest.raises(InputError, match="got none"):
        decide(torch.rand(0), torch.ones(0), max_error=0.1)
