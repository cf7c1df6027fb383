"""Networks that return logits for every pixel, at the size of the image."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from acls.models import ModelOptions
from acls.models.libraries import create, torchvision_model, with_dropout
from acls.vision import submodule


class SmallUNet(nn.Module):
    """A U-Net with three scales; features of the finer scale are concatenated (Ronneberger et al., MICCAI 2015)."""

    def __init__(self, n_classes: int, channels: int = 3, dropout: float = 0.0, width: int = 24) -> None:
        super().__init__()
        self.down1 = _double(channels, width)
        self.down2 = _double(width, 2 * width)
        self.bottom = _double(2 * width, 4 * width)
        self.up2 = _double(6 * width, 2 * width)
        self.up1 = _double(3 * width, width)
        self.head = with_dropout(nn.Conv2d(width, n_classes, 1), dropout)

    def forward(self, x: Tensor) -> Tensor:
        fine = self.down1(x)
        middle = self.down2(F.max_pool2d(fine, 2))
        coarse = self.bottom(F.max_pool2d(middle, 2))
        middle = self.up2(torch.cat([F.interpolate(coarse, middle.shape[-2:]), middle], 1))
        fine = self.up1(torch.cat([F.interpolate(middle, fine.shape[-2:]), fine], 1))
        logits: Tensor = self.head(fine)
        return logits


class SmallDeepLab(nn.Module):
    """Dilated convolutions at a quarter of the size, plus the image mean; logits are upsampled to the image size.

    The design follows DeepLabv3 (Chen et al., 2017), in a size that suits a CPU.
    """

    def __init__(self, n_classes: int, channels: int = 3, dropout: float = 0.0, width: int = 32) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            *_conv(channels, width, stride=2), *_conv(width, 2 * width), nn.MaxPool2d(2), *_conv(2 * width, 2 * width)
        )
        self.dilated = nn.Sequential(*_conv(2 * width, 4 * width, dilation=2), *_conv(4 * width, 4 * width, dilation=4))
        self.image = nn.Conv2d(4 * width, 4 * width, 1)
        self.head = with_dropout(nn.Conv2d(4 * width, n_classes, 1), dropout)

    def forward(self, x: Tensor) -> Tensor:
        features = self.dilated(self.stem(x))
        features = F.relu(features + self.image(features.mean((2, 3), keepdim=True)))
        logits: Tensor = F.interpolate(self.head(features), x.shape[-2:], mode="bilinear")
        return logits


class Main(nn.Module):
    """A torchvision segmentation network that returns its main output instead of a dict."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.net(x)["out"]
        return logits


class OnEncoder(nn.Module):
    """Any timm network as the encoder, with the LR-ASPP or DeepLabV3 head of torchvision on its features.

    LR-ASPP (Howard et al., ICCV 2019) uses the features at an eighth of the image size and the last features. DeepLabV3
    (Chen et al., 2017) uses the last features. Logits are upsampled to the image size.
    """

    def __init__(self, head: str, encoder: Any, n_classes: int, dropout: float) -> None:
        super().__init__()
        self.encoder, self.low = encoder, head == "lraspp"
        *_, low, high = encoder.feature_info.channels()
        self.head: nn.Module = HEADS[head](low, high, n_classes)
        self.dropout = nn.Dropout2d(dropout)

    def forward(self, x: Tensor) -> Tensor:
        *_, low, high = self.encoder(x)
        high = self.dropout(high)
        logits: Tensor = self.head({"low": low, "high": high} if self.low else high)
        return F.interpolate(logits, x.shape[-2:], mode="bilinear", align_corners=False)


HEADS: dict[str, Callable[[int, int, int], nn.Module]] = {
    "lraspp": lambda low, high, n: submodule("models.segmentation.lraspp").LRASPPHead(low, high, n, 128),
    "deeplabv3": lambda _, high, n: submodule("models.segmentation.deeplabv3").DeepLabHead(high, n),
}


def on_encoder(name: str, n_classes: int, channels: int, options: ModelOptions) -> nn.Module:
    """Build a segmentation network on a timm encoder: ``lraspp/NAME`` or ``deeplabv3/NAME``."""
    head, _, name = name.partition("/")
    common = {"pretrained": options.pretrained, "in_chans": channels, "features_only": True}
    strides = create(name.removeprefix("timm/"), **(common | {"pretrained": False})).feature_info.reduction()  # type: ignore[union-attr,operator]
    places = [place for place, stride in enumerate(strides) if stride <= 8]
    encoder = create(name.removeprefix("timm/"), **common, out_indices=(places[-1] if places else 0, len(strides) - 1))
    return OnEncoder(head, encoder, n_classes, options.dropout)


def _conv(inside: int, outside: int, stride: int = 1, dilation: int = 1) -> list[nn.Module]:
    conv = nn.Conv2d(inside, outside, 3, stride, padding=dilation, dilation=dilation, bias=False)
    return [conv, nn.BatchNorm2d(outside), nn.ReLU(inplace=True)]


def _double(inside: int, outside: int) -> nn.Sequential:
    return nn.Sequential(*_conv(inside, outside), *_conv(outside, outside))


def _deeplabv3(n_classes: int, channels: int, options: ModelOptions) -> nn.Module:
    net = torchvision_model("deeplabv3_resnet50", options.pretrained, weights=None, num_classes=n_classes)
    if channels != 3:
        net.backbone.conv1 = nn.Conv2d(channels, 64, 7, 2, padding=3, bias=False)
    net.classifier[4] = with_dropout(net.classifier[4], options.dropout)
    return Main(net)


def _lraspp(n_classes: int, channels: int, options: ModelOptions) -> nn.Module:
    net = torchvision_model("lraspp_mobilenet_v3_large", options.pretrained, weights=None, num_classes=n_classes)
    if channels != 3:
        net.backbone["0"][0] = nn.Conv2d(channels, 16, 3, 2, padding=1, bias=False)
    net.classifier.high_classifier = with_dropout(net.classifier.high_classifier, options.dropout)
    return Main(net)


MODELS: dict[str, Callable[[int, int, ModelOptions], nn.Module]] = {
    "small_unet": lambda n_classes, channels, options: SmallUNet(n_classes, channels, options.dropout),
    "small_deeplab": lambda n_classes, channels, options: SmallDeepLab(n_classes, channels, options.dropout),
    "lraspp_mobilenet": _lraspp,
    "deeplabv3_resnet50": _deeplabv3,
}
