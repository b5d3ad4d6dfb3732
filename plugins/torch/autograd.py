"""allreduce, allgather and broadcast that gradients flow through.

As in Horovod, the gradient of allgather and of broadcast is the average over the ranks, although mathematics asks for
the sum: so a loss that every rank computes from the same gathered values is not counted once for each rank.
"""

from deft.world import rank

import torch

from .collectives import (
    Average,
    Sum,
    allgather_async,
    allreduce_plain,
    as_group,
    broadcast_async,
    choose_op,
    group_names,
)
from .compression import Compression


class _AllReduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, name, op, prescale, postscale, compression):
        ctx.arguments = (None if name is None else name + ".gradient", op, prescale, postscale, compression)
        return allreduce_plain(tensor, name, op, prescale, postscale, compression)

    @staticmethod
    def backward(ctx, gradient):
        if ctx.arguments[1] not in (Average, Sum):
            raise RuntimeError(f"allreduce with {ctx.arguments[1]!r} has no gradient; use Average or Sum")
        return allreduce_plain(gradient, *ctx.arguments), None, None, None, None, None


class _AllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, name):
        ctx.name = name
        ctx.shape = tensor.shape
        rows = torch.tensor([len(tensor) if tensor.dim() else 1])
        lengths = allgather_async(rows, None if name is None else name + ".rows").wait()
        ctx.first = int(lengths[: rank()].sum())
        ctx.rows = int(rows)
        return allgather_async(tensor, name).wait()

    @staticmethod
    def backward(ctx, gradient):
        name = None if ctx.name is None else ctx.name + ".gradient"
        average = allreduce_plain(gradient, name, Average, 1.0, 1.0, Compression.none)
        return average[ctx.first : ctx.first + ctx.rows].reshape(ctx.shape), None


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, root_rank, name):
        ctx.root_rank, ctx.name = root_rank, name
        return broadcast_async(tensor, root_rank, name).wait()

    @staticmethod
    def backward(ctx, gradient):
        name = None if ctx.name is None else ctx.name + ".gradient"
        average = allreduce_plain(gradient, name, Average, 1.0, 1.0, Compression.none)
        return average if rank() == ctx.root_rank else torch.zeros_like(average), None, None


def _differentiable(tensor):
    return tensor.requires_grad and torch.is_grad_enabled()


def allreduce(
    tensor, average=None, name=None, compression=Compression.none, op=None, prescale_factor=1.0, postscale_factor=1.0
):
    """The reduction of `tensor` over all ranks, as a new tensor: the average unless `op` says otherwise.

    The result is reduce(tensor * prescale_factor) * postscale_factor. Its gradient is reduced the same way.
    """
    arguments = (name, choose_op(average, op), prescale_factor, postscale_factor, compression)
    if _differentiable(tensor):
        return _AllReduce.apply(tensor, *arguments)
    return allreduce_plain(tensor, *arguments)


def allgather(tensor, name=None):
    """The tensors of all ranks, joined along the first dimension, in which they may differ in length.

    Its gradient is the average of the ranks' gradients, as in Horovod.
    """
    if _differentiable(tensor):
        return _AllGather.apply(tensor, name)
    return allgather_async(tensor, name).wait()


def broadcast(tensor, root_rank, name=None):
    """`tensor` of rank `root_rank`, as a new tensor on every rank.

    Its gradient on the root is the average of the ranks' gradients, as in Horovod.
    """
    if _differentiable(tensor):
        return _Broadcast.apply(tensor, root_rank, name)
    return broadcast_async(tensor, root_rank, name).wait()


def grouped_allgather(tensors, name=None):
    """allgather() of each tensor."""
    names = group_names(tensors, name)
    if any(map(_differentiable, tensors)):
        return [allgather(tensor, one) for tensor, one in zip(tensors, names, strict=True)]
    return as_group(allgather_async(tensor, one) for tensor, one in zip(tensors, names, strict=True)).wait()
