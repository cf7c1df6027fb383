"""Networks of torchvision and timm with a new head for the classes, and optional dropout before it."""

from __future__ import annotations

from typing import Any

from torch import nn

from acls.errors import InputError
from acls.models import ModelOptions
from acls.vision import submodule, timm

RESNETS = ("resnet18", "resnet34", "resnet50", "resnet101")


def with_dropout(head: nn.Module, rate: float) -> nn.Module:
    """Return the head, with dropout before it if ``rate`` is positive."""
    return nn.Sequential(nn.Dropout(rate), head) if rate else head


class WithHead(nn.Sequential):
    """An encoder followed by dropout and a last layer."""

    def __init__(self, encoder: nn.Module, head: nn.Module, dropout: float) -> None:
        super().__init__(encoder, nn.Dropout(dropout), head)

    @property
    def encoder(self) -> nn.Module:
        """The encoder, into which weights from a file are loaded."""
        return self[0]


def timm_model(name: str, n_classes: int, channels: int, options: ModelOptions) -> nn.Module:
    """Build any timm network with a head for the given number of classes.

    With dropout, the head is ours: many timm networks apply dropout as a function, which MC dropout cannot switch on.
    """
    classes = 0 if options.dropout else n_classes
    model = create(name, pretrained=options.pretrained, num_classes=classes, in_chans=channels)
    if options.dropout:
        return WithHead(model, nn.Linear(int(model.num_features), n_classes), options.dropout)  # type: ignore[arg-type]
    return model


def create(name: str, **settings: Any) -> nn.Module:
    """Create a timm network; for an unknown name, raise an error that lists similar names."""
    library = timm()
    if not library.is_model(name):
        close = library.list_models(f"*{name.split('.')[0].split('_')[0]}*")[:5]
        hint = f": choose from {', '.join(close)}" if close else ""
        raise InputError(f"timm has no model {name!r}{hint}")
    model: nn.Module = library.create_model(name, **settings)
    return model


def torchvision_model(name: str, pretrained: bool, **settings: Any) -> Any:
    """Create a torchvision network with or without ImageNet weights (for segmentation: of the backbone).

    The weights are read from the local cache, or downloaded.
    """
    room = submodule("models.segmentation" if settings else "models")
    key = "weights_backbone" if settings else "weights"
    try:
        return getattr(room, name)(**{key: "IMAGENET1K_V1" if pretrained else None}, **settings)
    except OSError as error:
        raise InputError(
            f"ImageNet weights of {name} cannot be fetched ({error}): pass --model.pretrained false, or "
            "--model.weights FILE"
        ) from error


def resnet(name: str, n_classes: int, channels: int, options: ModelOptions) -> nn.Module:
    """Build a torchvision ResNet, with the stride on the 3x3 convolution and the stem given by the options.

    ``cifar``: 3x3 first convolution at stride 1, no max-pooling, torch's default initialisation (Mukhoti et al.,
    NeurIPS 2020). ``tiny``: the same first layers, but features are pooled to 2x2, so that the last layer of ResNet-50
    has 8192 inputs, and convolutions are initialised from N(0, 2 / (k^2 out)) (Liu et al., CVPR 2022). ``imagenet``:
    the unchanged network.
    """
    if options.pretrained and (options.stem, channels) != ("imagenet", 3):
        raise InputError("ImageNet weights need RGB images and the imagenet stem: pass --model.stem imagenet")
    model = torchvision_model(name, options.pretrained)
    width: int = model.fc.in_features
    if options.stem != "imagenet":
        model.conv1 = nn.Conv2d(channels, 64, 3, padding=1, bias=False)
        model.maxpool = nn.Identity()
    elif channels != 3:
        model.conv1 = nn.Conv2d(channels, 64, 7, 2, padding=3, bias=False)
    if options.stem == "tiny":
        nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")
        model.avgpool = nn.AdaptiveAvgPool2d(2)
        width *= 4
    elif options.stem == "cifar":
        for module in model.modules():
            if isinstance(module, nn.Conv2d):
                module.reset_parameters()
    model.fc = with_dropout(nn.Linear(width, n_classes), options.dropout)
    built: nn.Module = model
    return built
