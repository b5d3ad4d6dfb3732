"""ddp_hook if a model is wrapped in DDP again after some of its layers were frozen or unfrozen."""

import deft.torch as hvd
import pytest
import torch
from c10d_groups import close_group, count_groups, open_group
from launching import free_port

STEPS = 4
TRAINED = [(0, 2, 4), (2, 4), (0, 4), (0, 2, 4), (4,), (0, 2)]  # layers, in each wrap


def train(net, state, bucket_cap_mb, samples):
    """Each backward must leave the averages of what each rank computes alone."""
    wrapped = torch.nn.parallel.DistributedDataParallel(net, bucket_cap_mb=bucket_cap_mb)
    wrapped.register_comm_hook(state, hvd.ddp_hook)
    learning = [parameter for parameter in net.parameters() if parameter.requires_grad]
    for _ in range(STEPS):
        inputs = torch.randn(5, 4, generator=samples)
        own = torch.autograd.grad(net(inputs).square().mean(), learning)
        net.zero_grad()
        wrapped(inputs).square().mean().backward()
        for parameter, expected in zip(learning, hvd.grouped_allreduce(own), strict=True):
            torch.testing.assert_close(parameter.grad, expected)


def wrap_again(port, bucket_cap_mb, own_state):
    open_group(port)
    torch.manual_seed(1)
    tanh = torch.nn.Tanh()
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), tanh, torch.nn.Linear(8, 8), tanh, torch.nn.Linear(8, 1))
    state = hvd.DdpState() if own_state else None
    samples = torch.Generator().manual_seed(hvd.rank())
    with count_groups() as groups:
        for layers in TRAINED:
            for index in (0, 2, 4):
                net[index].requires_grad_(index in layers)
            train(net, state, bucket_cap_mb, samples)
    close_group()
    return groups


@pytest.mark.parametrize("bucket_cap_mb", [None, 0.0001])
@pytest.mark.parametrize("own_state", [False, True])
def test_a_model_is_wrapped_again_with_other_parameters(start, bucket_cap_mb, own_state):
    for groups in start(2, stall_timeout="20s").run(wrap_again, free_port(), bucket_cap_mb, own_state):
        assert groups == [2 * len(layers) for layers in TRAINED], "each set of parameters is scheduled"
