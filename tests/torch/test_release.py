"""Gradients that nobody uses any more give their memory back, in this process and in the daemon."""

import gc

import deft.torch as hvd
import pytest
import torch
from arena_memory import arenas, groups_left, settled
from c10d_groups import close_group, open_group
from deft import DeftError
from launching import free_port
from small_models import assert_same_everywhere, batches, loss_of, make, own_share, parameters, wrapped

COUNT = 50


def train(model, optimizer, steps=2):
    for x, y in batches(steps):
        optimizer.zero_grad()
        loss_of(model, *own_share(x, y)).backward()
        optimizer.step()


def make_one_after_the_other(same_model):
    """`same_model`: each optimizer takes the parameters of the one before."""
    model, memory, optimizer = make(), [], None
    for _ in range(COUNT):
        if not same_model:
            optimizer = None
            model = make()
        optimizer = wrapped(model)
        assert arenas() == 0, "the one before has given its arena back"
        train(model, optimizer)
        assert arenas() == 1
        hvd.allreduce(torch.ones(1), name="all have trained")
        memory.append(settled(1))
    optimizer.flush()
    assert_same_everywhere(parameters(model))
    del optimizer
    assert arenas() == 0
    hvd.allreduce(torch.ones(1), name="all have trained")
    assert settled(0) < memory[0]
    assert len(set(memory)) == 1, "it stays flat"
    return True


@pytest.mark.parametrize("policy", ["fifo", "bytescheduler", "knapsack 0-1@3"])
@pytest.mark.parametrize("same_model", [True, False])
def test_optimizers_one_after_the_other_take_the_memory_of_one(start, policy, same_model):
    assert all(start(1, policy=policy).run(make_one_after_the_other, same_model, workers=2))


def collect_at_different_times(with_model):
    """An optimizer in a cycle ends on each rank when that rank collects it."""
    model = make()
    cycle = [wrapped(model)]
    cycle.append([cycle, model if with_model else None])
    train(model, cycle[0])
    cycle[0].flush()
    group = cycle[0]._deft.buffer.arena.group
    gc.disable()
    del cycle
    kept = None if with_model else model
    del model
    other = make()
    optimizer = wrapped(other)
    train(other, optimizer)
    if hvd.rank() == 0:
        gc.collect()
    train(other, optimizer)
    hvd.allreduce(torch.ones(1), name="rank 0 has collected it")
    assert groups_left() == 2, "the other rank has not"
    hvd.allreduce(torch.ones(1), name="all have seen that")
    gc.enable()
    gc.collect()
    settled(1)
    with pytest.raises(DeftError, match="was released"):
        group.ready(0, 1, 2)
    train(other, optimizer)
    if kept is not None:
        assert all(param.grad.isfinite().all() for param in kept.parameters()), "what it got stays readable"
    return True


@pytest.mark.parametrize("with_model", [False, True])
def test_ranks_may_let_go_of_an_optimizer_at_different_times(start, with_model):
    assert all(start(2).run(collect_at_different_times, with_model))


def keep_a_gradient():
    """Whoever keeps a gradient keeps its arena, too: an array of numpy's shares its memory."""
    model = make()
    optimizer = wrapped(model)
    train(model, optimizer)
    loss_of(model, *own_share(*next(batches(1)))).backward()
    optimizer.synchronize()
    array = next(model.parameters()).grad.numpy()
    before = array.copy()
    del optimizer
    assert arenas() == 1
    assert (array == before).all()
    return True


def test_a_gradient_that_numpy_shares_stays_readable(start):
    assert all(start(2).run(keep_a_gradient))


def wrap_again(port, by_hook):
    open_group(port, "gloo" if by_hook else "deft")
    model = torch.nn.Sequential(torch.nn.Linear(20, 50), torch.nn.Linear(50, 5))
    counts = []
    for _ in range(6):
        distributed = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.001)
        if by_hook:
            distributed.register_comm_hook(None, hvd.ddp_hook)
        for _ in range(4):
            model.zero_grad()
            distributed(torch.ones(8, 20)).sum().backward()
        counts.append(arenas())
        del distributed
        gc.collect()
    close_group()
    return counts


@pytest.mark.parametrize("by_hook", [False, True])
def test_a_model_that_is_wrapped_again_takes_the_memory_of_one(start, by_hook):
    for counts in start(2).run(wrap_again, free_port(), by_hook):
        assert counts[0] > 0, "its buckets were scheduled"
        assert counts[-1] <= counts[0], counts
