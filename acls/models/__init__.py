"""Networks by name: ``build_model(ModelOptions(name="resnet50", stem="tiny"), n_classes=200, channels=3)``.

``forward(x)`` returns logits ``(N, K)`` or, for segmentation, ``(N, K, H, W)``; never a dict.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from acls.errors import InputError, suggest
from acls.options import option

if TYPE_CHECKING:
    from torch import nn

CATALOGUE = {
    "small_cnn": "two convolutions for digits, 0.03 M parameters",
    "plain_cnn": "four normalised convolutions for 32x32 images, 0.24 M parameters",
    "mlp": "two hidden layers for points",
    "resnet8": "CIFAR ResNet, 0.08 M parameters",
    "resnet20": "CIFAR ResNet, 0.27 M parameters (He et al., CVPR 2016)",
    "resnet32": "CIFAR ResNet, 0.46 M parameters",
    "resnet56": "CIFAR ResNet, 0.85 M parameters",
    "wrn16_2": "wide ResNet, 0.7 M parameters (Zagoruyko and Komodakis, BMVC 2016)",
    "wrn28_10": "wide ResNet, 36.5 M parameters",
    **dict.fromkeys(("resnet18", "resnet34"), "ResNet with a CIFAR, Tiny-ImageNet or ImageNet stem"),
    **dict.fromkeys(("resnet50", "resnet101"), "ResNet with a CIFAR, Tiny-ImageNet or ImageNet stem: the paper's"),
    "small_unet": "encoder-decoder for segmentation on a CPU, 0.3 M parameters",
    "small_deeplab": "dilated convolutions for segmentation on a CPU, 0.3 M parameters",
    "lraspp_mobilenet": "LR-ASPP on MobileNetV3, 3.2 M parameters (Howard et al., ICCV 2019)",
    "deeplabv3_resnet50": "DeepLabV3 on ResNet-50, used in the paper for segmentation",
}


@dataclass(frozen=True)
class ModelOptions:
    """Options for a network and its initial weights."""

    name: str = option(
        "small_cnn",
        "network: one of `acls recipes --models`, timm/NAME for any timm model, lraspp/NAME or deeplabv3/NAME for "
        "segmentation with any timm model, or your own: package.module:Class or path/to/file.py:Class",
    )
    stem: str = option("cifar", "first layers of resnet18 to 101", choices=("cifar", "tiny", "imagenet"))
    dropout: float = option(0.0, "dropout before the last layer; MC dropout uses it too", within="[0, 1)")
    pretrained: bool = option(False, "start from ImageNet weights, downloaded if they are not cached")
    weights: str | None = option(
        None, "start from this weights file; a head for another number of classes is not loaded"
    )
    arguments: dict[str, Any] = option({}, "arguments of your own model, set by --model.NAME VALUE")
    source: str = option("", "hash of your own model's source: set when a run starts, checked on resume")


def build_model(
    options: ModelOptions,
    *,
    n_classes: int,
    channels: int = 3,
    say: Callable[[str], None] = print,
    factory: Callable[..., Any] | None = None,
) -> nn.Module:
    """Build a network with new or loaded weights; ``channels`` counts input channels, or coordinates of a point.

    ``say`` is called with a message if weights of a file were not loaded because they are for other classes.
    ``factory`` creates the user's own network, if it is passed as an object and not by name.
    """
    from acls.models import libraries, own, segmentation, small, weights

    name = options.name
    if options.weights is not None:
        options = replace(options, pretrained=False)
    if own.is_own(name):
        model = own.build(options, n_classes, channels, factory)
    elif options.arguments:
        raise InputError(f"--model.{next(iter(options.arguments))}: {name} takes no arguments")
    elif name.startswith("timm/"):
        model = libraries.timm_model(name.removeprefix("timm/"), n_classes, channels, options)
    elif name.partition("/")[0] in segmentation.HEADS:
        model = segmentation.on_encoder(name, n_classes, channels, options)
    elif name in small.MODELS:
        model = small.MODELS[name](n_classes, channels, options.dropout)
    elif name in libraries.RESNETS:
        model = libraries.resnet(name, n_classes, channels, options)
    elif name in segmentation.MODELS:
        model = segmentation.MODELS[name](n_classes, channels, options)
    else:
        others = "timm/NAME is any timm model, lraspp/NAME and deeplabv3/NAME segment with one"
        raise InputError(f"there is no model {name!r} ({others}){suggest(name, CATALOGUE)}")
    if options.weights is not None and (line := weights.load_into(model, options.weights, n_classes)):
        say(line)
    return model
