"""Every data set: items (x, y, index), known layouts, zips and folders alike, messages that name what is wrong."""

import hashlib
import io
import pickle
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from acls.data import CATALOGUE, DataOptions, load
from acls.data.dataset import Draw, batches, in_order
from acls.data.files import Files
from acls.data.given import gathered
from acls.data.synthetic import points, scenes
from acls.errors import InputError
from acls.vision import submodule
from tests.data.folders import cifar10_binary, class_folders, image, imagenet, mask, masked_folders, tiny_imagenet, voc

SMALL = {
    "digits": (None, {}),
    "synthetic": (None, {}),
    "synthetic_segmentation": (None, {"n_samples": 40}),
    "cifar10": (cifar10_binary, {}),
    "tiny_imagenet": (tiny_imagenet, {}),
    "imagenet": (imagenet, {"memory": False, "size": 32, "scale": 0.3, "jitter": 0.4, "erase": 0.25, "flip": True}),
    "voc": (voc, {"size": 32}),
    "folder": (class_folders, {"size": 16}),
    "segmentation_folder": (masked_folders, {"size": 16}),
}


def make(name, tmp_path, **more):
    build, options = SMALL[name]
    root = None if build is None else str(build(tmp_path / name))
    return load(DataOptions(**{"name": name, "root": root, **options, **more}))


@pytest.mark.parametrize("name", SMALL)
def test_items_are_input_target_and_index(name, tmp_path):
    data = make(name, tmp_path)
    for part in (data.train, data.val, data.test):
        x, y, index = part[len(part) - 1]
        assert x.dtype == torch.float32
        assert y.dtype == torch.int64
        assert int(index) == len(part) - 1
        assert y.ndim == (2 if data.segmentation else 0)
        labels = y[y != data.void]
        assert 0 <= int(labels.min()) <= int(labels.max()) < data.n_classes


@pytest.mark.parametrize("name", SMALL)
def test_training_validation_and_test_share_no_sample_of_a_source(name, tmp_path):
    data = make(name, tmp_path)
    if name == "voc":  # whose protocol validates on the test images
        assert torch.equal(data.val.chosen, data.test.chosen)
        data = make(name, tmp_path / "halved", halve=True)
        assert len(data.val) + len(data.test) == 3
    seen = [(id(part.source), number) for part in (data.train, data.val, data.test) for number in part.chosen.tolist()]
    assert len(seen) == len(set(seen))


@pytest.mark.parametrize("name", ["imagenet", "voc", "folder", "segmentation_folder"])
def test_files_are_augmented_by_sample_whatever_the_batch_or_the_worker(name, tmp_path):
    options = {"memory": False, "flip": True, "jitter": 0.3, "size": 32}
    data = make(name, tmp_path, **options)
    order = torch.arange(len(data.train))
    ((whole, _, _),) = batches(data.train, [Draw(order, 2)])
    draws = [Draw(order[i : i + 2], 2) for i in range(0, len(order), 2)]
    apart = torch.cat([x for x, _, _ in batches(data.train, draws, workers=1)])
    torch.testing.assert_close(apart, whole, rtol=0, atol=3e-7)  # torch 2.6 sums pixels in another order
    ((other, _, _),) = batches(data.train, [Draw(order, 3)])
    assert not torch.equal(other, whole)


@pytest.mark.parametrize("name", ["tiny_imagenet", "voc", "folder", "segmentation_folder"])
def test_a_zip_is_read_as_its_folder_is(name, tmp_path):
    build, options = SMALL[name]
    root = build(tmp_path / "plain")
    packed = tmp_path / "packed.zip"
    with zipfile.ZipFile(packed, "w") as archive:
        for path in sorted(root.rglob("*")):
            archive.write(path, path.relative_to(root))
    from_folder, from_zip = (load(DataOptions(name=name, root=str(place), **options)) for place in (root, packed))
    for one, other in ((from_folder.train, from_zip.train), (from_folder.test, from_zip.test)):
        for mine, theirs in zip(one.plain()[1], other.plain()[1], strict=True):
            assert torch.equal(mine, theirs)


def test_class_ids_of_tiny_imagenet_are_those_of_the_sorted_wnids(tmp_path):
    data = make("tiny_imagenet", tmp_path)
    assert data.names == ("goldfish", "toad", "frog")
    assert [int(data.test[i][1]) for i in range(3)] == [1, 0, 2]  # annotated n02, n01, n03


def test_shards_cover_a_part_once():
    part = load(DataOptions()).val
    seen = [int(i) for rank in range(3) for draw in in_order(part, 8, first=rank, step=3) for i in draw.samples]
    assert sorted(seen) == list(range(len(part)))


def test_labels_of_synthetic_data_are_drawn_from_the_known_probabilities():
    """A binned test: of points with confidence near p, the share p is right."""
    _, y, truth = points(20_000)
    confidence, predicted = truth.max(1)
    for low in np.arange(0.3, 1, 0.1):
        inside = (confidence > low) & (confidence <= low + 0.1)
        expected, seen = float(confidence[inside].mean()), float((predicted == y)[inside].float().mean())
        assert abs(expected - seen) < 4 * (0.25 / int(inside.sum())) ** 0.5
    x, maps, dense = scenes(20, size=16)
    assert x.shape == (20, 3, 16, 16)
    chance = dense.gather(1, maps[:, None]).mean()
    assert abs(float(chance) - float((dense**2).sum(1).mean())) < 0.02


def test_the_truth_of_a_part_follows_its_samples():
    data = load(DataOptions(name="synthetic"))
    assert data.test.truth.shape == (len(data.test), data.n_classes)
    _, _, truth = points(2000)
    assert torch.equal(data.val.truth, truth[data.val.chosen])


def test_n_train_takes_that_many(tmp_path):
    assert len(load(DataOptions(n_train=100)).train) == 100


@pytest.mark.parametrize("name", [name for name in CATALOGUE if not name.startswith(("digits", "synthetic", "given"))])
def test_a_missing_data_set_is_told_with_its_layout(name, tmp_path):
    memory = name != "imagenet"
    with pytest.raises(InputError, match="pass --root with"):
        load(DataOptions(name=name, memory=memory))
    with pytest.raises(InputError, match="expected"):
        load(DataOptions(name=name, root=str(tmp_path / "nowhere"), memory=memory))


def test_an_option_that_means_nothing_to_a_data_set_is_refused():
    with pytest.raises(InputError, match=r"data.size is 16, but digits does not use it"):
        load(DataOptions(name="digits", size=16))


def test_an_unknown_data_set_is_told_the_closest():
    with pytest.raises(InputError, match="did you mean 'cifar10'"):
        load(DataOptions(name="cifar_10"))


def test_a_corrupt_image_is_named_before_training(tmp_path):
    root = class_folders(tmp_path)
    (root / "bee" / "3.png").write_bytes(b"\x89PNG not really")
    with pytest.raises(InputError, match=r"bee/3.png .* cannot be decoded .* replace or remove it"):
        load(DataOptions(name="folder", root=str(root), size=16))


def test_a_truncated_image_is_named_by_a_worker_too(tmp_path):
    root = class_folders(tmp_path)
    path = root / "ant" / "0.png"
    path.write_bytes(path.read_bytes()[:60])
    data = load(DataOptions(name="folder", root=str(root), size=16, memory=False))
    everything = [Draw(torch.arange(len(data.train)), 0)]
    with pytest.raises(InputError, match=r"^ant/0.png of .* cannot be decoded"):
        list(batches(data.train, everything, workers=1))


def test_an_empty_class_folder_is_named(tmp_path):
    root = class_folders(tmp_path)
    (root / "dog").mkdir()
    with pytest.raises(InputError, match="dog contains no image: add some, or remove the class"):
        load(DataOptions(name="folder", root=str(root)))


def test_a_class_that_training_does_not_have_is_named(tmp_path):
    root = class_folders(tmp_path, parts=("train", "test"))
    image(root / "test" / "zebra" / "0.png")
    with pytest.raises(InputError, match="'zebra', which the training images do not have"):
        load(DataOptions(name="folder", root=str(root)))


@pytest.mark.parametrize("memory", [True, False])
def test_a_mask_of_another_size_is_named_before_training(tmp_path, memory):
    root = masked_folders(tmp_path)
    mask(root / "masks" / "4.png", size=(40, 35))
    with pytest.raises(InputError, match=r"images/4.jpg has size 40x36, but its mask masks/4.png has size 40x35"):
        load(DataOptions(name="segmentation_folder", root=str(root), memory=memory))


def test_a_class_id_outside_the_range_is_named(tmp_path):
    root = masked_folders(tmp_path)
    (root / "classes.txt").write_text("sky\nsea\n")
    with pytest.raises(InputError, match=r"masks/0.png contains the class id 2, outside 0..1; only 255 marks"):
        load(DataOptions(name="segmentation_folder", root=str(root), size=16))


def test_an_image_without_a_mask_is_named(tmp_path):
    root = masked_folders(tmp_path)
    (root / "masks" / "7.png").unlink()
    with pytest.raises(InputError, match=r"images/7.jpg has no mask"):
        load(DataOptions(name="segmentation_folder", root=str(root)))


def test_a_list_that_names_a_missing_image_is_told(tmp_path):
    root = voc(tmp_path)
    (root / "VOCdevkit/VOC2012/JPEGImages/2007_2.jpg").unlink()
    with pytest.raises(InputError, match=r"train.txt names .*2007_2.jpg, which is not in"):
        load(DataOptions(name="voc", root=str(root)))


def test_the_augmented_list_takes_its_own_masks(tmp_path):
    root = voc(tmp_path)
    base = root / "VOCdevkit/VOC2012"
    (base / "ImageSets/Segmentation/trainaug.txt").write_text("2007_1\n")
    mask(base / "SegmentationClassAug" / "2007_1.png", (60, 50), classes=5, seed=9)
    data = load(DataOptions(name="voc", root=str(root), size=32, train_list="trainaug"))
    assert len(data.train) == 1
    mask(base / "SegmentationClass" / "2007_1.png", (60, 50), classes=5, seed=9)
    (base / "ImageSets/Segmentation/train.txt").write_text("2007_1\n")
    plain = load(DataOptions(name="voc", root=str(root), size=32))
    assert torch.equal(data.train[0][1], plain.train[0][1])


def test_evaluation_of_voc_pads_to_a_square_with_void(tmp_path):
    data = make("voc", tmp_path, memory=False, size=512)
    x, y, _ = data.val[0]
    assert x.shape == (3, 480, 480)
    assert y.shape == (480, 480)
    assert bool((y[0] == 255).all())  # 60x50 becomes 480x400: 40 rows of padding above and below
    assert int((y[240] == 255).sum()) == 0


def test_gray_images_become_rgb(tmp_path):
    image(tmp_path / "gray.png", mode="L")
    pixels = np.asarray(Files(tmp_path, layout="").image("gray.png"))
    assert pixels.shape == (36, 40, 3)
    assert (pixels[..., 0] == pixels[..., 2]).all()


def test_the_sheets_of_cifar10_are_the_official_files(shared):
    """Re-assembled as the binary files they have the published md5 sums."""
    data = load(DataOptions(name="cifar10", root=str(shared / "data" / "cifar10_train.zip")))

    def md5(source, rows):
        labels = source.y[rows].to(torch.uint8)[:, None]
        stream = torch.cat([labels, source.x[rows].reshape(len(labels), -1)], 1)
        return hashlib.md5(stream.numpy().tobytes()).hexdigest()

    assert md5(data.train.source, slice(0, 10_000)) == "5dd7e06a14cb22eb9f671a540d1b7c25"
    assert md5(data.test.source, slice(0, 10_000)) == "803d5f7f4d78ea53de84dbe85f74fb6d"
    assert data.names[0] == "airplane"
    assert (len(data.train), len(data.val), len(data.test)) == (45_000, 5_000, 10_000)


def test_the_real_zips_load(shared):
    tiny = load(DataOptions(name="tiny_imagenet", root=str(shared / "data" / "tiny_imagenet_20c.zip"), size=32))
    assert (len(tiny.train), len(tiny.val), len(tiny.test), tiny.n_classes) == (9000, 1000, 1000, 20)
    voc_data = load(DataOptions(name="voc", root=str(shared / "data" / "voc2012_animals_small.zip"), size=32))
    assert (len(voc_data.train), len(voc_data.test)) == (120, 120)


def test_labels_of_a_sheet_are_not_unpickled(tmp_path):
    """An npz that holds objects is refused rather than run."""
    for part in ("train", "test"):
        content = io.BytesIO()
        np.savez(content, **{part: np.array([Path], dtype=object), "names": np.array(["a"])})
        with zipfile.ZipFile(tmp_path / f"cifar10_{part}.zip", "w") as archive:
            archive.writestr("labels.npz", content.getvalue())
    with pytest.raises(ValueError, match="pickle"):
        load(DataOptions(name="cifar10", root=str(tmp_path)))


def test_cifar100_binary_takes_the_fine_labels(tmp_path):
    folder = tmp_path / "cifar-100-binary"
    folder.mkdir()
    rows = np.zeros((200, 3074), dtype=np.uint8)
    rows[:, 0], rows[:, 1] = 7, np.arange(200) % 100
    rows[:, 2:1026] = 255
    for name in ("train.bin", "test.bin"):
        rows.tofile(folder / name)
    (folder / "fine_label_names.txt").write_text("\n".join(f"class{k}" for k in range(100)))
    data = load(DataOptions(name="cifar100", root=str(tmp_path)))
    assert data.n_classes == 100
    x, y, _ = data.test[42]
    assert int(y) == 42
    assert x.mean(dim=(1, 2)).tolist() == [1, 0, 0]  # red first, then green, then blue


def test_a_process_may_unpickle_a_part_that_holds_objects_of_torchvision(tmp_path):
    """It imports torchvision to do so, which fails where its compiled library does not fit, unless guarded."""
    data = make("folder", tmp_path, memory=False)
    data.train.source.items.append(submodule("transforms.v2").Identity())
    code = "import pickle, sys; print(len(pickle.load(sys.stdin.buffer)[0]))"
    done = subprocess.run(
        [sys.executable, "-c", code], input=pickle.dumps(data.train), capture_output=True, check=False
    )
    assert done.stdout.decode().strip() == "3", done.stderr.decode()


def test_any_label_may_be_void(tmp_path):
    for i in range(10):
        image(tmp_path / "images" / f"{i}.jpg", seed=i)
        mask(tmp_path / "masks" / f"{i}.png", seed=i, void=11)
    data = load(DataOptions(name="segmentation_folder", root=str(tmp_path), size=16, void=11, pad=2))
    assert (data.void, data.n_classes) == (11, 3)
    _, y, _ = data.train.__getitems__(Draw(torch.arange(len(data.train)), 0))
    assert set(y.unique().tolist()) == {0, 1, 2, 11}


def test_imagenet_lies_as_it_is_unpacked(tmp_path):
    """ILSVRC/Data/CLS-LOC with all validation images in one folder, sorted by any of the lists that there are."""
    plain = load(DataOptions(name="imagenet", root=str(imagenet(tmp_path / "sorted")), memory=False, size=32))
    base = imagenet(tmp_path / "flat" / "ILSVRC" / "Data" / "CLS-LOC")
    names = []
    for i, path in enumerate(sorted((base / "val").glob("*/*.png"), key=lambda path: path.name)):
        names.append((f"ILSVRC2012_val_{i:08}", path.parent.name))
        path.rename(base / "val" / f"{names[-1][0]}.png")
    for wnid in ("n01", "n02"):
        (base / "val" / wnid).rmdir()
    root = tmp_path / "flat"
    options = DataOptions(name="imagenet", root=str(root), memory=False, size=32)
    with pytest.raises(InputError, match="contains no folder per class: expected"):
        load(options)

    def same_images(data):
        for one, other in ((data.val, plain.val), (data.test, plain.test)):
            for (x, y, _), (their_x, their_y, _) in zip(one, other, strict=True):
                assert torch.equal(x, their_x)
                assert y == their_y

    table = "ImageId,PredictionString\n" + "".join(f"{name},{wnid} 1 2 3 4\n" for name, wnid in names)
    lists = {
        "LOC_val_solution.csv": table,
        "imagenet_2012_validation_synset_labels.txt": "".join(f"{wnid}\n" for _, wnid in names),
    }
    for name, text in lists.items():
        (root / name).write_text(text)
        same_images(load(options))
        (root / name).unlink()
    devkit = root / "ILSVRC2012_devkit_t12" / "data"
    devkit.mkdir(parents=True)
    kind = [("ILSVRC2012_ID", "O"), ("WNID", "O")]
    rows = np.array([(1, "n02"), (2, "n01")], dtype=kind)
    pytest.importorskip("scipy.io").savemat(devkit / "meta.mat", {"synsets": rows})
    truth = "".join(f"{1 if wnid == 'n02' else 2}\n" for _, wnid in names)
    (devkit / "ILSVRC2012_validation_ground_truth.txt").write_text(truth)
    same_images(load(options))
    for place in (root, base):
        for part, numbers in (("val", [3, 20]), ("test", [0, 1, 23])):
            (place / f"{part}_ind.txt").write_text("".join(f"{number}\n" for number in numbers))
        listed = load(options)
        assert (listed.val.chosen.tolist(), listed.test.chosen.tolist()) == ([3, 20], [0, 1, 23])
        assert [int(listed.val[i][1]) for i in range(2)] == [0, 1]
        for part in ("val", "test"):
            (place / f"{part}_ind.txt").unlink()


def test_tiny_imagenet_is_found_from_the_folder_above_with_its_own_split(tmp_path):
    tiny_imagenet(tmp_path / "tiny-imagenet-200")
    (tmp_path / "tiny-imagenet-200" / "val_ind.txt").write_text("4\n1\n")
    data = load(DataOptions(name="tiny_imagenet", root=str(tmp_path)))
    assert data.val.chosen.tolist() == [1, 4]
    assert not set(data.train.chosen.tolist()) & {1, 4}
    (tmp_path / "tiny-imagenet-200" / "val_ind.txt").write_text("4000\n")
    with pytest.raises(InputError, match="expected image numbers from 0 to 29"):
        load(DataOptions(name="tiny_imagenet", root=str(tmp_path)))


def test_a_list_may_pair_images_with_masks(tmp_path):
    root = voc(tmp_path)
    base = root / "VOCdevkit" / "VOC2012"
    options = DataOptions(name="voc", root=str(root), size=32)
    plain = load(options).train
    lines = [f"/JPEGImages/2007_{i}.jpg /SegmentationClass/2007_{i + 1}.png" for i in range(4)]
    (base / "ImageSets" / "Segmentation" / "trainaug.txt").write_text("\n".join(lines))
    paired = load(replace(options, train_list="trainaug")).train
    assert len(paired) == 4
    for i in range(4):  # each image with the mask of the next
        assert torch.equal(paired[i][0], plain[i][0])
        assert torch.equal(paired[i][1], plain[i + 1][1])
        assert not torch.equal(paired[i][1], plain[i][1])


def test_a_hostile_zip_is_refused(tmp_path):
    def packed(name, **members):
        with zipfile.ZipFile(tmp_path / name, "w", zipfile.ZIP_DEFLATED) as archive:
            for path, data in members.items():
                archive.writestr(zipfile.ZipInfo(path) if isinstance(data, str) else path, data)
        return Files(tmp_path / name, layout="images")

    for path in ("../outside.png", "/etc/outside.png"):
        with pytest.raises(InputError, match="a link or a path outside"):
            packed("path.zip", **{path: b"x"}).folders("")
    link = zipfile.ZipInfo("link.png")
    link.external_attr = 0o120777 << 16
    with zipfile.ZipFile(tmp_path / "link.zip", "w") as archive:
        archive.writestr(link, "/etc/passwd")
    with pytest.raises(InputError, match="a link or a path outside"):
        Files(tmp_path / "link.zip", layout="images").folders("")
    with pytest.raises(InputError, match="would unpack from"):
        packed("bomb.zip", **{"bomb.png": bytes(2**25)}).read("bomb.png")


def hugging_face(n):
    datasets = pytest.importorskip("datasets")
    pixels = np.random.default_rng(n).integers(0, 256, (n, 8, 8, 3), dtype=np.uint8)
    classes = datasets.ClassLabel(names=["cat", "dog", "emu"])
    features = datasets.Features({"img": datasets.Image(), "fine_label": classes})
    columns = {"img": [Image.fromarray(one) for one in pixels], "fine_label": [i % 3 for i in range(n)]}
    return datasets.Dataset.from_dict(columns, features=features), pixels


@pytest.mark.parametrize("form", [None, "torch"])
def test_a_hugging_face_data_set_is_data_and_its_labels_cost_no_image(form, monkeypatch):
    train, pixels = hugging_face(12)
    test, _ = hugging_face(6)
    import datasets

    read, decode = [], datasets.Image.decode_example
    monkeypatch.setattr(datasets.Image, "decode_example", lambda *args, **kw: read.append(1) or decode(*args, **kw))
    options = DataOptions(name="given", val=0.25)
    data = gathered(train.with_format(form), None, test.with_format(form), options=options, seed=1)
    assert data.names == ("cat", "dog", "emu")
    assert read == []
    assert len(data.train) + len(data.val) == 12
    x, y, _ = data.train[0]
    assert len(read) == 1
    number = int(data.train.chosen[0])
    assert torch.equal(x, torch.from_numpy(pixels[number]).movedim(-1, 0) / 255)
    assert int(y) == number % 3


def test_a_hugging_face_data_set_of_other_shapes_is_refused_or_made_to_fit():
    train, _ = hugging_face(12)
    import datasets

    def first(part):
        return gathered(part, part, part, options=DataOptions(name="given"), seed=1).train[0][0]

    with pytest.raises(InputError, match=r"got \(8, 8, 3\): move the channels to axis 0"):
        first(train.with_format("numpy"))
    with pytest.raises(InputError, match=r"got DatasetDict: pass its parts, as in train=data\['train'\]"):
        first(datasets.DatasetDict(train=train))
    with pytest.raises(InputError, match="got IterableDataset"):
        first(train.to_iterable_dataset())
    table = datasets.Dataset.from_dict({"x": np.eye(5)[:3].tolist(), "y": [0, 1, 2]})  # lists of Python floats
    assert torch.equal(first(table), torch.eye(5)[0])


def test_fewer_training_samples_are_taken_of_given_data_by_class():
    part = (np.zeros((30, 2), dtype=np.float32), np.arange(30) % 3)
    data = gathered(part, part, part, options=DataOptions(name="given", n_train=9), seed=1)
    assert torch.bincount(torch.cat([data.train[i][1][None] for i in range(len(data.train))])).tolist() == [3, 3, 3]
