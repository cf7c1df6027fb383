"""The paper's view as code: rules, effective labels, rules as losses, the table, the commands that show them."""

import json

import pytest
import torch
import torch.nn.functional as F

from acls.cli import main
from acls.errors import InputError
from acls.losses import (
    ACLS,
    CE,
    GROUPS,
    MDCA,
    REGISTRY,
    Focal,
    MbLS,
    Rule,
    Side,
    effective_label,
    make_losses,
    rule_loss,
    table,
)
from acls.report.figures import regulariser
from tests.contract.losses import inputs, value_and_gradient


def test_the_effective_label_of_cross_entropy_is_the_label():
    z, y, _ = inputs()
    torch.testing.assert_close(effective_label(CE(), z, y), F.one_hot(y, 5).double())


def test_the_effective_label_of_a_loss_one_wrote_oneself():
    z, y, _ = inputs()

    def mine(z, y):
        return F.cross_entropy(z, y, label_smoothing=0.2, reduction="sum")

    expected = 0.8 * F.one_hot(y, 5).double() + 0.2 / 5
    torch.testing.assert_close(effective_label(mine, z, y, reduction="sum"), expected)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_the_effective_label_is_the_rules_in_dense_maps_with_ignored_pixels(reduction):
    z, y, _ = inputs(n=3, dims=(2, 4))
    y[0, 0, :2] = 255
    loss = ACLS(margin=2.0, ignore_index=255, reduction=reduction)
    label = effective_label(loss, z, y).movedim(1, -1).reshape(-1, 5)
    rows, classes = z.movedim(1, -1).reshape(-1, 5), y.flatten()
    valid = classes != 255
    torch.testing.assert_close(label[valid], loss.rule(5).label(rows[valid], classes[valid]))
    torch.testing.assert_close(label[~valid], rows[~valid].softmax(1))


@pytest.mark.parametrize("loss", [MbLS(margin=1.0), ACLS(margin=2.0), ACLS(form="printed-gradient"), Focal()], ids=repr)
def test_a_rule_is_already_a_loss(loss):
    z, y, _ = inputs(scale=6.0)
    _, expected = value_and_gradient(loss, z, y, None)
    value, gradient = value_and_gradient(lambda z, y, index: rule_loss(loss.rule(5), z, y), z, y, None)
    torch.testing.assert_close(gradient, expected)
    torch.testing.assert_close(value, F.cross_entropy(z, y))


def test_a_rule_one_wrote_oneself_trains():
    """Lower the predicted class's label by its confidence's excess over 0.9."""
    rule = Rule(down=Side(lambda at: at.p - 0.9, when=lambda at: at.p > 0.9))
    z = torch.tensor([[8.0, 0.0]], requires_grad=True)
    rule_loss(rule, z, torch.tensor([0])).backward()
    p = z.detach().softmax(1)[0, 0]
    assert z.grad[0, 0].item() == pytest.approx(float(p - (1 - (p - 0.9))), abs=1e-6)


def test_a_regulariser_on_another_base_has_no_row_of_the_table():
    assert ACLS(base=Focal()).rule(5) is None
    assert len(table([ACLS(), ACLS(base=Focal()), MDCA()])) == 1


def test_the_table_has_a_row_for_every_pointwise_method():
    rows = {row.method.split("(")[0]: row for row in table(kind() for kind in REGISTRY.values())}
    coupled = {name for name, kind in REGISTRY.items() if kind.couples_samples or kind().needs_index}
    assert not coupled & rows.keys()
    assert {"CE", "LabelSmoothing", "Focal", "FLSD", "Brier", "ECP", "CPC", "MbLS", "ACLS"} <= rows.keys()
    assert rows["MbLS"].c_others == "z_ŷ - z_j > M"
    assert all(row.f_pivot and row.f_others for row in rows.values())


def test_losses_are_read_as_they_are_printed():
    text = "CE(), ACLS(margin=6.0, form='printed-loss'), MDCA(base=Focal(gamma=1.0)), ACLS(form=printed-loss)"
    losses = make_losses(text)
    assert [repr(loss) for loss in losses[:3]] == text.split(", ", 1)[:1] + [repr(loss) for loss in losses[1:3]]
    assert repr(losses[1]) == "ACLS(margin=6.0, form='printed-loss')"
    assert repr(losses[2]) == "MDCA(base=Focal(gamma=1.0))"
    assert losses[3].form == "printed-loss"
    assert len(make_losses("paper")) == len(GROUPS["paper"])
    assert len(make_losses("all")) == len(REGISTRY)


@pytest.mark.parametrize("text", ["", "CE ACLS", "ACLS(6)", "3", "__import__('os')", "ACLS(margn=1)", "ACLS(**{})"])
def test_text_that_names_no_losses_is_refused(text):
    with pytest.raises(InputError):
        make_losses(text)


def test_explain_prints_labels_f_and_c(capsys):
    assert main(["explain", "--logits=9,2,-3", "--label", "0", "--methods", "CE, MbLS, ACLS(form=released)"]) == 0
    out = capsys.readouterr().out
    assert ["MbLS()", "0.9667", "0.0000", "0.0333", "1"] in [line.split() for line in out.splitlines()]
    assert "can drift" in out
    assert main(["explain", "--json", "--methods", "ACLS(margin=6, form=paper)"]) == 0
    (row,) = json.loads(capsys.readouterr().out).values()
    assert row["sums_to_one"]
    assert row["C"] == [1, 1, 1, 1]
    assert 1 - row["f"][0] == pytest.approx(row["label"][0])


@pytest.mark.parametrize("words", [["--logits", "a,b"], ["--logits", "1,2", "--label", "2"], ["--methods", "XYZ"]])
def test_explain_refuses_what_it_cannot_explain(words, capsys):
    assert main(["explain", *words]) == 2
    assert capsys.readouterr().err.startswith("acls explain: ")


def test_methods_lists_every_method(capsys):
    assert main(["methods"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in REGISTRY)
    assert main(["methods", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert listed["ACLS"]["kind"] == "ACR"
    assert listed["MDCA"]["fields"]["base"]["name"] == "CE"


def test_figure_1_has_the_papers_letters_a_title_each_and_labels_on_all_axes():
    axes = regulariser.smoothing_figure().axes
    titles = [ax.get_title() for ax in axes]
    assert [title[:3] for title in titles] == [f"({letter})" for letter in "abcdefghi"]
    assert len({title[4:] for title in titles}) == 9
    assert [titles[number][4:] for number in (3, 4, 6)] == ["AR (MDCA)", "Undesirable behaviour of AR", "ACLS, Eq. 13"]
    top, bottom = axes[4].child_axes
    assert [part.get_ylabel() for part in (top, bottom)] == ["f at ŷ", "f at j"]
    for ax in (*axes[:4], *axes[5:], top, bottom):
        assert ax.get_xlabel()
        assert ax.get_ylabel()


def test_figure_1_shows_the_parabola_and_the_line(tmp_path, capsys):
    data = regulariser.prepare_smoothing()
    crl, acls = data.lowered["ACR (CRL)"], data.lowered["ACLS, Eq. 13"]
    peak = max(range(len(crl)), key=crl.__getitem__)
    assert data.confidence[peak] == pytest.approx(0.5, abs=0.05)
    assert crl[-1] < 0.01 < acls[-1]
    assert acls == sorted(acls)
    assert data.raised == pytest.approx([0.5 * p * (1 - p) / 3 for p in data.confidence])  # 2 (w/K) p_j p_ŷ
    for name in ("figure.png", "figure.svg", "figure.pdf"):
        assert main(["explain", "--figure", str(tmp_path / name)]) == 0
        assert (tmp_path / name).stat().st_size > 5000
