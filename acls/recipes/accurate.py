"""Accurate networks that become overconfident, as in the paper, but are affordable on a CPU. Most are fine-tuned.

Schedules were chosen with cross-entropy only. Margins are those of the paper. Times are for one core.
"""

from dataclasses import replace

from acls.data import DataOptions
from acls.models import ModelOptions
from acls.recipes.paper import cifar10_resnet50
from acls.recipes.recipe import OptimOptions, Recipe, ScheduleOptions
from acls.recipes.small import custom

LITE = "efficientnet_lite0.safetensors"
_COSINE = ScheduleOptions(name="cosine", per="step")
_ADAMW = OptimOptions(name="adamw", lr=1e-3, weight_decay=1e-2, decay_all=False)


def finetune() -> Recipe:
    """Your images, a folder per class, on a network of timm's with ImageNet weights, from a file or fetched; 5 epochs.

    ``acls train finetune --root DIR --model timm/NAME --model.weights FILE --data.normalise imagenet --loss ACLS``
    """
    return replace(
        custom(),
        model=ModelOptions(name="timm/resnet18", pretrained=True),
        optim=_ADAMW,
        schedule=_COSINE,
        epochs=5,
        batch=64,
        eval_batch=256,
        drop_last=True,
    )


def tiny_imagenet_finetune() -> Recipe:
    """Tiny-ImageNet, 20 of its classes or all, EfficientNet-Lite0 with ImageNet weights at 64x64, 5 epochs: 11 minutes.

    ImageNet's training images may contain these pictures.
    ``acls train tiny_imagenet_finetune --root tiny_imagenet_20c.zip --model.weights efficientnet_lite0.safetensors``
    """
    return replace(
        finetune(),
        data=DataOptions(name="tiny_imagenet", pad=4, flip=True, normalise="lite"),
        model=ModelOptions(name="timm/tf_efficientnet_lite0", weights=LITE),
    )


def cifar10_finetune() -> Recipe:
    """CIFAR-10, a finished ResNet-20 (91.73 %) mended for 2 epochs at a small rate: 8 minutes.

    The public weights were trained on all 50,000 training images, including the held-out ones. Therefore half of the
    test images are used for validation and half for the test; training uses the 45,000 images of the paper.
    ``acls train cifar10_finetune --root cifar10_train.zip --model.weights resnet20-12fca82f.th --loss ACLS``
    """
    same = cifar10_resnet50()
    return replace(
        same,
        data=replace(same.data, halve=True, normalise="imagenet"),
        model=ModelOptions(name="resnet20", weights="resnet20-12fca82f.th"),
        optim=OptimOptions(name="sgd", lr=0.01, weight_decay=1e-4),
        schedule=_COSINE,
        epochs=2,
    )


def cifar10_resnet20() -> Recipe:
    """CIFAR-10, ResNet-20 from scratch on the paper's 45,000 images, crop and flip, 12 epochs: 16 minutes.

    ``acls train cifar10_resnet20 --root cifar10_train.zip --loss ACLS``
    """
    return replace(
        cifar10_resnet50(),
        model=ModelOptions(name="resnet20"),
        optim=OptimOptions(name="sgd", lr=0.1, nesterov=True, weight_decay=5e-4),
        schedule=replace(_COSINE, warmup=1),
        epochs=12,
        batch=64,
    )


def voc_finetune() -> Recipe:
    """PASCAL VOC at 224x224, LR-ASPP on EfficientNet-Lite0 with ImageNet weights, 25 epochs.

    Half of the official validation images are used for validation and half for the test, so that calibrators are judged
    on images that they have not seen.
    ``acls train voc_finetune --root voc2012_animals_320.zip --model.weights efficientnet_lite0.safetensors``
    """
    return replace(
        finetune(),
        data=DataOptions(name="voc", halve=True, size=224, flip=True, normalise="lite"),
        model=ModelOptions(name="lraspp/tf_efficientnet_lite0", weights=LITE),
        optim=replace(_ADAMW, lr=5e-4),
        epochs=25,
        batch=8,
        eval_batch=16,
        select="miou",
    )
