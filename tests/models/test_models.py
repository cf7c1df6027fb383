"""Networks: logits of the right shape, the parameter counts of the published architectures, weights from files."""

import pytest
import torch
from torch import nn

from acls.calibrators import MCDropout
from acls.data import DataOptions, load
from acls.data.dataset import batches, in_order
from acls.errors import InputError
from acls.models import CATALOGUE, ModelOptions, build_model
from acls.models.weights import load_into, read_weights
from acls.storage import save_tensors
from acls.vision import submodule

SEGMENTATION = ("small_unet", "small_deeplab", "lraspp_mobilenet", "deeplabv3_resnet50")
# torchvision's and the authors' own counts; with a CIFAR or Tiny-ImageNet stem, counted by hand from those:
# ResNet-50 minus the 7x7 stem (9,408) plus the 3x3 one (1,728), and the head of 10 or of 4 x 2048 inputs.
PUBLISHED = {
    ("resnet18", "imagenet", 1000): 11_689_512,
    ("resnet34", "imagenet", 1000): 21_797_672,
    ("resnet50", "imagenet", 1000): 25_557_032,
    ("resnet101", "imagenet", 1000): 44_549_160,
    ("resnet18", "cifar", 10): 11_173_962,
    ("resnet50", "cifar", 10): 25_557_032 - 2_049_000 - 9_408 + 1_728 + 20_490,
    ("resnet101", "cifar", 10): 44_549_160 - 2_049_000 - 9_408 + 1_728 + 20_490,
    ("resnet50", "tiny", 200): 25_557_032 - 2_049_000 - 9_408 + 1_728 + 200 * (8192 + 1),
    ("resnet101", "tiny", 200): 44_549_160 - 2_049_000 - 9_408 + 1_728 + 200 * (8192 + 1),
    ("resnet20", "cifar", 10): 269_722,
    ("resnet32", "cifar", 10): 464_154,
    ("resnet56", "cifar", 10): 853_018,
    ("wrn16_2", "cifar", 10): 691_674,
    ("wrn28_10", "cifar", 10): 36_479_194,
    ("lraspp_mobilenet", "cifar", 21): 3_221_538,
    ("deeplabv3_resnet50", "cifar", 21): 42_004_074 - 2_365_205,  # torchvision's, without the auxiliary head
}


def sample(name, n=2):
    if name == "mlp":
        return torch.randn(n, 8)
    return torch.randn(n, 1, 8, 8) if name == "small_cnn" else torch.randn(n, 3, 32, 32)


def build(name, n_classes=5, **options):
    return build_model(ModelOptions(name=name, **options), n_classes=n_classes, channels=sample(name).shape[1])


@pytest.mark.parametrize("name", [name for name in CATALOGUE if name != "wrn28_10"])
def test_forward_returns_logits(name):
    model = build(name).eval()
    with torch.no_grad():
        logits = model(sample(name))
    assert logits.shape == ((2, 5, 32, 32) if name in SEGMENTATION else (2, 5))


@pytest.mark.parametrize(("name", "stem", "classes"), PUBLISHED)
def test_parameter_counts_are_the_published_ones(name, stem, classes):
    with torch.device("meta") if name == "wrn28_10" else torch.device("cpu"):
        model = build_model(ModelOptions(name=name, stem=stem), n_classes=classes)
    assert sum(weight.numel() for weight in model.parameters()) == PUBLISHED[name, stem, classes]


def test_the_tiny_head_has_8192_inputs_and_no_max_pooling():
    model = build_model(ModelOptions(name="resnet50", stem="tiny"), n_classes=200)
    assert model.fc.in_features == 8192
    assert not any(isinstance(module, nn.MaxPool2d) for module in model.modules())
    assert model.conv1.stride == (1, 1)
    assert model.layer2[0].conv2.stride == (2, 2)


def test_tiny_convolutions_start_as_the_authors_have_them():
    """N(0, sqrt(2 / (k^2 out))) for every convolution; torch's default for the CIFAR stem."""
    torch.manual_seed(0)
    tiny = build_model(ModelOptions(name="resnet18", stem="tiny"), n_classes=200).layer3[1].conv2.weight
    assert float(tiny.detach().std()) == pytest.approx((2 / (9 * 256)) ** 0.5, rel=0.02)
    cifar = build_model(ModelOptions(name="resnet18", stem="cifar"), n_classes=10).layer3[1].conv2.weight
    assert float(cifar.detach().abs().max()) <= (1 / (9 * 256)) ** 0.5 + 1e-6


@pytest.mark.parametrize(
    "name", ["small_cnn", "plain_cnn", "mlp", "resnet8", "wrn16_2", "resnet18", "timm/resnet10t", *SEGMENTATION]
)
def test_dropout_before_the_head_makes_passes_differ_and_evaluation_does_not(name):
    model = build(name, dropout=0.5)
    x = sample(name, 4)
    with torch.no_grad():
        for _ in range(20):  # until the running statistics let a signal through
            model.train()(x)
        assert torch.equal(model.eval()(x), model(x))
        passes = MCDropout(model, 3, seed=None)
        assert not torch.equal(passes(x), passes(x))


def test_an_unknown_model_is_told_the_closest():
    with pytest.raises(InputError, match="did you mean 'resnet50'"):
        build("resnett50")
    with pytest.raises(InputError, match="timm has no model 'resnet18x'"):
        build("timm/resnet18x")


def test_weights_come_back_from_a_file(tmp_path):
    torch.manual_seed(0)
    model = build("resnet8")
    save_tensors(tmp_path / "w.safetensors", model.state_dict(), {})
    torch.save({"state_dict": {f"module.{k}": v for k, v in model.state_dict().items()}}, tmp_path / "w.pth")
    for name in ("w.safetensors", "w.pth"):
        again = build("resnet8", weights=str(tmp_path / name))
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


def test_weights_that_do_not_fit_are_told_by_name(tmp_path):
    save_tensors(tmp_path / "w.safetensors", build("resnet8", n_classes=7).state_dict(), {})
    with pytest.raises(InputError, match="lacks layer1"):
        load_into(build("resnet20", n_classes=7), tmp_path / "w.safetensors", 7)
    with pytest.raises(InputError, match=r"a different shape for conv1\.weight"):
        load_into(build_model(ModelOptions(name="resnet8"), n_classes=7, channels=1), tmp_path / "w.safetensors", 7)
    with pytest.raises(InputError, match=r"an unexpected layer1\.1"):
        load_into(build("resnet8"), _saved(tmp_path / "larger.safetensors", build("resnet20")), 5)


def _saved(path, model):
    save_tensors(path, model.state_dict(), {})
    return path


def test_a_head_for_other_classes_stays_new_and_is_named(tmp_path, capsys):
    other = build("resnet8", n_classes=7)
    model = build("resnet8", weights=str(_saved(tmp_path / "w.safetensors", other)))
    assert torch.equal(model.layer3[0].conv1.weight, other.layer3[0].conv1.weight)
    assert model(sample("resnet8")).shape[1] == 5
    line = "w.safetensors: did not load linear.bias, linear.weight; the head for 5 classes is new"
    assert capsys.readouterr().out.strip() == line


@pytest.mark.parametrize("head", ["lraspp", "deeplabv3"])
def test_any_network_of_timm_is_an_encoder_for_segmentation(head, tmp_path, capsys):
    whole = build("timm/resnet10t", n_classes=5)
    path = _saved(tmp_path / "w.safetensors", whole)
    model = build(f"{head}/resnet10t", n_classes=4, weights=str(path)).eval()
    x = torch.randn(2, 3, 64, 96)
    assert model(x).shape == (2, 4, 64, 96)
    own = model.encoder.state_dict()
    assert own
    assert all(torch.equal(own[name], whole.state_dict()[name]) for name in own)
    assert "did not load fc.bias, fc.weight" in capsys.readouterr().out
    assert "dropout" in dict(model.named_children())


def test_weights_go_under_a_head_with_dropout(tmp_path):
    path = _saved(tmp_path / "w.safetensors", build("timm/resnet10t", n_classes=5))
    model = build("timm/resnet10t", n_classes=4, dropout=0.5, weights=str(path))
    assert torch.equal(model[0].conv1[0].weight, read_weights(path)["conv1.0.weight"])


class _Trap:
    def __reduce__(self):
        return (print, ("unpickled",))


def test_weights_are_never_unpickled(tmp_path, capsys):
    torch.save({"state_dict": _Trap()}, tmp_path / "w.pth")
    with pytest.raises(InputError, match="contains more than weights"):
        read_weights(tmp_path / "w.pth")
    assert capsys.readouterr().out == ""


@pytest.mark.slow
def test_the_public_resnet20_has_its_published_error(shared):
    """8.27 % on CIFAR-10's test images, as its author states."""
    data = load(DataOptions(name="cifar10", root=str(shared / "data" / "cifar10_train.zip"), normalise="imagenet"))
    weights = str(shared / "data" / "weights" / "resnet20-12fca82f.th")
    model = build_model(ModelOptions(name="resnet20", weights=weights), n_classes=10).eval()
    wrong = 0
    with torch.no_grad():
        for x, y, _ in batches(data.test, in_order(data.test, 500)):
            wrong += int((model(x).argmax(1) != y).sum())
    assert wrong == 827


@pytest.mark.parametrize(
    ("name", "kind", "own"),
    [("resnet18", "resnet18", "layer1.0.conv1.weight"), ("lraspp_mobilenet", "mobilenet_v3_large", None)],
)
def test_imagenet_weights_are_torchvisions_and_their_absence_is_told(name, kind, own, monkeypatch):
    torch.manual_seed(5)
    published = getattr(submodule("models"), kind)().state_dict()
    api = submodule("models._api")
    monkeypatch.setattr(api, "load_state_dict_from_url", lambda *_, **__: published)
    options = ModelOptions(name=name, stem="imagenet", pretrained=True)
    model = build_model(options, n_classes=7)
    weights = model.state_dict()
    key, theirs = (own, own) if own else ("net.backbone.0.0.weight", "features.0.0.weight")
    assert torch.equal(weights[key], published[theirs])
    assert model.eval()(torch.zeros(1, 3, 64, 64)).shape[1] == 7

    def offline(*_, **__):
        raise OSError("no route to host")

    monkeypatch.setattr(api, "load_state_dict_from_url", offline)
    with pytest.raises(InputError, match=r"cannot be fetched \(no route to host\): pass --model.pretrained false"):
        build_model(options, n_classes=7)
