"""Backwards that reach several optimizers, and on each rank others."""

import time

import deft.torch as hvd
import pytest
import torch
from launching import WorkerFailed
from small_models import CLASSES, FEATURES, assert_same_everywhere, batches, check, loss_of, make, parameters, wrapped
from torch import nn

STEPS = 5
ALL = ["fifo", "bytescheduler", "knapsack 0@1"]


class Parts(nn.Module):
    """Three models, each with an optimizer of its own."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(FEATURES, CLASSES) for _ in range(3))


def loss_of_rank(model, names, x, y):
    """Backward begins with what was computed last."""
    return sum(loss_of(getattr(model, name), x, y) for name in names)


def share(rank, size, *tensors):
    return [tensor.chunk(size)[rank] for tensor in tensors]


def in_one_process(names_of, size, train):
    """The weights of a process that adds up what the ranks do; names_of(step, rank): what its backward reaches."""
    model = make(Parts)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-3)
    for step, batch in enumerate(batches(STEPS)):
        sgd.zero_grad(set_to_none=False)
        for rank in range(size):
            train(model, names_of(step, rank), *share(rank, size, *batch), 1 / size)
        for param in model.parameters():  # of a part that nobody reaches, too
            param.grad = torch.zeros_like(param) if param.grad is None else param.grad
        sgd.step()
    return parameters(model)


def one_backward(model, names, x, y, factor=1.0):
    (loss_of_rank(model, names, x, y) * factor).backward()


def a_backward_each(model, names, x, y, factor=1.0):
    for name in names:
        one_backward(model, name, x, y, factor)


def train_parts(names_of, train, **options):
    """Each rank calls every step(), as under Horovod, and its backward reaches what names_of(step, rank) says."""
    rank, size, model = hvd.rank(), hvd.size(), make(Parts)
    optimizers = [wrapped(part, **options) for part in model.children()]
    factor = 1 / size if options.get("op") is hvd.Sum else 1.0
    for step, batch in enumerate(batches(STEPS)):
        for optimizer in optimizers:
            optimizer.zero_grad()
        train(model, names_of(step, rank), *share(rank, size, *batch), factor)
        for optimizer in optimizers:
            optimizer.step()
    expected = in_one_process(names_of, size, train)
    return all(check(model, optimizer, expected) for optimizer in optimizers[::-1])


def in_other_orders(_step, rank):
    return ("abc", "cba", "bca")[rank]


def missing_on_one(_step, rank):
    return ("abc", "bc", "ab")[rank]


def only_one(_step, rank):
    return "abc"[rank]


def others_in_each_step(step, rank):
    return (("ab", "bc", "c"), ("c", "ab", "b"), ("abc", "abc", "abc"), ("b", "a", "c"), ("a", "a", "bc"))[step][rank]


def reach(names_of):
    return train_parts(names_of, one_backward)


@pytest.mark.parametrize("nodes", [1, 3])
@pytest.mark.parametrize("policy", ALL)
@pytest.mark.parametrize("names_of", [in_other_orders, missing_on_one, only_one, others_in_each_step])
def test_each_rank_may_reach_others_of_the_optimizers(start, nodes, policy, names_of):
    assert all(start(nodes, policy=policy).run(reach, names_of, workers=3))


def backwards(op):
    return train_parts(in_other_orders, a_backward_each, op=op)


@pytest.mark.parametrize(("nodes", "policy"), [(1, "fifo"), (1, "bytescheduler"), (3, "bytescheduler")])
@pytest.mark.parametrize("op", [hvd.Average, hvd.Sum])
def test_ranks_may_have_their_backwards_in_different_orders(start, nodes, policy, op):
    assert all(start(nodes, policy=policy).run(backwards, op, workers=3))


def step_in_another_order(_step, rank):
    return ("abc", "b", "c")[rank]


def update_as_listed():
    """Rank 0 hands in all, and what is updated last comes first there."""
    rank, size, model = hvd.rank(), hvd.size(), make(Parts)
    optimizers = [wrapped(part) for part in model.children()][::-1]
    for step, batch in enumerate(batches(STEPS)):
        for optimizer in optimizers:
            optimizer.zero_grad()
        one_backward(model, step_in_another_order(step, rank), *share(rank, size, *batch))
        for optimizer in optimizers:
            optimizer.step()
    expected = in_one_process(step_in_another_order, size, one_backward)
    return all(check(model, optimizer, expected) for optimizer in optimizers)


@pytest.mark.parametrize("nodes", [1, 3])
@pytest.mark.parametrize("policy", ALL)
def test_updates_may_come_in_another_order_than_gradients(start, nodes, policy):
    assert all(start(nodes, policy=policy).run(update_as_listed, workers=3))


def no_batch_on_one(_step, rank):
    return ("a", "b", "")[rank]


def step_alone(model, names, x, y, factor=1.0):
    if names:
        one_backward(model, names, x, y, factor)


def reach_nothing():
    return train_parts(no_batch_on_one, step_alone)


def test_a_rank_without_a_batch_only_calls_step(start):
    assert all(start(1, policy="fifo").run(reach_nothing, workers=3))


# ---- the averages are not there when backward() returns


def clip(synchronizes):
    rank, model = hvd.rank(), make(Parts)
    optimizers = {name: wrapped(getattr(model, name)) for name in "ab"}
    for batch in batches(3):
        for optimizer in optimizers.values():
            optimizer.zero_grad()
        one_backward(model, "ab"[rank], *share(rank, 2, *batch))
        for name, optimizer in optimizers.items():
            if synchronizes:
                optimizer.synchronize()
                assert_same_everywhere({"gradient": getattr(model, name).weight.grad})
            part = getattr(model, name)
            nn.utils.clip_grad_norm_([param for param in part.parameters() if param.grad is not None], 1e-3)
        for optimizer in optimizers.values():
            optimizer.step()
    assert_same_everywhere(parameters(model))
    return True


def test_clipping_needs_synchronize_if_ranks_reach_others(start):
    cluster = start(1, policy="fifo")
    assert all(cluster.run(clip, True))
    with pytest.raises(WorkerFailed) as failed:
        cluster.run(clip, False)
    texts = [text for text in failed.value.errors if "RuntimeError" in text]
    assert texts and all("call optimizer.synchronize() before" in text for text in texts), failed.value.errors


def average_in_backward():
    """Nobody calls step(), so backward() has to end with the averages."""
    model = make(Parts)
    for name in "ab":
        hvd.average_gradients(getattr(model, name))
    began = time.monotonic()
    with pytest.raises(RuntimeError) as raised:
        one_backward(model, "ab"[hvd.rank()], *next(batches(1)))
    return time.monotonic() - began, str(raised.value)


def test_a_circle_that_cannot_end_is_an_error_on_all_ranks(start):
    results = start(1, policy="fifo", timeout="3s").run(average_in_backward)
    for seconds, text in results:
        assert 3 <= seconds < 15, results
        assert "rank 0 for 'optimizer.0', rank 1 for 'optimizer.1'" in text and "0 times the output" in text, text


def wrap_one_later():
    """When the first optimizer was used, no rank knew that there would be another one."""
    rank, model = hvd.rank(), make(Parts)
    optimizers = [wrapped(model.b)]
    for step, batch in enumerate(batches(STEPS)):
        one_backward(model, "b" if step == 0 else ("ab", "a", "a")[rank], *share(rank, 3, *batch))
        for optimizer in optimizers:
            optimizer.step()
        if step == 0:
            optimizers.insert(0, wrapped(model.a))


def test_on_several_nodes_all_optimizers_have_to_be_there_before_the_first_backward(start):
    with pytest.raises(WorkerFailed) as failed:
        start(3, policy="fifo", timeout="5s").run(wrap_one_later, workers=3)
    texts = [text for text in failed.value.errors if "RuntimeError: ranks wait for each other's gradients" in str(text)]
    assert texts and all(failed.value.errors), failed.value.errors
