"""Batched augmentation: what it does to an image, and that it does the same to a sample in every batch."""

import colorsys
from dataclasses import replace

import pytest
import torch

from acls.data import DataOptions, load
from acls.data.augment import HUE, SATURATION, VALUE, Augment, crop, normalised, scaled, shift_hsv
from acls.data.dataset import Draw, InMemory, Part
from acls.data.images import resized_crop
from tests.data.folders import class_folders


def images(n=12, size=8):
    return torch.arange(n * 3 * size * size, dtype=torch.int64).remainder(251).to(torch.uint8).reshape(n, 3, size, size)


def test_a_crop_in_the_middle_of_the_padding_is_the_image():
    x = images()
    middle = torch.full((12,), 2)
    assert torch.equal(crop(x, middle, middle, 2, 0), x)


def test_a_crop_at_the_corner_shifts_the_image_and_fills_the_rest():
    x = images()
    zero = torch.zeros(12, dtype=torch.int64)
    shifted = crop(x, zero, zero, 2, 7)
    assert torch.equal(shifted[:, :, 2:, 2:], x[:, :, :-2, :-2])
    assert bool((shifted[:, :, :2] == 7).all())
    assert bool((shifted[:, :, :, :2] == 7).all())


def test_an_image_is_augmented_the_same_way_in_every_batch():
    augment = Augment(DataOptions(pad=2, flip=True, jitter=0.4, erase=0.5))
    part = Part(InMemory(images(), torch.arange(12), augment), torch.arange(12), seed=3)
    whole, _, _ = part.__getitems__(Draw(torch.arange(12), 4))
    some, labels, index = part.__getitems__(Draw(torch.tensor([7, 2]), 4))
    torch.testing.assert_close(some, whole[[7, 2]], rtol=0, atol=3e-7)  # torch 2.6 sums pixels in another order
    assert labels.tolist() == index.tolist() == [7, 2]


def test_an_epoch_changes_the_augmentation_and_a_part_without_seed_has_none():
    source = InMemory(images(), torch.arange(12), Augment(DataOptions(pad=2, flip=True)))
    part = Part(source, torch.arange(12), seed=3)
    first, _, _ = part.__getitems__(Draw(torch.arange(12), 0))
    second, _, _ = part.__getitems__(Draw(torch.arange(12), 1))
    plain, _, _ = part.plain().__getitems__(Draw(torch.arange(12), 1))
    assert not torch.equal(first, second)
    torch.testing.assert_close(plain, images() / 255)


def test_images_and_their_label_maps_move_together():
    maps = images()[:, 0]
    x = maps[:, None].expand(-1, 3, -1, -1)
    augment = Augment(DataOptions(pad=2, flip=True), void=0)
    part = Part(InMemory(x, maps, augment), torch.arange(12), seed=1)
    moved, labels, _ = part.__getitems__(Draw(torch.arange(12), 0))
    assert torch.equal((moved[:, 0] * 255).round().long(), labels)


def test_padding_of_label_maps_is_void():
    maps = torch.ones(20, 8, 8, dtype=torch.uint8)
    part = Part(InMemory(images(20), maps, Augment(DataOptions(pad=3), void=255)), torch.arange(20), seed=1)
    _, labels, _ = part.__getitems__(Draw(torch.arange(20), 0))
    assert set(labels.unique().tolist()) == {1, 255}


def test_flips_fall_on_half_of_the_images():
    n = 2000
    x = torch.zeros(n, 1, 1, 2, dtype=torch.uint8)
    x[..., 0] = 255
    part = Part(InMemory(x, torch.zeros(n), Augment(DataOptions(flip=True))), torch.arange(n), seed=1)
    flipped, _, _ = part.__getitems__(Draw(torch.arange(n), 0))
    assert abs(float(flipped[..., 1].mean()) - 0.5) < 0.05


def test_erasing_replaces_a_box_of_some_images_and_leaves_the_others():
    n = 400
    x = torch.full((n, 3, 16, 16), 128, dtype=torch.uint8)
    part = Part(InMemory(x, torch.zeros(n), Augment(DataOptions(erase=0.25))), torch.arange(n), seed=1)
    erased, _, _ = part.__getitems__(Draw(torch.arange(n), 0))
    share = (erased != erased[0, 0, 0, 0].new_tensor(128 / 255)).float().mean(dim=(1, 2, 3))
    touched = share > 0
    assert 0.15 < float(touched.float().mean()) < 0.35
    assert float(share[touched].max()) < 0.45
    assert float(share[touched].mean()) > 0.05


def test_normalised_channels_have_the_statistics_of_the_data_set():
    x = torch.full((2, 3, 4, 4), 255, dtype=torch.uint8)
    result = normalised(scaled(x), "cifar10")
    torch.testing.assert_close(
        result[0, :, 0, 0], (1 - torch.tensor([0.4914, 0.4822, 0.4465])) / torch.tensor([0.2023, 0.1994, 0.2010])
    )


def test_weights_of_efficientnet_lite_get_their_input():
    x = torch.arange(256, dtype=torch.uint8).reshape(1, 1, 16, 16).expand(1, 3, 16, 16)
    torch.testing.assert_close(normalised(scaled(x), "lite"), (x.float() - 127) / 128, atol=1e-6, rtol=0)


def test_shifts_of_hue_saturation_and_value_are_those_of_colorsys():
    torch.manual_seed(0)
    x, shift = torch.rand(40, 3, 2, 2), torch.rand(40, 3, 1, 1) - 0.5
    x[0], x[1], x[2, 1] = 0.3, 0.0, x[2, 0]  # grey, black, two channels alike
    result = shift_hsv(x, shift)
    for image, moved, by in zip(x, result, shift.flatten(1).tolist(), strict=True):
        for pixel, got in zip(image.flatten(1).T.tolist(), moved.flatten(1).T.tolist(), strict=True):
            h, s, v = colorsys.rgb_to_hsv(*pixel)
            s, v = (min(max(value, 0), 1) for value in (s + by[1], v + by[2]))
            assert got == pytest.approx(colorsys.hsv_to_rgb((h + by[0]) % 1, s, v), abs=1e-5)


def test_the_segmentation_protocol_shifts_hue_saturation_and_value_of_half_of_the_images():
    n = 2000
    x = torch.tensor([0.8, 0.4, 0.2])[:, None, None].expand(n, 3, 1, 1)
    u = torch.rand(n, 7, generator=torch.Generator().manual_seed(0))
    u[:, 5] = 1  # no brightness, no contrast
    moved = Augment(DataOptions(jitter=0.3, colour="hsv")).colours(x, u)
    before = colorsys.rgb_to_hsv(0.8, 0.4, 0.2)
    changes = torch.tensor([colorsys.rgb_to_hsv(*one) for one in moved.flatten(1).tolist()]) - torch.tensor(before)
    changes[:, 0] = (changes[:, 0] + 0.5) % 1 - 0.5
    assert 0.45 < float((changes.abs() > 1e-5).any(1).float().mean()) < 0.55
    for column, limit in enumerate((HUE, SATURATION, VALUE)):
        assert 0.9 * limit < float(changes[:, column].abs().max()) <= limit + 1e-5


def test_factors_change_brightness_contrast_and_saturation_of_every_image():
    x = torch.rand(500, 3, 4, 4, generator=torch.Generator().manual_seed(0)) * 0.4 + 0.3
    u = torch.rand(500, 7, generator=torch.Generator().manual_seed(1))
    moved = Augment(DataOptions(jitter=0.1)).colours(x, u)
    assert bool((moved != x).flatten(1).any(1).all())
    only = torch.full((500, 7), 0.5)  # a factor of 1
    torch.testing.assert_close(Augment(DataOptions(jitter=0.1)).colours(x, only), x)
    for column, (base, spread) in enumerate(
        ((torch.zeros(()), x), (x.mean((1, 2, 3), keepdim=True), x), (x.mean(1, keepdim=True), x))
    ):
        one = only.clone()
        one[:, column] = 1.0
        changed = Augment(DataOptions(jitter=0.1)).colours(x, one)
        if column == 0:
            torch.testing.assert_close(changed, base + 1.1 * spread)
        else:  # away from grey: the spread around it grows by the factor
            axes = (1, 2, 3) if column == 1 else (1,)
            torch.testing.assert_close(changed.std(axes), 1.1 * spread.std(axes))


def test_a_random_crop_has_at_least_its_share_of_the_image_and_stays_inside():
    for u in torch.rand(300, 4, generator=torch.Generator().manual_seed(0)):
        left, top, right, bottom = resized_crop(50, 40, 0.3, u)
        assert 0 <= left < right <= 50.001
        assert 0 <= top < bottom <= 40.001
        assert (right - left) * (bottom - top) > 0.3 * 2000 * 0.74


@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_images_in_memory_are_augmented_as_those_on_disk_are(scale, tmp_path):
    root = class_folders(tmp_path, size=(32, 32))
    options = DataOptions(
        name="folder", root=str(root), size=28, pad=2, flip=True, jitter=0.3, erase=0.5, scale=scale, memory=False
    )
    disk, memory = (load(replace(options, memory=kept), seed=3) for kept in (False, True))
    draw = Draw(torch.arange(len(disk.train)), 4)
    for one, other in ((disk.train, memory.train), (disk.test, memory.test)):
        draw = Draw(torch.arange(len(one)), 4)
        x, again = one.__getitems__(draw)[0], other.__getitems__(draw)[0]
        torch.testing.assert_close(x, again)
