"""Text, dictionaries and objects are made from each other, and what cannot be read is refused in a line."""

import json
import math
import typing

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from acls.calibrators import REGISTRY as CALIBRATORS
from acls.calibrators import make_calibrator
from acls.cli import main
from acls.errors import InputError
from acls.losses import ACLS, DCA, MDCA, Focal, Loss, make_loss
from acls.losses import REGISTRY as LOSSES
from acls.spec import Spec, build, field_types, parse, parse_value
from acls.study.methods import methods_of
from tests.study.quick import HERE
from tests.train.quick import digits

VALUES = {
    float: st.floats(0.01, 0.9, allow_nan=False) | st.integers(1, 9),
    int: st.integers(1, 30),
    bool: st.booleans(),
    tuple[float, ...]: st.lists(st.floats(0.1, 0.9), min_size=1, max_size=3).map(tuple),
    torch.Tensor | None: st.none() | st.lists(st.floats(0.1, 2.0), min_size=2, max_size=4),
    float | None: st.none() | st.floats(0.01, 0.9),
}
CHOICES = {
    ("ACLS", "form"): ["paper", "released", "printed-loss"],
    ("ACLS", "condition"): ["margin", "ranking", "always"],
    ("CRL", "condition"): ["ranking", "margin"],
    ("Temperature", "objective"): ["nll", "ece"],
    ("Histogram", "kind"): ["width", "mass"],
}


@st.composite
def objects(draw, kinds, depth=3, top=True):
    """Any registered class with any of its fields, and with any other of them inside it."""
    name = draw(st.sampled_from(sorted(kinds)))
    fields = {}
    for field, hint in field_types(kinds[name]).items():
        if (name, field) in CHOICES:
            values = st.sampled_from(CHOICES[name, field])
        elif hint is Loss:
            values = objects(kinds, depth - 1, top=False) if depth else st.nothing()
        else:
            values = VALUES.get(hint, st.nothing())
        if values.is_empty or not draw(st.booleans()) or (field in ("ignore_index", "class_weight") and not top):
            continue
        fields[field] = draw(values)
    try:
        return kinds[name](**fields)
    except InputError:  # fields that cannot go together
        return kinds[name]()


@pytest.mark.parametrize(("kinds", "make"), [(LOSSES, make_loss), (CALIBRATORS, make_calibrator)])
@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_what_an_object_records_and_prints_makes_it_again(kinds, make, data):
    made = data.draw(objects(kinds))
    record = made.settings()
    for again in (
        make(record),
        make(json.loads(json.dumps(record))),
        make(repr(made)),
        build(Spec.of(made), kinds, "method"),
        make(str(Spec.of(made))),
    ):
        assert type(again) is type(made)
        assert again.settings() == record
        assert repr(again) == repr(made)
    assert Spec.of(made).plain() == record


def test_every_type_of_field_is_drawn_above():
    hints = {hint for kind in (*LOSSES.values(), *CALIBRATORS.values()) for hint in field_types(kind).values()}
    assert hints <= {*VALUES, str, Loss}


def test_a_record_keeps_all_settings_so_that_defaults_may_change():
    record = MDCA(base=DCA(base=Focal())).settings()
    assert record["base"]["base"]["gamma"] == Focal().gamma
    assert set(record) == {"name", *field_types(MDCA)}


def test_an_object_is_passed_as_it_is_and_fields_are_added_to_text():
    inner = Focal(gamma=1.0)
    assert make_loss(inner) is inner
    assert make_loss("mdca", base=inner).base is inner
    assert make_loss("ACLS(margin=6)", form="released").settings() == ACLS(margin=6, form="released").settings()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("ALCS", "there is no loss 'ALCS': did you mean 'ACLS'?"),
        ("MDCA(base=Focl)", "there is no loss 'Focl': did you mean 'Focal'?"),
        ("MDCA(base=DCA(base=Focal(gama=1)))", "Focal has no field 'gama': did you mean 'gamma'?"),
        ("ACLS(margin=1, margin=2)", "margin is given twice"),
        ("CE(x={[]:1})", "expected a number, a string, a list or a method, got '{[]: 1}'"),
        ("MDCA(base=3)", "MDCA(base=3): expected a loss, got 3"),
        ("MDCA(base=none)", "MDCA(base=None): expected a loss, got None"),
        ("ACLS(margin=1e999)", "ACLS(margin=inf): expected a finite number, got inf"),
        ("ACLS(margin=none)", "expected a finite number, got None"),
        ("ACLS(margin=true)", "expected a finite number, got True"),
        ("ACLS(margin=CE)", "expected a finite number, got 'CE'"),
        ("ACLS(form=3)", "expected a string, got 3"),
        ("ACLS(form=MDCA(weight=1))", "form="),
        ("CE(ignore_index=1.5)", "expected a whole number, got 1.5"),
        ("CE(class_weight=[a, b])", "expected a number, a string, a list or a method"),
        ("CE(class_weight=['a', 'b'])", "expected a list of numbers"),
        ("CE(class_weight=heavy)", "expected a list of numbers"),
        ("CE, ACLS", "expected one loss, got 2"),
        ("ACLS(margin=1+1)", "got '1 + 1'"),
        ("ACLS(**{})", "expected FIELD=VALUE"),
        ("ACLS(", "got 'ACLS('"),
        ("(" * 5000, "expected a loss"),
        ("\0", "expected a loss"),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_line(text, told):
    with pytest.raises(InputError) as error:
        make_loss(text)
    assert told in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("given", [3, None, {"margin": 6.0}, {"name": 3}, ["CE"]])
def test_what_is_no_description_is_refused(given):
    with pytest.raises(InputError, match="expected a loss by its name"):
        make_loss(given)
    with pytest.raises(InputError, match="margin is given twice"):
        make_loss("ACLS(margin=6)", margin=7)


def test_a_word_a_list_and_a_method_are_values():
    values = [parse_value(text) for text in ("6", "printed-loss", "1,2", "true", "none", "Focal(gamma=1)", "a/b c")]
    assert values == [6, "printed-loss", (1, 2), True, None, Spec("Focal", {"gamma": 1}), "a/b c"]
    assert math.isinf(typing.cast("float", parse_value("1e999")))


def test_groups_stand_for_their_members_only_without_fields():
    assert parse("CE, both", groups={"both": ("A", "B")}) == [Spec("CE"), Spec("A"), Spec("B")]
    assert parse("both(x=1)", groups={"both": ("A", "B")}) == [Spec("both", {"x": 1})]


def test_a_loss_in_a_loss_in_a_loss_is_explained_trained_and_compared(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("acls.study.engine.make_engine", lambda *_, **__: HERE)
    nested = "MDCA(base=DCA(base=Focal))"
    assert main(["explain", "--methods", nested]) == 0
    assert "MDCA(base=DCA(base=Focal()))" in capsys.readouterr().out
    (method,) = methods_of(digits(), nested)
    assert method.name == "MDCA(base=DCA(base=Focal()))"
    study = ["compare", "digits_cnn", "--methods", nested, "--seeds", "1", "--epochs", "1", "--limit-batches", "2"]
    assert main([*study, "--posthoc", "none", "--no-report", "--workers", "1", "--quiet", "--out", str(tmp_path)]) == 0
    (summary,) = tmp_path.glob("runs/*/summary.json")
    record = json.loads(summary.read_text())["loss"]
    assert repr(make_loss(record)) == method.name


def test_the_command_line_takes_a_loss_as_it_is_written(capsys):
    plan = ["train", "digits_cnn", "--epochs", "1", "--dry-run"]
    assert main([*plan, "--loss", "MDCA(base=DCA(base=Focal(gamma=1)))"]) == 0
    assert main([*plan, "--loss", "MDCA", "--loss.base", "Focal(gamma=1)"]) == 0
    capsys.readouterr()
    for words, told in (
        (["--loss", "ACLS(margin=6)", "--loss.margin", "7"], "margin is given twice"),
        (["--loss.margin", "6", "--loss.margin", "7"], "--loss.margin is given twice"),
        (["--loss", "ACLS", "--loss.margn", "7"], "ACLS has no field 'margn': did you mean 'margin'?"),
        (["--loss", "ALCS"], "there is no loss 'ALCS': did you mean 'ACLS'?"),
        (["--loss", "ACLS", "--loss.margin", "wide"], "expected a finite number, got 'wide'"),
    ):
        assert main([*plan, *words]) == 2
        assert told in capsys.readouterr().err
