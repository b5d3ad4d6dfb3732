"""Gradients of gradients through collectives and SyncBatchNorm, as penalties on gradients need them."""

import deft.torch as hvd
import torch

# How much of 12 x**4, which comes of x**3 itself, and of 18 x**4, which comes through what the collective gives, is in
# the second gradient of the sum of f(x**3)**2, if x is the same on all of 2 ranks. One process has 1 of both. Gradients
# of allgather and broadcast are averages.
SHARES = {
    "allreduce": (lambda t: hvd.allreduce(t, name="a"), 1, 1),
    "sum": (lambda t: hvd.allreduce(t, op=hvd.Sum), 4, 4),
    "grouped_allreduce": (lambda t: hvd.grouped_allreduce([t, t], name="g")[1], 1, 1),
    "allgather": (lambda t: hvd.allgather(t).view(2, 2).mean(0), 1 / 2, 1 / 4),
    "reducescatter": (lambda t: hvd.reducescatter(t, name="r"), 1, 1),
    "alltoall": (hvd.alltoall, 1, 1),
}


def second_gradient(function):
    x = torch.tensor([1.0, 2.0], dtype=torch.float64, requires_grad=True)
    (first,) = torch.autograd.grad(function(x**3).square().sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    return second


def differentiate_twice():
    fourth = torch.tensor([1.0, 16.0], dtype=torch.float64)
    for name, (function, direct, through) in SHARES.items():
        expected = (12 * direct + 18 * through) * fourth
        torch.testing.assert_close(second_gradient(function), expected, msg=lambda text, name=name: f"{name}: {text}")
    from_root = second_gradient(lambda t: hvd.broadcast(t, root_rank=1))
    assert torch.equal(from_root, (12 + 18 / 2) * fourth * hvd.rank())
    return True


def test_second_gradients_through_collectives(start):
    assert all(start(2).run(differentiate_twice))


def penalty(norm, x, linear):
    """The gradients of weight and input by the square of a gradient of the input."""
    x = x.clone().requires_grad_()
    output = norm(x)
    (first,) = torch.autograd.grad((output if linear else output**3).mul(x.detach()).sum(), x, create_graph=True)
    return torch.autograd.grad(first.square().sum(), (norm.weight, x))


def normalize():
    x = torch.randn(8, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for linear in (False, True):  # if it is linear, its gradient by the output does not depend on the input
        alone_weight, alone_x = penalty(torch.nn.BatchNorm1d(3).double(), x, linear)
        weight, own = penalty(hvd.SyncBatchNorm(3).double(), x.chunk(2)[hvd.rank()], linear)
        torch.testing.assert_close(hvd.allreduce(weight, op=hvd.Sum), alone_weight)
        torch.testing.assert_close(hvd.allgather(own), alone_x)
    return True


def test_second_gradients_through_batch_normalization(start):
    assert all(start(2).run(normalize))
