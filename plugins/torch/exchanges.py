"""alltoall, reducescatter, sparse and grouped collectives, with Horovod's names.

    received, splits = alltoall(tensor, splits=[2, 1])   # 2 rows to rank 0, 1 row to rank 1
    mine = reducescatter(tensor, op=Sum)                 # this rank's rows of the sum

Functions without `_async` can be differentiated. The daemons have no all-to-all and no reduce-scatter for tensors of
scripts: alltoall gathers all rows on all ranks, and reducescatter reduces all rows.
"""

import deft
from deft.codec import require_compressor
from deft.names import wire_name
from deft.process_sets import global_process_set, share_of
from deft.reduce_op import Adasum, Average, Sum, choose_op
from deft.session import finish_all

import torch

from .autograd import allgather, check_differentiable
from .collectives import (
    Compression,
    Handle,
    allgather_async,
    as_group,
    gather_rows,
    group_names,
    grouped_allreduce_plain,
    start_allgather,
    start_allreduce,
)
from .dtypes import in_memory
from .two_rounds import TwoRounds

_ALL = global_process_set


def _check_splits(tensor, splits, size):
    """(what is wrong, or ""; this rank's splits)."""
    nothing = [0] * size
    if tensor.dim() == 0:
        return "the tensor has no dimension to split", nothing
    rows = len(tensor)
    if splits is None:
        if rows % size:
            return f"{rows} rows cannot be split evenly among {size} ranks; give splits", nothing
        return "", [rows // size] * size
    splits = torch.as_tensor(splits)
    if splits.is_floating_point() or splits.dim() != 1 or len(splits) != size:
        return f"splits must be {size} integers, one for each rank", nothing
    splits = splits.tolist()
    if min(splits) < 0 or sum(splits) != rows:
        return f"the splits {splits} are not the {rows} rows of the tensor", nothing
    return "", splits


def _start_alltoall(tensor, splits, name, process_set):
    """The ranks tell each other how many rows each sends to each, and then gather the rows."""
    session, wire, device = process_set.session(), in_memory(tensor), tensor.device
    name = wire_name("alltoall", name, session)
    problem, mine = _check_splits(wire, splits, session.size)
    mine, table = torch.tensor(mine), torch.empty(session.size, session.size, dtype=torch.int64)
    # A rank with wrong splits differs in its terms from ranks with right ones, so all get the same error.
    terms = problem or f"{wire.dtype}, rows of shape {list(wire.shape[1:])}"
    counts = [session.size] * session.size
    all_splits = session.allgather(name, mine.data_ptr(), counts, deft.INT64, terms)

    def begin(all_splits):
        all_splits.finish(table.data_ptr(), keep_name=True)
        if problem:
            raise ValueError(f"{name}: {problem}")
        return gather_rows(session, f"{name}.rows", wire, table.sum(1).tolist(), device)

    both = TwoRounds(session, all_splits, begin)
    return Handle(both.poll, lambda: _received(both.finish(), table, session.rank))


def _received(rows, table, rank):
    """(what was sent to this rank, how many rows by each); `table`: what each sends to each."""
    firsts, counts = table[:, :rank].sum(1).tolist(), table[:, rank].tolist()
    blocks = zip(rows.split(table.sum(1).tolist()), firsts, counts)
    return torch.cat([block[first : first + count] for block, first, count in blocks]), table[:, rank].to(torch.int32)


def alltoall_async(tensor, splits=None, name=None, process_set=_ALL):
    """A handle; its result is that of alltoall()."""
    handle = _start_alltoall(tensor, splits, name, process_set)
    if splits is not None:
        return handle
    return Handle(handle.poll, lambda: handle.wait()[0])


class _DifferentiableAllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, splits, name, process_set):
        ctx.name, ctx.process_set = None if name is None else name + ".gradient", process_set
        received, ctx.received = _start_alltoall(tensor, splits, name, process_set).wait()
        ctx.mark_non_differentiable(ctx.received)
        return received, ctx.received

    @staticmethod
    def backward(ctx, gradient, _):
        sent_back, _ = alltoall(gradient.contiguous(), ctx.received, ctx.name, ctx.process_set)
        return sent_back, None, None, None


def alltoall(tensor, splits=None, name=None, process_set=_ALL):
    """Sends rows [sum(splits[:i]), + splits[i]) of `tensor` to each rank i; gives the rows that came, by rank.

    With `splits` it gives a pair: the rows, and how many came from each rank. Without, each rank gets equally many.
    """
    received, from_each = _DifferentiableAllToAll.apply(tensor, splits, name, process_set)
    return received if splits is None else (received, from_each)


def reducescatter_async(tensor, name=None, op=None, process_set=_ALL, prescale_factor=1.0, postscale_factor=1.0):
    """A handle; its result is that of reducescatter()."""
    op = choose_op(None, op)
    if tensor.dim() == 0:
        raise ValueError("reducescatter needs a tensor of one dimension or more")
    if op is Adasum:
        raise ValueError("reducescatter does not offer Adasum; use allreduce")
    name = wire_name("reducescatter", name, process_set.session())
    handle = start_allreduce(tensor, None, name, op, prescale_factor, postscale_factor, process_set=process_set)
    share = share_of(len(tensor), process_set)

    def finish():
        return handle.wait()[share].clone()

    return Handle(handle.poll, finish)


class _ReduceScatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, op, name, prescale, postscale, process_set):
        ctx.name, ctx.process_set = None if name is None else name + ".gradient", process_set
        ctx.factor = prescale * postscale * (process_set.size() if op is Sum else 1)  # as in Horovod
        ctx.differentiable = op in (Sum, Average)
        return reducescatter_async(tensor, name, op, process_set, prescale, postscale).wait()

    @staticmethod
    def backward(ctx, gradient):
        if not ctx.differentiable:
            raise RuntimeError("reducescatter has a gradient for Average and Sum only")
        gathered = allgather(gradient * ctx.factor, ctx.name, ctx.process_set)
        return gathered, None, None, None, None, None


def reducescatter(
    tensor,
    name=None,
    compression=Compression.none,
    op=None,
    process_set=_ALL,
    prescale_factor=1.0,
    postscale_factor=1.0,
):
    """This rank's rows of the reduction of `tensor` over all ranks: the first ranks get one row more if need be.

    The gradient of a sum is multiplied by the number of ranks, as in Horovod.
    """
    require_compressor(compression, "reducescatter")
    wire, context = compression.compress(tensor)
    op = choose_op(None, op)
    reduced = _ReduceScatter.apply(wire, op, name, prescale_factor, postscale_factor, process_set)
    return compression.decompress(reduced, context)


def grouped_reducescatter_async(
    tensors, name=None, op=None, process_set=_ALL, prescale_factor=1.0, postscale_factor=1.0
):
    names = group_names(tensors, name)
    return as_group(
        reducescatter_async(tensor, one, op, process_set, prescale_factor, postscale_factor)
        for tensor, one in zip(tensors, names, strict=True)
    )


def grouped_reducescatter(
    tensors,
    name=None,
    compression=Compression.none,
    op=None,
    process_set=_ALL,
    prescale_factor=1.0,
    postscale_factor=1.0,
):
    names = group_names(tensors, name)
    return [
        reducescatter(tensor, one, compression, op, process_set, prescale_factor, postscale_factor)
        for tensor, one in zip(tensors, names, strict=True)
    ]


def grouped_allgather_async(tensors, name=None, process_set=_ALL):
    names = group_names(tensors, name)
    return as_group(allgather_async(tensor, one, process_set) for tensor, one in zip(tensors, names, strict=True))


class _GroupedAllReduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, name, op, others, *tensors):
        ctx.arguments = (None if name is None else name + ".gradient", op, others)
        return tuple(grouped_allreduce_plain(tensors, name, op, *others))

    @staticmethod
    def backward(ctx, *gradients):
        check_differentiable(ctx.arguments[1])
        return (None, None, None, *_GroupedAllReduce.apply(*ctx.arguments, *gradients))


def grouped_allreduce(
    tensors,
    average=None,
    name=None,
    compression=Compression.none,
    op=None,
    prescale_factor=1.0,
    postscale_factor=1.0,
    process_set=_ALL,
):
    """The reduction of each tensor over all ranks, as new tensors, through which gradients flow."""
    op = choose_op(average, op)
    if not tensors:
        return []
    others = (prescale_factor, postscale_factor, compression, process_set)
    return list(_GroupedAllReduce.apply(name, op, others, *tensors))


def sparse_allreduce_async(tensor, name=None, op=None, process_set=_ALL):
    """The sum or average of sparse COO tensors over all ranks. Call the handle, or synchronize() it, for the result."""
    op = choose_op(None, op)
    if op not in (Average, Sum):
        raise ValueError(f"op is {op!r}; sparse tensors can be averaged and summed")
    if tensor.layout is not torch.sparse_coo:
        raise ValueError("sparse_allreduce_async needs a sparse COO tensor")
    mine = tensor.detach().coalesce()
    name, terms = wire_name("sparse", name, process_set.session()), f" ({op.name} of sparse {list(tensor.shape)})"
    indices = start_allgather(mine.indices().t(), f"{name}.indices", process_set, terms)
    values = start_allgather(mine.values(), f"{name}.values", process_set, terms)

    def finish():
        rows, places = finish_all([values.wait, indices.wait])
        if op is Average and rows.is_floating_point():
            rows = rows / process_set.size()
        total = torch.sparse_coo_tensor(places.t(), rows, tensor.shape).coalesce()
        if op is Average and not rows.is_floating_point():
            total = torch.div(total, process_set.size(), rounding_mode="trunc")
        return total.to(tensor.device)

    return Handle(lambda: indices.poll() and values.poll(), finish)
