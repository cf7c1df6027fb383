"""Small versions of the paper's experiments that take seconds or minutes on a CPU, and recipes for your own data."""

from dataclasses import replace

from acls.data import DataOptions
from acls.models import ModelOptions
from acls.recipes.recipe import STREAMED, OptimOptions, Recipe, ScheduleOptions, acls_with

_COSINE = ScheduleOptions(name="cosine")


def digits_cnn() -> Recipe:
    """The embedded digits, two convolutions, 20 epochs: seconds on a CPU. ``acls train digits_cnn --loss ACLS``"""
    return Recipe(
        data=DataOptions(name="digits", val=0.2),
        model=ModelOptions(name="small_cnn"),
        loss=acls_with(6.0),
        schedule=_COSINE,
        epochs=20,
        batch=64,
    )


def digits_few() -> Recipe:
    """100 of the digits, ten per class, 30 epochs: little data, so that cross-entropy grows overconfident. The demo.

    The settings were chosen with cross-entropy only: accuracy 87 %, mean confidence 93 %, ECE 6.6 % (n = 539, 3 seeds).
    ``acls train digits_few --loss CE``
    """
    return replace(digits_cnn(), data=DataOptions(name="digits", val=0.2, n_train=100), epochs=30, batch=32)


def synthetic_mlp() -> Recipe:
    """Points with known probabilities, two hidden layers: true calibration is known. ``acls train synthetic_mlp``"""
    data, model = DataOptions(name="synthetic"), ModelOptions(name="mlp")
    return replace(digits_cnn(), data=data, model=model, optim=OptimOptions(lr=0.05))


def synthetic_unet() -> Recipe:
    """Images with known pixel probabilities, a small encoder-decoder. ``acls train synthetic_unet``"""
    return replace(
        synthetic_mlp(),
        data=DataOptions(name="synthetic_segmentation", n_samples=200),
        model=ModelOptions(name="small_unet"),
        epochs=5,
        batch=16,
        eval_batch=32,
    )


def cifar10_mini() -> Recipe:
    """10,000 images of CIFAR-10, four convolutions, 12 epochs: under two minutes on one core.

    There is no augmentation, so that the network memorises its images and becomes overconfident, as large networks do
    over hundreds of epochs.
    ``acls train cifar10_mini --root cifar10_train.zip --loss ACLS``
    """
    return replace(
        digits_cnn(),
        data=DataOptions(name="cifar10", val=0.05, n_train=10_000, normalise="cifar10"),
        model=ModelOptions(name="plain_cnn"),
        epochs=12,
        drop_last=True,
    )


def tiny_imagenet_mini() -> Recipe:
    """Tiny-ImageNet, 20 of its classes or all, at 32x32, four convolutions, 12 epochs: two minutes with 20.

    ``acls train tiny_imagenet_mini --root tiny_imagenet_20c.zip --loss ACLS``
    """
    return replace(
        cifar10_mini(),
        data=DataOptions(name="tiny_imagenet", size=32, n_train=10_000, normalise="imagenet"),
        loss=acls_with(10.0),
    )


def voc_mini() -> Recipe:
    """PASCAL VOC at 64x64, a small DeepLab, 80 epochs: two minutes on one core with 120 images.

    Unlike in the paper's protocol, the test and validation images are different, so that calibrators can be judged.
    With little augmentation, the network memorises its images and becomes overconfident, as in `cifar10_mini`.

    ``acls train voc_mini --root voc2012_animals_small.zip --loss ACLS``
    """
    return replace(
        cifar10_mini(),
        data=DataOptions(name="voc", halve=True, size=64, flip=True, normalise="imagenet"),
        model=ModelOptions(name="small_deeplab"),
        loss=acls_with(10.0),
        optim=OptimOptions(lr=0.05),
        epochs=80,
        batch=8,
        eval_batch=16,
        # Not the foreground mIoU: it is higher for a network that guesses at random than for one that learns slowly.
        select="miou",
    )


def custom() -> Recipe:
    """Your images, a folder per class, with any of timm's networks.

    ``acls train custom --root DIR --model timm/resnet18 --model.pretrained true --loss ACLS``
    """
    return Recipe(
        data=replace(STREAMED, name="folder", size=224, scale=0.25, workers=2),
        model=ModelOptions(name="timm/resnet18"),
        loss=acls_with(10.0),
        optim=OptimOptions(lr=0.01),
        schedule=_COSINE,
        epochs=30,
        batch=32,
        eval_batch=64,
    )


def custom_segmentation() -> Recipe:
    """Your images and masks, with LR-ASPP on MobileNetV3. ``acls train custom_segmentation --root DIR --loss ACLS``"""
    return replace(
        custom(),
        data=replace(STREAMED, name="segmentation_folder", size=256, jitter=0.3, workers=2),
        model=ModelOptions(name="lraspp_mobilenet"),
        batch=8,
        eval_batch=8,
        drop_last=True,
        select="miou",
    )
