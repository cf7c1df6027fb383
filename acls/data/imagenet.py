"""ImageNet (ILSVRC 2012) and Tiny-ImageNet (Le and Yang, 2015; 200 classes, 64x64).

For ImageNet, both the validation and the test part come from the official validation images: 10 images per class for
validation and 40 for the test, as in Liu et al. (CALS, CVPR 2023). If their lists ``val_ind.txt`` and ``test_ind.txt``
are beside ``train/`` or in the given folder, exactly their images are used. The split of the ACLS paper is not known:
see the errata. For Tiny-ImageNet, the official validation images are the test part.
"""

import csv
import io

import torch

from acls.data import DataOptions
from acls.data.dataset import Data, Part
from acls.data.files import Files, needs_root
from acls.data.folder import classes_of, image_source, labelled
from acls.data.splits import divide, per_class
from acls.errors import InputError, require

LAYOUT = (
    "train/<wnid>/*.JPEG and val/<wnid>/*.JPEG, here or in ILSVRC/Data/CLS-LOC/; where val/ has no folders, with "
    "LOC_val_solution.csv, imagenet_2012_validation_synset_labels.txt (one wnid per line) or ILSVRC2012_devkit_t12/"
)
TINY_LAYOUT = (
    "tiny-imagenet-200 as downloaded (train/<wnid>/images/*.JPEG, val/images/*.JPEG, val/val_annotations.txt), "
    "or with val/<wnid>/*.JPEG; its folder, its parent, or a zip file; beside train/, val_ind.txt may list the numbers "
    "of the training images used for validation"
)
VAL_PER_CLASS = 10
_DEVKIT = "ILSVRC2012_devkit_t12/data/"


def load(options: DataOptions, seed: int) -> Data:
    """Load ImageNet; files are read on demand, so set data.workers to the number of cores."""
    if options.name == "tiny_imagenet":
        return _load_tiny(options, seed)
    if options.memory:
        raise InputError("ImageNet does not fit in memory: pass --data.memory false")
    files = Files(needs_root(options.root, "imagenet", LAYOUT), layout=LAYOUT)
    base = files.base("", "ILSVRC/Data/CLS-LOC/", "Data/CLS-LOC/")
    train, wnids = labelled(files, f"{base}train/", LAYOUT)
    place = f"{base}val/"
    held = labelled(files, place, LAYOUT, wnids)[0] if files.folders(place) else _flat(files, base, wnids)
    test, val = per_class(classes_of(held), VAL_PER_CLASS, seed=options.split_seed)
    for place in (above for above in ("", base) if f"{above}val_ind.txt" in files):
        val, test = (torch.tensor(files.numbers(f"{place}{part}_ind.txt", len(held))) for part in ("val", "test"))
    source, official = (image_source(files, part, options, 224) for part in (train, held))
    own = {"val": Part(official, val), "test": Part(official, test)}
    return divide(source, classes_of(train), options, seed, wnids, own=own)


def _flat(files: Files, base: str, wnids: tuple[str, ...]) -> list[tuple[str, int]]:
    """Return the validation images of a single folder with their classes, ordered as in folders per class."""
    images = files.images(f"{base}val/")
    for above in dict.fromkeys(("", base)):
        if f"{above}LOC_val_solution.csv" in files:
            rows = csv.reader(io.StringIO(files.read(f"{above}LOC_val_solution.csv").decode()))
            by_stem = {row[0]: row[1].split()[0] for row in rows if len(row) == 2 and row[1].startswith("n")}
            found = [by_stem.get(name.rsplit("/", 1)[-1].split(".")[0], "") for name in images]
        elif (synsets := f"{above}imagenet_2012_validation_synset_labels.txt") in files:
            found = [line.strip() for line in files.lines(synsets)]
        elif f"{above}{_DEVKIT}meta.mat" in files:
            read = require("scipy.io", extra="train").loadmat
            table = read(io.BytesIO(files.read(f"{above}{_DEVKIT}meta.mat")), squeeze_me=True)["synsets"]
            known = {int(row["ILSVRC2012_ID"]): str(row["WNID"]) for row in table}
            truth = files.lines(f"{above}{_DEVKIT}ILSVRC2012_validation_ground_truth.txt")
            found = [known.get(int(line), "") for line in truth]
        else:
            continue
        if len(found) != len(images) or not {*found} <= {*wnids}:
            raise InputError(f"the list of validation classes does not fit the {len(images)} images in {base}val/")
        # The folders per class are sorted by name, and so are the classes.
        return [(name, wnids.index(wnid)) for wnid, name in sorted(zip(found, images, strict=True))]
    raise InputError(f"{files.root / base / 'val'} contains no folder per class: expected {LAYOUT}")


def _load_tiny(options: DataOptions, seed: int) -> Data:
    """Decode all images into memory (1.4 GB); class ids follow the sorted wnids; gray images become RGB."""
    files = Files(needs_root(options.root, "tiny_imagenet", TINY_LAYOUT), layout=TINY_LAYOUT)
    base = files.base("", "tiny-imagenet-200/")
    train, wnids = labelled(files, f"{base}train/", TINY_LAYOUT)
    test = _annotated(files, base, wnids) or labelled(files, f"{base}val/", TINY_LAYOUT, wnids)[0]
    source, official = (image_source(files, items, options, 64) for items in (train, test))
    own, rest, y = {"test": Part(official)}, torch.arange(len(train)), classes_of(train)
    if f"{base}val_ind.txt" in files:
        val = torch.tensor(files.numbers(f"{base}val_ind.txt", len(train)))
        own, rest = {**own, "val": Part(source, val)}, rest[~torch.isin(rest, val)]
    return divide(source, y, options, seed, _words(files, base, wnids), own=own, rest=rest)


def _annotated(files: Files, base: str, wnids: tuple[str, ...]) -> list[tuple[str, int]]:
    """Return the validation images of the official list; an empty list if they are in one folder per class."""
    listed = f"{base}val/val_annotations.txt"
    if listed not in files or not files.images(f"{base}val/images/"):
        return []
    rows = (line.split("\t")[:2] for line in files.lines(listed))
    return [(f"{base}val/images/{name}", wnids.index(wnid)) for name, wnid in rows if wnid in wnids]


def _words(files: Files, base: str, wnids: tuple[str, ...]) -> tuple[str, ...]:
    if f"{base}words.txt" not in files:
        return wnids
    words = dict(line.split("\t", 1) for line in files.lines(f"{base}words.txt"))
    return tuple(words.get(wnid, wnid).split(",")[0] for wnid in wnids)
