"""CutMix and Mixup: the labels hold each class's share of the image."""

from dataclasses import replace

import pytest
import torch

from acls.data import DataOptions
from acls.data.augment import cutmix, mix
from acls.data.keyed_random import generator
from acls.errors import InputError

OPTIONS = DataOptions(mix="cutmix", mix_prob=1.0)


def constant_images(n=7, size=32):
    """Image i has the value i everywhere, so that the mix can be read off."""
    return torch.arange(n).float()[:, None, None, None].expand(n, 3, size, size).clone(), torch.arange(n)


@pytest.mark.parametrize("seed", range(20))
def test_the_labels_of_cutmix_are_the_shares_of_the_pixels(seed):
    x, y = constant_images()
    mixed, soft = mix(x, y, OPTIONS, 7, generator(seed))
    for image, label in zip(mixed, soft, strict=True):
        shares = torch.stack([(image[0] == k).float().mean() for k in range(7)])
        torch.testing.assert_close(label, shares)


@pytest.mark.parametrize("seed", range(5))
def test_the_labels_of_mixup_explain_the_images(seed):
    x, y = constant_images()
    mixed, soft = mix(x, y, replace(OPTIONS, mix="mixup"), 7, generator(seed))
    torch.testing.assert_close(soft.sum(1), torch.ones(7))
    torch.testing.assert_close(mixed[:, 0, 0, 0], soft @ torch.arange(7).float())


def test_the_box_has_the_share_that_was_drawn_unless_the_border_cuts_it():
    x, _ = constant_images(2)
    partner = torch.tensor([1, 0])
    shares = [cutmix(x, partner, 0.75, generator(seed))[1] for seed in range(50)]
    assert min(shares) == 0.75
    assert max(shares) > 0.75


def test_the_share_of_mixed_batches_is_the_one_asked_for():
    x, y = constant_images(4, 8)
    soft = [mix(x, y, replace(OPTIONS, mix_prob=0.3), 4, generator(seed))[1].ndim == 2 for seed in range(300)]
    assert 0.2 < sum(soft) / 300 < 0.4


def test_label_maps_are_refused():
    with pytest.raises(InputError, match="mix none for segmentation"):
        mix(torch.zeros(2, 3, 4, 4), torch.zeros(2, 4, 4).long(), OPTIONS, 3, generator(0))
