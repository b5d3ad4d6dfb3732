"""DistributedOptimizer for a model whose gradients DDP or FSDP averages already."""

import deft.torch as hvd
import pytest
import torch
import torch.distributed as dist
from c10d_groups import close_group, open_group
from launching import free_port
from small_models import batches, loss_of, make, own_share, wrapped
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel


def a_backward(model):
    loss_of(model, *own_share(*next(batches(1)))).backward()


class Pair(torch.nn.Module):
    """The loss of `trained`; the other model is beside it."""

    def __init__(self, trained, other):
        super().__init__()
        self.trained, self.other = trained, other

    def forward(self, *inputs):
        return self.trained(*inputs)


def both_average(port):
    open_group(port, "gloo")
    for average in (wrapped, hvd.average_gradients):
        model = make()
        ddp, kept = DistributedDataParallel(model), average(model)
        for whole in (ddp, Pair(ddp, make()), ddp):
            with pytest.raises(RuntimeError, match=r"wrapped in DistributedDataParallel, which averages.*'deft'"):
                a_backward(whole)
        a_backward(model)  # the plain model is trained
        del kept
    model = make()
    optimizer = wrapped(model)
    a_backward(Pair(model, DistributedDataParallel(make())))  # DDP has other parameters
    optimizer.step()
    for sharded in (fully_shard(make()), FullyShardedDataParallel(make(), device_id=torch.device("cpu"))):
        with pytest.raises(ValueError, match="this rank has a part of parameter"):
            wrapped(sharded)
    views = FullyShardedDataParallel(make(), use_orig_params=True, device_id=torch.device("cpu"))
    optimizer = wrapped(views)
    with pytest.raises(RuntimeError, match="wrapped in FullyShardedDataParallel"):
        a_backward(views)
    dist.barrier()
    close_group()
    return True


@pytest.mark.parametrize("policy", ["fifo", "bytescheduler"])
def test_two_that_average_the_same_gradients_are_an_error(start, policy):
    assert all(start(1, policy=policy).run(both_average, free_port()))
