"""Networks that train in seconds to minutes on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor, nn


class SmallCNN(nn.Module):
    """Two convolutions without batch normalisation, for 8x8 digits: its batches do not depend on one another."""

    def __init__(self, n_classes: int, channels: int = 1, dropout: float = 0.0) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU()
        )
        self.pool = nn.Sequential(nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(4), nn.Flatten())
        self.hidden = nn.Sequential(nn.Linear(512, 48), nn.ReLU())
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(48, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.dropout(self.hidden(self.pool(self.body(x)))))
        return logits


class PlainCNN(nn.Module):
    """Four normalised convolutions, 32 to 128 wide, the first at half the size: learns 10,000 small images by heart.

    It takes half of ResNet-8's time for an image.
    """

    def __init__(self, n_classes: int, channels: int = 3, dropout: float = 0.0) -> None:
        super().__init__()
        self.body = nn.Sequential(
            _normalised(channels, 32, 2),
            _normalised(32, 64),
            nn.MaxPool2d(2),
            _normalised(64, 128),
            nn.MaxPool2d(2),
            _normalised(128, 128),
        )
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(128, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.dropout(self.body(x).mean((2, 3))))
        return logits


def _normalised(inside: int, outside: int, stride: int = 1) -> nn.Sequential:
    convolution = nn.Conv2d(inside, outside, 3, stride, padding=1, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outside), nn.ReLU())


class MLP(nn.Module):
    """Two hidden layers, for points."""

    def __init__(self, n_classes: int, channels: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(channels, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(64, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.dropout(self.body(x)))
        return logits


class BasicBlock(nn.Module):
    """Two convolutions around a shortcut that needs no weights: every second pixel, new channels filled with 0."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.stride, self.new = stride, outside - inside

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        if self.new or self.stride > 1:
            x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.new // 2, self.new - self.new // 2))
        return F.relu(out + x)


class CifarResNet(nn.Module):
    """The thin ResNet of 6n+2 layers for 32x32 images: three stages of n blocks, 16, 32 and 64 wide.

    He et al., CVPR 2016, section 4.2. The names of its weights are those of the public CIFAR-10 models by Idelbayev.
    """

    def __init__(self, blocks: int, n_classes: int, channels: int = 3, dropout: float = 0.0) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = _stage(16, 16, blocks, 1)
        self.layer2 = _stage(16, 32, blocks, 2)
        self.layer3 = _stage(32, 64, blocks, 2)
        self.dropout = nn.Dropout(dropout)
        self.linear = nn.Linear(64, n_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(module.weight)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x))).mean((2, 3))
        logits: Tensor = self.linear(self.dropout(x))
        return logits


def _stage(inside: int, outside: int, blocks: int, stride: int) -> nn.Sequential:
    rest = [BasicBlock(outside, outside, 1) for _ in range(blocks - 1)]
    return nn.Sequential(BasicBlock(inside, outside, stride), *rest)


class WideBlock(nn.Module):
    """Normalise, activate, convolve, twice; where the width changes, the shortcut starts from the activation."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inside)
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, padding=1, bias=False)
        self.shortcut = nn.Conv2d(inside, outside, 1, stride, bias=False) if inside != outside else None

    def forward(self, x: Tensor) -> Tensor:
        active = F.relu(self.bn1(x))
        out = self.conv2(F.relu(self.bn2(self.conv1(active))))
        total: Tensor = out + (x if self.shortcut is None else self.shortcut(active))
        return total


class WideResNet(nn.Module):
    """The wide ResNet of Zagoruyko and Komodakis, BMVC 2016: depth 6n+4, the widths of CIFAR's times ``width``."""

    def __init__(self, depth: int, width: int, n_classes: int, channels: int = 3, dropout: float = 0.0) -> None:
        super().__init__()
        blocks = (depth - 4) // 6
        widths = [16, 16 * width, 32 * width, 64 * width]
        layers: list[nn.Module] = [nn.Conv2d(channels, 16, 3, padding=1, bias=False)]
        for stage, (inside, outside) in enumerate(pairwise(widths)):
            layers.append(WideBlock(inside, outside, 1 if stage == 0 else 2))
            layers += [WideBlock(outside, outside, 1) for _ in range(blocks - 1)]
        self.body = nn.Sequential(*layers, nn.BatchNorm2d(widths[3]), nn.ReLU())
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(widths[3], n_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.dropout(self.body(x).mean((2, 3))))
        return logits


def _thin(blocks: int) -> Callable[[int, int, float], nn.Module]:
    return lambda n_classes, channels, dropout: CifarResNet(blocks, n_classes, channels, dropout)


def _wide(depth: int, width: int) -> Callable[[int, int, float], nn.Module]:
    return lambda n_classes, channels, dropout: WideResNet(depth, width, n_classes, channels, dropout)


MODELS: dict[str, Callable[[int, int, float], nn.Module]] = {
    "small_cnn": SmallCNN,
    "plain_cnn": PlainCNN,
    "mlp": MLP,
    "resnet8": _thin(1),
    "resnet20": _thin(3),
    "resnet32": _thin(5),
    "resnet56": _thin(9),
    "wrn16_2": _wide(16, 2),
    "wrn28_10": _wide(28, 10),
}
