"""Networks that train in seconds to minutes on a CPU."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor, nn


def _stacked(**parts: nn.Module) -> nn.Sequential:
    """Return a sequence of named modules."""
    return nn.Sequential(OrderedDict(parts))


def _classifier(width: int, n_classes: int, dropout: float, **parts: nn.Module) -> nn.Sequential:
    """Return a sequence of named modules, then dropout and a linear layer on ``width`` features."""
    return _stacked(**parts, dropout=nn.Dropout(dropout), head=nn.Linear(width, n_classes))


def _mean() -> nn.Sequential:
    """Return a module that computes the mean of each channel."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())


def _conv(inside: int, outside: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inside, outside, 3, stride, padding=1, bias=False)


def small_cnn(n_classes: int, channels: int = 1, dropout: float = 0.0) -> nn.Module:
    """Build two convolutions for 8x8 digits. Without batch normalisation, samples of a batch are independent."""
    first, second = nn.Conv2d(channels, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1)
    body = nn.Sequential(first, nn.ReLU(), second, nn.ReLU())
    pool = nn.Sequential(nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(4), nn.Flatten())
    hidden = nn.Sequential(nn.Linear(512, 48), nn.ReLU())
    return _classifier(48, n_classes, dropout, body=body, pool=pool, hidden=hidden)


def plain_cnn(n_classes: int, channels: int = 3, dropout: float = 0.0) -> nn.Module:
    """Build four normalised convolutions, 32 to 128 wide; the first halves the image size.

    The network is large enough to memorise 10,000 small images. It takes half the time of ResNet-8 per image.
    """

    def layer(inside: int, outside: int, stride: int = 1) -> nn.Sequential:
        return nn.Sequential(_conv(inside, outside, stride), nn.BatchNorm2d(outside), nn.ReLU())

    body = nn.Sequential(
        layer(channels, 32, 2), layer(32, 64), nn.MaxPool2d(2), layer(64, 128), nn.MaxPool2d(2), layer(128, 128)
    )
    return _classifier(128, n_classes, dropout, body=body, pool=_mean())


def mlp(n_classes: int, channels: int, dropout: float = 0.0) -> nn.Module:
    """Build a network with two hidden layers, for points."""
    body = nn.Sequential(nn.Linear(channels, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
    return _classifier(64, n_classes, dropout, body=body)


class BasicBlock(nn.Module):
    """Two convolutions and a shortcut without weights, which takes every second pixel and fills new channels with 0."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = _conv(inside, outside, stride), nn.BatchNorm2d(outside)
        self.conv2, self.bn2 = _conv(outside, outside), nn.BatchNorm2d(outside)
        self.stride, self.new = stride, outside - inside

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        if self.new or self.stride > 1:
            x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.new // 2, self.new - self.new // 2))
        return F.relu(out + x)


def thin_resnet(blocks: int, n_classes: int, channels: int = 3, dropout: float = 0.0) -> nn.Module:
    """Build the thin ResNet of 6n+2 layers for 32x32 images: three stages of n blocks, 16, 32 and 64 wide.

    He et al., CVPR 2016, section 4.2. The weights have the same names as in the public CIFAR-10 models by Idelbayev.
    """

    def stage(inside: int, outside: int, stride: int) -> nn.Sequential:
        rest = [BasicBlock(outside, outside, 1) for _ in range(blocks - 1)]
        return nn.Sequential(BasicBlock(inside, outside, stride), *rest)

    model = _stacked(
        conv1=_conv(channels, 16),
        bn1=nn.BatchNorm2d(16),
        relu=nn.ReLU(),
        layer1=stage(16, 16, 1),
        layer2=stage(16, 32, 2),
        layer3=stage(32, 64, 2),
        pool=_mean(),
        dropout=nn.Dropout(dropout),
        linear=nn.Linear(64, n_classes),
    )
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight)
    return model


class WideBlock(nn.Module):
    """Normalisation, activation and convolution, twice. If the width changes, the shortcut uses the activation."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(inside), _conv(inside, outside, stride)
        self.bn2, self.conv2 = nn.BatchNorm2d(outside), _conv(outside, outside)
        self.shortcut = nn.Conv2d(inside, outside, 1, stride, bias=False) if inside != outside else None

    def forward(self, x: Tensor) -> Tensor:
        active = F.relu(self.bn1(x))
        out = self.conv2(F.relu(self.bn2(self.conv1(active))))
        total: Tensor = out + (x if self.shortcut is None else self.shortcut(active))
        return total


def wide_resnet(depth: int, width: int, n_classes: int, channels: int = 3, dropout: float = 0.0) -> nn.Module:
    """Build the wide ResNet (Zagoruyko and Komodakis, BMVC 2016): depth 6n+4, CIFAR widths times ``width``."""
    widths = [16, 16 * width, 32 * width, 64 * width]
    layers: list[nn.Module] = [_conv(channels, 16)]
    for stage, (inside, outside) in enumerate(pairwise(widths)):
        layers.append(WideBlock(inside, outside, 1 if stage == 0 else 2))
        layers += [WideBlock(outside, outside, 1) for _ in range((depth - 4) // 6 - 1)]
    body = nn.Sequential(*layers, nn.BatchNorm2d(widths[3]), nn.ReLU())
    model = _classifier(widths[3], n_classes, dropout, body=body, pool=_mean())
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return model


MODELS: dict[str, Callable[[int, int, float], nn.Module]] = {
    "small_cnn": small_cnn,
    "plain_cnn": plain_cnn,
    "mlp": mlp,
    **{f"resnet{6 * blocks + 2}": partial(thin_resnet, blocks) for blocks in (1, 3, 5, 9)},
    "wrn16_2": partial(wide_resnet, 16, 2),
    "wrn28_10": partial(wide_resnet, 28, 10),
}
