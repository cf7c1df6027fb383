"""Random numbers belong to samples: batches, processes and interruptions do not change them."""

import numpy as np
import torch

from acls.data.keyed_random import generator, seed_of, uniform


def test_a_samples_numbers_do_not_depend_on_its_batch():
    whole = uniform(3, 5, torch.arange(100), 7)
    shuffled = torch.randperm(100, generator=torch.Generator().manual_seed(0))
    assert torch.equal(uniform(3, 5, shuffled, 7), whole[shuffled])
    assert torch.equal(uniform(3, 5, torch.tensor([42]), 3)[0], whole[42, :3])


def test_seed_epoch_sample_and_draw_each_change_the_numbers():
    base = uniform(1, 1, torch.arange(50), 2)
    assert not torch.equal(base, uniform(2, 1, torch.arange(50), 2))
    assert not torch.equal(base, uniform(1, 2, torch.arange(50), 2))
    assert base.unique().numel() == 100


def test_numbers_are_uniform_and_uncorrelated():
    u = uniform(1, 0, torch.arange(20_000), 4).double()
    assert float(u.min()) >= 0
    assert float(u.max()) < 1
    counts = torch.histc(u[:, 0], 20, 0, 1)
    assert float(((counts - 1000) ** 2 / 1000).sum()) < 50  # chi-square with 19 degrees of freedom, p < 1e-4
    correlation = np.corrcoef(u.T.numpy())
    assert np.abs(correlation - np.eye(4)).max() < 0.03
    assert abs(np.corrcoef(u[:-1, 0], u[1:, 0])[0, 1]) < 0.03


def test_a_generator_depends_on_its_keys_and_their_order():
    assert seed_of(1, 2) != seed_of(2, 1)
    assert torch.equal(torch.rand(3, generator=generator(1, 2)), torch.rand(3, generator=generator(1, 2)))
