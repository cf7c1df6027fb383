"""Wrong input is refused with what came, what was called for, and the way out."""

import pytest
import torch

from acls.errors import InputError
from acls.losses import ACLS, CE, CRL, MDCA, MMCE, REGISTRY, CaPE, Epoch, Focal, Patra, make_loss, make_losses

Z, Y = torch.zeros(8, 21, 64, 64), torch.zeros(8, 64, 64, dtype=torch.long)


def test_a_target_with_a_class_axis_is_refused():
    with pytest.raises(InputError, match=r"expected target of shape \(8, 64, 64\) .*got \(8, 1, 64, 64\): drop axis 1"):
        CE()(Z, Y.unsqueeze(1))


def test_a_label_outside_the_classes_names_ignore_index():
    y = Y.clone()
    y[0, 0, 0] = 255
    with pytest.raises(InputError, match=r"target contains 255, but classes are 0\.\.20: pass ignore_index=255"):
        ACLS()(Z, y)


def test_logits_without_classes_are_refused():
    with pytest.raises(InputError, match="axis 1 the classes"):
        CE()(torch.zeros(()), torch.zeros((), dtype=torch.long))
    with pytest.raises(InputError, match="floating point"):
        CE()(torch.zeros(3, 2, dtype=torch.long), torch.zeros(3, dtype=torch.long))


def test_a_float_target_of_class_ids_is_refused():
    with pytest.raises(InputError, match="expected class ids as integers"):
        CE()(torch.zeros(3, 2), torch.zeros(3))


@pytest.mark.parametrize("name", REGISTRY)
def test_targets_of_several_classes_per_sample_are_refused_as_such(name):
    loss = make_loss(name)
    loss.prepare(n_train=3, n_classes=2)
    for target in (torch.ones(3, 2, dtype=torch.long), torch.ones(3, 2)):
        with pytest.raises(InputError, match=r"several true classes per sample \(multilabel\) are not supported"):
            loss(torch.zeros(3, 2), target, torch.arange(3))


@pytest.mark.parametrize(("label", "told"), [(2.0, "sum to 1"), (torch.nan, "sum of nan"), (-0.5, "of 0 or more")])
def test_soft_labels_that_are_no_distribution_are_refused(label, told):
    target = torch.tensor([[1.0, 0.0], [label, 1 - label if label < 0 else 0.0]])
    with pytest.raises(InputError, match=told):
        CE()(torch.zeros(2, 2), target)


@pytest.mark.parametrize("weight", [-1.0, torch.nan, torch.inf])
def test_class_weights_that_are_no_weights_are_refused(weight):
    with pytest.raises(InputError, match=r"class_weight=.*expected"):
        CE(class_weight=[1.0, weight])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", REGISTRY)
def test_logits_of_1e30_give_a_finite_loss(name, dtype):
    loss = make_loss(name)
    loss.prepare(n_train=2, n_classes=3)
    z = torch.tensor([[1e30, 0.0, -1e30], [-1e30, 1e30, 3.0]], dtype=dtype, requires_grad=True)
    value = loss(z, torch.tensor([0, 1]), torch.arange(2))
    value.backward()
    assert value.isfinite()
    assert z.grad.isfinite().all()


@pytest.mark.parametrize("name", [name for name, kind in REGISTRY.items() if kind.refuses_soft_targets])
def test_soft_labels_are_refused_where_the_method_has_no_use_for_them(name):
    with pytest.raises(InputError, match="holds soft labels"):
        make_loss(name)(torch.zeros(3, 4), torch.full((3, 4), 0.25), torch.arange(3))


def test_an_unknown_field_is_answered_with_the_nearest():
    with pytest.raises(TypeError, match=r"ACLS has no field 'margn': did you mean 'margin'\?"):
        ACLS(margn=6.0)
    with pytest.raises(TypeError, match="takes only keyword arguments"):
        Focal(3.0)


def test_an_unknown_loss_is_answered_with_the_nearest():
    with pytest.raises(InputError, match=r"there is no loss 'ALCS': did you mean 'ACLS'\?"):
        make_loss("ALCS")
    assert isinstance(make_loss("acls", margin=6.0), ACLS)


@pytest.mark.parametrize(
    ("kind", "fields", "told"),
    [
        (ACLS, {"form": "papr"}, "did you mean 'paper'"),
        (ACLS, {"margin": -1.0}, r"ACLS\(margin=-1.0\): expected a number in \[0, inf\), got -1.0"),
        (CE, {"reduction": "avg"}, "expected one of mean, sum, none"),
        (MMCE, {"bandwidth": 0.0}, "bandwidth=0.0"),
        (MMCE, {"reduction": "none"}, "has one term per batch, not per position"),
        (ACLS, {"base": MMCE(), "reduction": "none"}, "has one term per batch, not per position"),
        (MDCA, {"base": Focal(ignore_index=255)}, "set ignore_index, reduction and class_weight on MDCA"),
        (MDCA, {"base": torch.nn.CrossEntropyLoss()}, "is not a loss of acls"),
        (ACLS, {"margin": float("1e999")}, "expected a finite number"),
        (MDCA, {"base": 3}, "base=3"),
        (ACLS, {"margin": "six"}, r"ACLS\(margin='six'\): expected a finite number, got 'six'"),
        (MMCE, {"weighted": "no"}, r"MMCE\(weighted='no'\): expected True or False"),
        (Patra, {"prune_at": 0.5}, "expected several values"),
        (Patra, {"prune_at": (0.5, 2.0)}, r"expected a number in \(0, 1\]"),
        (CaPE, {"bins": 0}, r"CaPE\(bins=0\): expected a number in \[1, inf\)"),
    ],
)
def test_a_wrong_setting_is_refused_when_the_loss_is_made(kind, fields, told):
    with pytest.raises(InputError, match=told):
        kind(**fields)


def test_class_weights_of_another_length_are_refused():
    with pytest.raises(InputError, match=r"expected class_weight of shape \(4,\), got \(2,\)"):
        CE(class_weight=[1.0, 2.0])(torch.zeros(3, 4), torch.zeros(3, dtype=torch.long))


@pytest.mark.parametrize("loss", [CRL(), ACLS(condition="ranking"), CaPE(), MDCA(base=CRL())], ids=repr)
def test_a_missing_index_says_what_it_is_for(loss):
    with pytest.raises(
        InputError, match=r"^(CRL|ACLS|CaPE) .+: pass index=, the indices of the samples in the training set"
    ):
        loss(torch.zeros(3, 4), torch.zeros(3, dtype=torch.long))


@pytest.mark.parametrize("loss", [CRL(), ACLS(condition="ranking"), CaPE()], ids=repr)
def test_a_memory_that_is_not_set_up_says_how(loss):
    with pytest.raises(InputError, match=r"call loss.prepare\(n_train=..., n_classes=...\)"):
        loss(torch.zeros(3, 4), torch.zeros(3, dtype=torch.long), torch.arange(3))


@pytest.mark.parametrize("loss", [CRL(), ACLS(condition="ranking"), CaPE(), Patra(), MDCA(base=CRL())], ids=repr)
def test_a_hook_before_the_memory_is_set_up_says_how(loss):
    def hooks():
        loss.start_epoch(Epoch(0, 3, lambda split: []))
        loss.observe(torch.zeros(3, 4), torch.zeros(3, dtype=torch.long), torch.arange(3))

    with pytest.raises(InputError, match=r"call loss.prepare\(n_train=..., n_classes=...\)"):
        hooks()


def test_words_for_true_false_and_none_are_read_as_such():
    losses = make_losses("MMCE(weighted=false), MMCE(weighted=True), CE(class_weight=none)")
    assert [repr(loss) for loss in losses] == ["MMCE()", "MMCE(weighted=True)", "CE()"]


def test_an_index_of_another_length_is_refused():
    loss = CRL()
    loss.prepare(n_train=9, n_classes=4)
    with pytest.raises(InputError, match="one number per sample, got shape"):
        loss(torch.zeros(3, 4), torch.zeros(3, dtype=torch.long), torch.arange(2))
