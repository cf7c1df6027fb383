"""What every loss must do, whoever wrote it: `check(make)` runs the battery, `make(**fields)` builds the loss.

Written as plain functions so that the same battery can be shown to reject a broken loss.
"""

import copy

import torch

from acls.losses import Epoch

N_TRAIN = 40


def inputs(n=7, k=5, seed=0, dtype=torch.float64, scale=4.0, dims=()):
    generator = torch.Generator().manual_seed(seed)
    z = scale * torch.randn(n, k, *dims, generator=generator, dtype=torch.float64)
    y = torch.randint(0, k, (n, *dims), generator=generator)
    return z.to(dtype), y, torch.randperm(N_TRAIN, generator=generator)[:n]


def ready(make, k=5, **fields):
    """A loss in the middle of training: its memory, if it has one, holds two epochs."""
    loss = make(**fields).double()
    loss.prepare(n_train=N_TRAIN, n_classes=k)

    def predict(split):
        z, y, _ = inputs(N_TRAIN, k, seed=3)
        yield z, y, torch.arange(N_TRAIN)

    for number in range(2):
        now = Epoch(number=number, total=4, predict=predict)
        loss.start_epoch(now)
        for step in range(5):
            loss.observe(*inputs(7, k, seed=10 * number + step))
        loss.end_epoch(now)
    loss.start_epoch(Epoch(number=3, total=4, predict=predict))  # the epoch that CaPE calibrates in
    return loss


def value_and_gradient(loss, z, y, index):
    z = z.detach().clone().requires_grad_()
    value = loss(z, y, index)
    (gradient,) = torch.autograd.grad(value.sum(), z)
    return value.detach(), gradient


def the_value_is_a_finite_scalar(make):
    value, gradient = value_and_gradient(ready(make), *inputs())
    assert value.ndim == 0
    assert value.isfinite()
    assert gradient.isfinite().all()


def the_terms_add_up_to_the_loss(make):
    loss, (z, y, index) = ready(make), inputs()
    terms = loss.terms(z, y, index)
    assert all(isinstance(name, str) for name in terms)
    torch.testing.assert_close(sum(terms.values()), loss(z, y, index), rtol=1e-12, atol=1e-12)


def the_gradient_is_that_of_finite_differences(make):
    loss, (z, y, index) = ready(make), inputs(n=4, scale=2.0)
    if gradient_is_a_surrogate(loss):
        return
    assert torch.autograd.gradcheck(lambda z: loss(z, y, index), z.requires_grad_(), eps=1e-6, atol=1e-6, rtol=1e-5)


def gradient_is_a_surrogate(loss):
    """Whether the method is defined by a gradient that is not its value's, by stopping part of it."""
    fields = loss.settings()
    return (
        fields.get("detach", False)
        or fields.get("form") in ("released", "stopped", "printed-gradient")
        or (type(loss).__name__ == "CRL" and fields["condition"] == "margin")
    )


def ignored_positions_count_for_nothing(make):
    loss, (z, y, index) = ready(make, ignore_index=255), inputs(n=9)
    keep = torch.tensor([True, False, True, True, True, False, True, True, False])
    value, gradient = value_and_gradient(loss, z, torch.where(keep, y, 255), index)
    expected, compact = value_and_gradient(loss, z[keep], y[keep], index[keep])
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(gradient[keep], compact)
    assert (gradient[~keep] == 0).all()


def a_class_can_be_the_ignored_one(make):
    loss, (z, y, index) = ready(make, ignore_index=1), inputs(n=9)
    y[::3] = 1
    value, gradient = value_and_gradient(loss, z, y, index)
    keep = y != 1
    expected, compact = value_and_gradient(loss, z[keep], y[keep], index[keep])
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(gradient[keep], compact)
    assert (gradient[~keep] == 0).all()


def what_stands_at_an_ignored_position_does_not_matter(make):
    loss, (z, y, index) = ready(make, ignore_index=255), inputs(n=9)
    y[::3] = 255
    expected, gradient = value_and_gradient(loss, z, y, index)
    for junk in (torch.nan, torch.inf, -torch.inf):
        found = value_and_gradient(loss, torch.where((y == 255)[:, None], junk, z), y, index)
        assert torch.equal(found[0], expected)
        assert torch.equal(found[1], gradient)


def a_masked_class_is_as_one_that_is_out_of_the_question(make):
    """A logit of -inf gives a finite value, and no gradient at that class."""
    for dtype in (torch.float64, torch.float32):
        loss, (z, y, index) = ready(make).to(dtype), inputs(n=9, dtype=dtype)
        z[:, 2], y = -torch.inf, torch.where(y == 2, 3, y)
        value, gradient = value_and_gradient(loss, z, y, index)
        assert value.isfinite()
        assert gradient.isfinite().all()
        assert (gradient[:, 2] == 0).all()
        assert (gradient != 0).any()
        torch.testing.assert_close(value, sum(loss.terms(z, y, index).values()))


def binary_scores_are_logits_of_two_classes(make):
    loss, (z, y, index) = ready(make, k=2, ignore_index=255), inputs(n=9, k=2)
    score = z[:, 1].clone()
    y[4] = 255
    two = torch.stack([torch.zeros_like(score), score], 1)
    expected, gradient = value_and_gradient(loss, two, y, index)
    for shape in ((9,), (9, 1)):
        for target in (y, y.to(torch.int32), y.reshape(9, 1), y.double(), y.float().reshape(shape)):
            found, of_score = value_and_gradient(loss, score.reshape(shape), target, index)
            torch.testing.assert_close(found, expected)
            torch.testing.assert_close(of_score, gradient[:, 1].reshape(shape))


def in_eval_mode_no_index_is_needed_and_no_memory_changes(make):
    loss, (z, y, index) = ready(make), inputs()
    needed, memory = loss.needs_index, copy.deepcopy(loss.state_dict())
    trained = loss(z, y, index)
    loss.eval()
    value = loss(z, y)
    assert value.isfinite()
    torch.testing.assert_close(value, loss(z, y, index))
    if not needed:
        torch.testing.assert_close(value, trained)
    loss.observe(z, y, index)
    for name, buffer in loss.state_dict().items():
        assert torch.equal(buffer, memory[name]), name


def nothing_valid_gives_zero(make):
    loss, (z, y, index) = ready(make, ignore_index=255), inputs()
    value, gradient = value_and_gradient(loss, z, torch.full_like(y, 255), index)
    assert value == 0
    assert (gradient == 0).all()


def one_valid_position_is_enough(make):
    loss, (z, y, index) = ready(make, ignore_index=255), inputs()
    alone = torch.where(torch.arange(7) == 3, y, 255)
    value, gradient = value_and_gradient(loss, z, alone, index)
    expected, compact = value_and_gradient(loss, z[3:4], y[3:4], index[3:4])
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(gradient[3:4], compact)


def sum_is_count_times_mean(make):
    mean, (z, y, index) = ready(make), inputs()
    torch.testing.assert_close(ready(make, reduction="sum")(z, y, index), len(z) * mean(z, y, index))


def none_averages_to_mean(make):
    if any(part.couples_samples for part in make().stack()):
        return
    z, y, index = inputs()
    values = ready(make, reduction="none")(z, y, index)
    assert values.shape == y.shape
    torch.testing.assert_close(values.mean(), ready(make)(z, y, index))


def dense_maps_are_their_positions(make):
    """For methods that remember samples an image is one sample, so only the others can be compared."""
    loss = ready(make, ignore_index=255)
    z, y, index = inputs(n=3, dims=(2, 4))
    y[0, 1, 2] = 255
    value, gradient = value_and_gradient(loss, z, y, index)
    assert gradient.shape == z.shape
    assert (gradient[0, :, 1, 2] == 0).all()
    if loss.needs_index:
        assert value.isfinite()
        return
    rows = z.movedim(1, -1).reshape(-1, z.shape[1])
    expected, flat = value_and_gradient(loss, rows, y.flatten(), None)
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(gradient.movedim(1, -1).reshape(flat.shape), flat)


def extreme_logits_stay_finite(make):
    for k in (2, 5):
        loss = ready(make, k=k)
        for z in (
            torch.full((7, k), 1e4),
            torch.full((7, k), -1e4),
            1e4 * torch.eye(k).repeat(7, 1)[:7] - 5e3,
            torch.zeros(7, k),
        ):
            for label in (0, k - 1):
                value, gradient = value_and_gradient(loss.float(), z, torch.full((7,), label), torch.arange(7))
                assert value.isfinite(), (k, z[0], label)
                assert gradient.isfinite().all(), (k, z[0], label)


def half_precision_is_computed_in_float32(make):
    loss, (z, y, index) = ready(make).float(), inputs(dtype=torch.float32)
    for dtype in (torch.bfloat16, torch.float16):
        rounded = z.to(dtype)
        with torch.autocast("cpu", dtype=dtype):
            value, gradient = value_and_gradient(loss, rounded, y, index)
        assert value.dtype == torch.float32
        assert gradient.dtype == dtype
        torch.testing.assert_close(value, loss(rounded.float(), y, index))
        assert (1e4 * rounded).isfinite().all() or dtype == torch.float16
        assert value_and_gradient(loss, torch.full_like(rounded, 6e4), y, index)[1].isfinite().all()


def one_sample_and_two_classes_work(make):
    value, gradient = value_and_gradient(ready(make, k=2), *inputs(n=1, k=2))
    assert value.isfinite()
    assert gradient.isfinite().all()


def soft_labels_that_are_hard_give_the_same(make):
    loss, (z, y, index) = ready(make), inputs()
    if any(part.refuses_soft_targets for part in loss.stack()):
        return
    soft = torch.nn.functional.one_hot(y, z.shape[1]).to(z.dtype)
    expected, gradient = value_and_gradient(loss, z, y, index)
    value, soft_gradient = value_and_gradient(loss, z, soft, index)
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(soft_gradient, gradient)


def class_weights_weigh_the_data_term_only(make):
    z, y, index = inputs()
    weight = torch.tensor([1.0, 2.0, 0.5, 3.0, 1.5], dtype=torch.float64)
    plain, weighed = ready(make, reduction="sum"), ready(make, reduction="sum", class_weight=weight)
    before, after = plain.terms(z, y, index), weighed.terms(z, y, index)
    data, *rest = before
    assert not torch.isclose(before[data], after[data])
    for name in rest:
        torch.testing.assert_close(before[name], after[name])
    equal = ready(make, class_weight=torch.full((5,), 7.0))
    torch.testing.assert_close(equal(z, y, index), ready(make)(z, y, index))


def the_memory_survives_state_dict_and_copies(make):
    loss, (z, y, index) = ready(make), inputs()
    fresh, unprepared = make().double(), make().double()
    fresh.prepare(n_train=N_TRAIN, n_classes=5)
    for twin in (fresh, unprepared):
        twin.load_state_dict(loss.state_dict())
    for twin in (fresh, unprepared, copy.deepcopy(loss)):
        torch.testing.assert_close(twin(z, y, index), loss(z, y, index), rtol=0, atol=0)


def it_prints_and_records_itself(make):
    import json

    loss = make(ignore_index=255)
    assert repr(loss).startswith(type(loss).__name__ + "(")
    assert "ignore_index=255" in repr(loss)
    assert json.loads(json.dumps(loss.settings()))["ignore_index"] == 255
    assert loss.about.year > 1900


def the_gradient_is_the_papers_row(make):
    loss, (z, y, index) = ready(make, reduction="sum"), inputs(n=60, scale=6.0)
    rule = loss.rule(z.shape[1])
    if rule is None:
        return
    _, gradient = value_and_gradient(loss, z, y, index)
    torch.testing.assert_close(gradient, z.softmax(1) - rule.label(z, y), rtol=1e-9, atol=1e-9)


BATTERY = [
    the_value_is_a_finite_scalar,
    the_terms_add_up_to_the_loss,
    the_gradient_is_that_of_finite_differences,
    ignored_positions_count_for_nothing,
    a_class_can_be_the_ignored_one,
    what_stands_at_an_ignored_position_does_not_matter,
    a_masked_class_is_as_one_that_is_out_of_the_question,
    binary_scores_are_logits_of_two_classes,
    in_eval_mode_no_index_is_needed_and_no_memory_changes,
    nothing_valid_gives_zero,
    one_valid_position_is_enough,
    sum_is_count_times_mean,
    none_averages_to_mean,
    dense_maps_are_their_positions,
    extreme_logits_stay_finite,
    half_precision_is_computed_in_float32,
    one_sample_and_two_classes_work,
    soft_labels_that_are_hard_give_the_same,
    class_weights_weigh_the_data_term_only,
    the_memory_survives_state_dict_and_copies,
    it_prints_and_records_itself,
    the_gradient_is_the_papers_row,
]
