"""Tiny data sets on disk in the layouts of the real ones."""

from pathlib import Path

import numpy as np
from PIL import Image


def image(path: Path, size=(40, 36), seed=0, mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(seed)
    shape = (size[1], size[0], 3) if mode == "RGB" else (size[1], size[0])
    Image.fromarray(random.integers(0, 255, shape, dtype=np.uint8), mode).save(path)


def mask(path: Path, size=(40, 36), classes=3, seed=0, void=255):
    path.parent.mkdir(parents=True, exist_ok=True)
    ids = np.random.default_rng(seed).integers(0, classes, (size[1], size[0]), dtype=np.uint8)
    ids[:2] = void
    picture = Image.fromarray(ids, "P")
    picture.putpalette([value for i in range(256) for value in (i, 255 - i, i)])
    picture.save(path)


def class_folders(root: Path, parts=("",), classes=("ant", "bee", "cat"), count=8, size=(40, 36)):
    for part in parts:
        for k, name in enumerate(classes):
            for i in range(count):
                image(root / part / name / f"{i}.png", size, seed=100 * k + i)
    return root


def masked_folders(root: Path, parts=("",), count=10, size=(40, 36)):
    for part in parts:
        for i in range(count):
            image(root / part / "images" / f"{i}.jpg", size, seed=i)
            mask(root / part / "masks" / f"{i}.png", size, seed=i)
    return root


def tiny_imagenet(root: Path, wnids=("n02", "n01", "n03"), count=10):
    for k, wnid in enumerate(wnids):
        for i in range(count):
            image(root / "train" / wnid / "images" / f"{wnid}_{i}.JPEG", (64, 64), 10 * k + i, "RGB" if i else "L")
    lines = []
    for i in range(6):
        image(root / "val" / "images" / f"val_{i}.JPEG", (64, 64), i)
        lines.append(f"val_{i}.JPEG\t{wnids[i % len(wnids)]}\t0\t0\t10\t10")
    (root / "val" / "val_annotations.txt").write_text("\n".join(lines))
    (root / "words.txt").write_text("n01\tgoldfish, Carassius\nn02\ttoad\nn03\tfrog\n")
    return root


def imagenet(root: Path, wnids=("n01", "n02"), train=8, val=12):
    for part, count in (("train", train), ("val", val)):
        class_folders(root, (part,), wnids, count, (80, 72))
    return root


def imagenet_unpacked(root: Path):
    """Return ImageNet as its archives are unpacked: validation images in one folder, with a list of their classes."""
    base = imagenet(root / "ILSVRC" / "Data" / "CLS-LOC")
    rows = ["ImageId,PredictionString"]
    for number, path in enumerate(sorted((base / "val").glob("*/*.png"), key=lambda path: path.name)):
        rows.append(f"ILSVRC2012_val_{number:08},{path.parent.name} 1 2 3 4")
        path.rename(base / "val" / f"ILSVRC2012_val_{number:08}.png")
    for folder in (base / "val").glob("n*"):
        folder.rmdir()
    (root / "LOC_val_solution.csv").write_text("\n".join(rows) + "\n")
    return root


def voc(root: Path, count=6, size=(60, 50)):
    base = root / "VOCdevkit" / "VOC2012"
    lists = {"train": range(count), "val": range(count, count + 3)}
    for i in range(count + 3):
        image(base / "JPEGImages" / f"2007_{i}.jpg", size, i)
        mask(base / "SegmentationClass" / f"2007_{i}.png", size, classes=21, seed=i)
    for name, numbers in lists.items():
        path = base / "ImageSets" / "Segmentation" / f"{name}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"2007_{i}\n" for i in numbers))
    return root


def cifar10_binary(root: Path, count=40):
    folder = root / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    for name in [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]:
        rows = random.integers(0, 256, (count, 3073), dtype=np.uint8)
        rows[:, 0] = np.arange(count) % 10
        rows.tofile(folder / name)
    (folder / "batches.meta.txt").write_text("\n".join(f"class{k}" for k in range(10)) + "\n")
    return root
