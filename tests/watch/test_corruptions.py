"""Corruptions: stronger by severity, the same whatever the batch, within 0..1."""

import itertools

import pytest
import torch

from acls.data import DataOptions
from acls.data.augment import Augment, normalised
from acls.data.corruptions import CORRUPTIONS, RANDOM, SEVERITIES, Corrupted, Corruption
from acls.data.dataset import InMemory
from acls.data.synthetic import scenes
from acls.errors import InputError

IMAGES = scenes(7, size=32, seed=3)[0]
NUMBERS = torch.arange(20, 27)


@pytest.mark.parametrize("size", [8, 32, 65])
@pytest.mark.parametrize("name", CORRUPTIONS)
def test_images_stay_images_and_move_further_with_severity(name, size):
    x = scenes(7, size=size, seed=3)[0]
    moved = []
    for severity in SEVERITIES:
        y = Corruption(name, severity)(x, NUMBERS)
        assert y.shape == x.shape
        assert y.dtype == x.dtype
        assert 0 <= float(y.min()) <= float(y.max()) <= 1
        moved.append(float((y - x).square().mean()))
    assert moved[0] > 0
    if name == "pixelate":  # new pixels that straddle old ones can do more than larger ones
        assert moved[-1] > 1.5 * moved[0]
    else:
        assert all(later > earlier for earlier, later in itertools.pairwise(moved)), moved


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_an_image_is_corrupted_the_same_way_in_any_batch(name):
    corrupt = Corruption(name, 3)
    whole = corrupt(IMAGES, NUMBERS)
    parts = torch.cat([corrupt(IMAGES[:2], NUMBERS[:2]), corrupt(IMAGES[2:], NUMBERS[2:])])
    torch.testing.assert_close(parts, whole, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", sorted(RANDOM))
def test_images_and_seeds_have_their_own_randomness(name):
    same = IMAGES[:1].expand(8, -1, -1, -1)
    numbers = torch.arange(8)
    drawn = Corruption(name, 3)(same, numbers)
    assert len({image.sum().item() for image in drawn}) > 1
    assert not torch.equal(Corruption(name, 3, seed=1)(same, numbers), drawn)
    assert torch.equal(Corruption(name, 3)(same, numbers), drawn)


@pytest.mark.parametrize("name", [name for name in CORRUPTIONS if name != "saturation"])
def test_gray_images_are_corrupted_too(name):
    gray = IMAGES[:, :1]
    assert not torch.equal(Corruption(name, 5)(gray, NUMBERS), gray)


def test_the_image_is_corrupted_before_it_is_normalised():
    source = InMemory((IMAGES * 255).byte(), torch.arange(7), Augment(DataOptions(normalise="cifar10")))
    corrupt = Corruption("contrast", 2)
    x, y = Corrupted(source, corrupt, "cifar10").take(torch.tensor([4, 1]), None, torch.tensor([4, 1]))
    raw = source.x[[4, 1]].float() / 255
    torch.testing.assert_close(x, normalised(corrupt(raw, torch.tensor([4, 1])), "cifar10"), rtol=1e-4, atol=1e-5)
    assert y.tolist() == [4, 1]


def test_mistakes_are_told():
    with pytest.raises(InputError, match="did you mean 'noise'"):
        Corruption("nois", 1)
    with pytest.raises(InputError, match="from 1 to 5, got 6"):
        Corruption("noise", 6)
    with pytest.raises(InputError, match=r"images \(N, C, H, W\)"):
        Corruption("noise", 1)(torch.zeros(3, 4), torch.arange(3))
