"""ResNet-18 to 101 (He et al., CVPR 2016) with the first and last layers that the protocols give them."""

from __future__ import annotations

from typing import Any

from torch import nn

from acls.errors import InputError
from acls.models import ModelOptions
from acls.models.heads import with_dropout
from acls.models.weights import fetch
from acls.vision import submodule

MODELS = ("resnet18", "resnet34", "resnet50", "resnet101")


def build(name: str, n_classes: int, channels: int, options: ModelOptions) -> nn.Module:
    """Build torchvision's network, its stride on the 3x3 convolution, with the stem of the options.

    ``cifar``: 3x3 first convolution at stride 1, no max-pooling, torch's default initialisation (Mukhoti et al.,
    NeurIPS 2020). ``tiny``: the same start, but pooled to 2x2, so that the last layer has 8192 inputs in ResNet-50,
    and convolutions initialised from N(0, 2 / (k^2 out)) (Liu et al., CVPR 2022). ``imagenet``: as it is.
    """
    if options.pretrained and (options.stem, channels) != ("imagenet", 3):
        raise InputError("ImageNet weights fit RGB images and the imagenet stem: pass --model.stem imagenet")
    model: Any = getattr(submodule("models"), name)()
    if options.pretrained:
        fetch(model, name)
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
