"""allreduce, allgather and broadcast that gradients flow through.

As in Horovod, the gradient of allgather and of broadcast is the average over the ranks, although mathematics asks for
the sum: so a loss that every rank computes from the same gathered values is not counted once for each rank.

A backward calls what can be differentiated itself, so gradients of gradients flow, too, if all ranks ask for them.
"""

from deft.process_sets import global_process_set
from deft.reduce_op import Adasum, Average, Sum, choose_op

import torch

from .collectives import allgather_async, allreduce_plain, as_group, broadcast_async, group_names
from .compression import Compression

_ALL = global_process_set


def check_differentiable(op):
    if op not in (Average, Sum, Adasum):
        raise RuntimeError(f"allreduce with {op!r} has no gradient; use Average or Sum")


class _AllReduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, name, op, *others):
        ctx.arguments = (None if name is None else name + ".gradient", op, *others)
        return allreduce_plain(tensor, name, op, *others)

    @staticmethod
    def backward(ctx, gradient):
        check_differentiable(ctx.arguments[1])
        return _allreduce(gradient, *ctx.arguments), *[None] * len(ctx.arguments)


class _AllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, name, process_set):
        ctx.name, ctx.process_set = name, process_set
        ctx.shape = tensor.shape
        rows = torch.tensor([len(tensor) if tensor.dim() else 1])
        lengths = allgather_async(rows, None if name is None else name + ".rows", process_set).wait()
        ctx.first = int(lengths[: process_set.rank()].sum())
        ctx.rows = int(rows)
        return allgather_async(tensor, name, process_set).wait()

    @staticmethod
    def backward(ctx, gradient):
        average = _average(gradient, ctx.name, ctx.process_set)
        return average[ctx.first : ctx.first + ctx.rows].reshape(ctx.shape), None, None


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, root_rank, name, process_set):
        ctx.is_root = process_set.rank() == process_set.place_of(root_rank)
        ctx.name, ctx.process_set = name, process_set
        return broadcast_async(tensor, root_rank, name, process_set).wait()

    @staticmethod
    def backward(ctx, gradient):
        average = _average(gradient, ctx.name, ctx.process_set)
        # A choice keeps the graph on all ranks: what the root asks of its second gradient is a collective.
        is_root = torch.full((), ctx.is_root, device=average.device)
        return torch.where(is_root, average, torch.zeros_like(average)), None, None, None


def _average(gradient, name, process_set):
    name = None if name is None else name + ".gradient"
    return _allreduce(gradient, name, Average, 1.0, 1.0, Compression.none, process_set)


def _differentiable(tensor):
    return tensor.requires_grad and torch.is_grad_enabled()


def _allreduce(tensor, *arguments):
    if _differentiable(tensor):
        return _AllReduce.apply(tensor, *arguments)
    return allreduce_plain(tensor, *arguments)


def allreduce(
    tensor,
    average=None,
    name=None,
    compression=Compression.none,
    op=None,
    prescale_factor=1.0,
    postscale_factor=1.0,
    process_set=_ALL,
):
    """The reduction of `tensor` over all ranks, as a new tensor: the average unless `op` says otherwise.

    The result is reduce(tensor * prescale_factor) * postscale_factor. Its gradient is reduced the same way.
    """
    op = choose_op(average, op)
    return _allreduce(tensor, name, op, prescale_factor, postscale_factor, compression, process_set)


def allgather(tensor, name=None, process_set=_ALL):
    """The tensors of all ranks, joined along the first dimension, in which they may differ in length.

    Its gradient is the average of the ranks' gradients, as in Horovod.
    """
    if _differentiable(tensor):
        return _AllGather.apply(tensor, name, process_set)
    return allgather_async(tensor, name, process_set).wait()


def broadcast(tensor, root_rank, name=None, process_set=_ALL):
    """`tensor` of rank `root_rank`, as a new tensor on every rank.

    Its gradient on the root is the average of the ranks' gradients, as in Horovod.
    """
    if _differentiable(tensor):
        return _Broadcast.apply(tensor, root_rank, name, process_set)
    return broadcast_async(tensor, root_rank, name, process_set).wait()


def grouped_allgather(tensors, name=None, process_set=_ALL):
    """allgather() of each tensor."""
    pairs = list(zip(tensors, group_names(tensors, name), strict=True))
    if any(map(_differentiable, tensors)):
        return [allgather(tensor, one, process_set) for tensor, one in pairs]
    return as_group(allgather_async(tensor, one, process_set) for tensor, one in pairs).wait()
