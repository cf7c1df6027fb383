"""Monte Carlo dropout averages probabilities, and runs no more of the model than it must."""

import math

import pytest
import torch
from torch import nn

from acls.calibrators import MCDropout
from acls.errors import InputError


class Counted(nn.Linear):
    calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x)


class Net(nn.Module):
    def __init__(self, early=False, activation=False):
        super().__init__()
        torch.manual_seed(0)
        self.body = Counted(5, 8)
        self.early = nn.Dropout(0.5) if early else nn.Identity()
        self.norm = nn.BatchNorm1d(8)
        self.dropout = nn.Dropout(0.5)
        self.head = Counted(8, 3)
        self.end = nn.Tanh() if activation else nn.Identity()

    def forward(self, x):
        return self.end(self.head(self.dropout(self.norm(self.early(self.body(x))).relu())))


@pytest.fixture
def x():
    return torch.randn(7, 5, generator=torch.Generator().manual_seed(1))


def by_hand(net, x, passes, seed=0):
    net.eval()
    net.dropout.train()
    net.early.train()
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)
        log_probs = torch.stack([net(x).log_softmax(1) for _ in range(passes)])
    return log_probs.logsumexp(0) - math.log(passes)


@pytest.mark.parametrize("early", [False, True])
def test_it_is_the_mean_over_passes(x, early):
    assert torch.allclose(MCDropout(Net(early), passes=6)(x), by_hand(Net(early), x, 6), atol=1e-6)


def test_rows_sum_to_one_and_repeat(x):
    model = MCDropout(Net(), passes=5)
    assert torch.allclose(model(x).exp().sum(1), torch.ones(7), atol=1e-6)
    assert torch.equal(model(x), model(x))
    anew = MCDropout(Net(), seed=None)
    assert not torch.equal(anew(x), anew(x))


def test_features_run_once_where_only_the_last_layer_has_dropout(x):
    net = Net()
    MCDropout(net, passes=10)(x)
    assert (net.body.calls, net.head.calls) == (1, 10)


@pytest.mark.parametrize("settings", [{"early": True}, {"activation": True}])
def test_everything_runs_again_where_more_hangs_on_dropout(x, settings):
    net = Net(**settings)
    MCDropout(net, passes=10)(x)
    assert net.body.calls == 10


def test_modes_and_statistics_are_left_as_they_were(x):
    net = Net().train()
    net.head.eval()
    before = net.norm.running_mean.clone()
    MCDropout(net)(x)
    assert net.dropout.training
    assert net.norm.training
    assert not net.head.training
    assert torch.equal(net.norm.running_mean, before)


def test_random_state_of_torch_is_left_alone(x):
    torch.manual_seed(5)
    state = torch.get_rng_state()
    MCDropout(Net().eval())(x)
    model = MCDropout(Net())
    torch.set_rng_state(state)
    model(x)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_model_without_dropout_is_refused():
    with pytest.raises(InputError, match="no dropout layer"):
        MCDropout(nn.Linear(2, 2))
