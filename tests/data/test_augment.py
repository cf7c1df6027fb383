"""Batched augmentation: what it does to an image, and that it does the same to a sample in every batch."""

import torch

from acls.data.augment import Augment, Normalise, crop
from acls.data.parts import Draw, InMemory, Part


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
    augment = Augment(pad=2, flip=True, jitter=0.4, erase=0.5)
    part = Part(InMemory(images(), torch.arange(12), augment), torch.arange(12), seed=3)
    whole, _, _ = part.__getitems__(Draw(torch.arange(12), 4))
    some, labels, index = part.__getitems__(Draw(torch.tensor([7, 2]), 4))
    assert torch.equal(some, whole[[7, 2]])
    assert labels.tolist() == index.tolist() == [7, 2]


def test_an_epoch_changes_the_augmentation_and_a_part_without_seed_has_none():
    source = InMemory(images(), torch.arange(12), Augment(pad=2, flip=True))
    part = Part(source, torch.arange(12), seed=3)
    first, _, _ = part.__getitems__(Draw(torch.arange(12), 0))
    second, _, _ = part.__getitems__(Draw(torch.arange(12), 1))
    plain, _, _ = part.plain().__getitems__(Draw(torch.arange(12), 1))
    assert not torch.equal(first, second)
    torch.testing.assert_close(plain, images() / 255)


def test_images_and_their_label_maps_move_together():
    maps = images()[:, 0]
    x = maps[:, None].expand(-1, 3, -1, -1)
    augment = Augment(pad=2, flip=True)
    part = Part(InMemory(x, maps, augment, void=0), torch.arange(12), seed=1)
    moved, labels, _ = part.__getitems__(Draw(torch.arange(12), 0))
    assert torch.equal((moved[:, 0] * 255).round().long(), labels)


def test_padding_of_label_maps_is_void():
    maps = torch.ones(20, 8, 8, dtype=torch.uint8)
    part = Part(InMemory(images(20), maps, Augment(pad=3), void=255), torch.arange(20), seed=1)
    _, labels, _ = part.__getitems__(Draw(torch.arange(20), 0))
    assert set(labels.unique().tolist()) == {1, 255}


def test_flips_fall_on_half_of_the_images():
    n = 2000
    x = torch.zeros(n, 1, 1, 2, dtype=torch.uint8)
    x[..., 0] = 255
    part = Part(InMemory(x, torch.zeros(n), Augment(flip=True)), torch.arange(n), seed=1)
    flipped, _, _ = part.__getitems__(Draw(torch.arange(n), 0))
    assert abs(float(flipped[..., 1].mean()) - 0.5) < 0.05


def test_erasing_replaces_a_box_of_some_images_and_leaves_the_others():
    n = 400
    x = torch.full((n, 3, 16, 16), 128, dtype=torch.uint8)
    part = Part(InMemory(x, torch.zeros(n), Augment(erase=0.25)), torch.arange(n), seed=1)
    erased, _, _ = part.__getitems__(Draw(torch.arange(n), 0))
    share = (erased != erased[0, 0, 0, 0].new_tensor(128 / 255)).float().mean(dim=(1, 2, 3))
    touched = share > 0
    assert 0.15 < float(touched.float().mean()) < 0.35
    assert float(share[touched].max()) < 0.45
    assert float(share[touched].mean()) > 0.05


def test_normalised_channels_have_the_statistics_of_the_data_set():
    x = torch.full((2, 3, 4, 4), 255, dtype=torch.uint8)
    normalise = Normalise("cifar10")
    result = normalise(normalise.scaled(x))
    torch.testing.assert_close(
        result[0, :, 0, 0], (1 - torch.tensor([0.4914, 0.4822, 0.4465])) / torch.tensor([0.2023, 0.1994, 0.2010])
    )
