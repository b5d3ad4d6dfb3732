"""alltoall, reducescatter, sparse and grouped collectives, with Horovod's names.

    received, splits = alltoall(tensor, splits=[2, 1])   # 2 rows to rank 0, 1 row to rank 1
    mine = reducescatter(tensor, op=Sum)                 # this rank's rows of the sum

Functions without `_async` can be differentiated. The daemons have no all-to-all and no reduce-scatter for tensors of
scripts: alltoall gathers all rows on all ranks, and reducescatter reduces all rows.
"""

import deft
from deft.names import wire_name
from deft.world import rank, session, size

import torch

from .collectives import (
    Average,
    Compression,
    Handle,
    Sum,
    allgather_async,
    as_group,
    choose_op,
    group_names,
    grouped_allreduce_plain,
    start_allreduce,
)
from .dtypes import in_memory


class _AllToAll:
    """Two rounds: how many rows each rank sends to each, then the rows."""

    def __init__(self, tensor, splits, name):
        self._name = wire_name("alltoall", name)
        self._tensor, self._device = in_memory(tensor), tensor.device
        self._problem, mine = _check_splits(self._tensor, splits)
        self._mine = torch.tensor(mine)
        # A rank with wrong splits differs in its terms from ranks with right ones, so all get the same error.
        row = list(self._tensor.shape[1:])
        terms = self._problem or f"{self._tensor.dtype}, rows of shape {row}"
        self._splits = session().allgather(self._name, self._mine.data_ptr(), [size()] * size(), deft.INT64, terms)
        self._rows = None

    def poll(self):
        if self._rows is None:
            if not self._splits.poll():
                return False
            self._begin_rows()
        return self._rows.poll()

    def finish(self):
        if self._rows is None:
            self._begin_rows()
        rows = self._rows.wait()
        sent = self._table.sum(1).tolist()
        pieces = []
        for other, block in enumerate(rows.split(sent)):
            first = int(self._table[other, : rank()].sum())
            pieces.append(block[first : first + int(self._table[other, rank()])])
        received = torch.cat(pieces).to(self._device)
        return received, self._table[:, rank()].to(torch.int32)

    def _begin_rows(self):
        table = torch.empty(size(), size(), dtype=torch.int64)
        self._splits.finish(table.data_ptr())
        if self._problem:
            raise ValueError(f"{self._name}: {self._problem}")
        self._table = table
        self._rows = allgather_async(self._tensor, f"{self._name}.rows")


def _check_splits(tensor, splits):
    """(what is wrong, or ""; this rank's splits)."""
    nothing = [0] * size()
    if tensor.dim() == 0:
        return "the tensor has no dimension to split", nothing
    rows = len(tensor)
    if splits is None:
        if rows % size():
            return f"{rows} rows cannot be split evenly among {size()} ranks; give splits", nothing
        return "", [rows // size()] * size()
    splits = torch.as_tensor(splits)
    if splits.is_floating_point() or splits.dim() != 1 or len(splits) != size():
        return f"splits must be {size()} integers, one for each rank", nothing
    splits = splits.tolist()
    if min(splits) < 0 or sum(splits) != rows:
        return f"the splits {splits} are not the {rows} rows of the tensor", nothing
    return "", splits


def _start_alltoall(tensor, splits, name):
    exchange = _AllToAll(tensor, splits, name)
    return Handle(exchange.poll, exchange.finish)


def alltoall_async(tensor, splits=None, name=None):
    """A handle; its result is that of alltoall()."""
    handle = _start_alltoall(tensor, splits, name)
    if splits is not None:
        return handle
    return Handle(handle.poll, lambda: handle.wait()[0])


class _DifferentiableAllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, splits, name):
        ctx.name = None if name is None else name + ".gradient"
        received, ctx.received = _start_alltoall(tensor, splits, name).wait()
        ctx.mark_non_differentiable(ctx.received)
        return received, ctx.received

    @staticmethod
    def backward(ctx, gradient, _):
        return _start_alltoall(gradient.contiguous(), ctx.received, ctx.name).wait()[0], None, None


def alltoall(tensor, splits=None, name=None):
    """Sends rows [sum(splits[:i]), + splits[i]) of `tensor` to each rank i; gives the rows that came, by rank.

    With `splits` it gives a pair: the rows, and how many came from each rank. Without, each rank gets equally many.
    """
    received, from_each = _DifferentiableAllToAll.apply(tensor, splits, name)
    return received if splits is None else (received, from_each)


def _share(rows, of_rank):
    """(first, count) of the rows that a rank keeps: equally many, and the first ranks one more."""
    each, more = divmod(rows, size())
    return of_rank * each + min(of_rank, more), each + (of_rank < more)


def reducescatter_async(tensor, op=None, name=None, prescale_factor=1.0, postscale_factor=1.0):
    """A handle; its result is that of reducescatter()."""
    if tensor.dim() == 0:
        raise ValueError("reducescatter needs a tensor of one dimension or more")
    name = wire_name("reducescatter", name)
    handle = start_allreduce(tensor, None, name, choose_op(None, op), prescale_factor, postscale_factor)
    first, count = _share(len(tensor), rank())

    def finish():
        return handle.wait()[first : first + count].clone()

    return Handle(handle.poll, finish)


class _ReduceScatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, op, name, prescale, postscale):
        ctx.name = None if name is None else name + ".gradient"
        ctx.factor = prescale * postscale * (size() if op is Sum else 1)  # as in Horovod
        ctx.differentiable = op in (Sum, Average)
        return reducescatter_async(tensor, op, name, prescale, postscale).wait()

    @staticmethod
    def backward(ctx, gradient):
        if not ctx.differentiable:
            raise RuntimeError("reducescatter has a gradient for Average and Sum only")
        return allgather_async(gradient * ctx.factor, ctx.name).wait(), None, None, None, None


def reducescatter(tensor, compression=Compression.none, op=None, name=None, prescale_factor=1.0, postscale_factor=1.0):
    """This rank's rows of the reduction of `tensor` over all ranks: the first ranks get one row more if need be.

    The gradient of a sum is multiplied by the number of ranks, as in Horovod.
    """
    wire, context = compression.compress(tensor)
    reduced = _ReduceScatter.apply(wire, choose_op(None, op), name, prescale_factor, postscale_factor)
    return compression.decompress(reduced, context)


def grouped_reducescatter_async(tensors, op=None, name=None, prescale_factor=1.0, postscale_factor=1.0):
    names = group_names(tensors, name)
    return as_group(
        reducescatter_async(tensor, op, one, prescale_factor, postscale_factor)
        for tensor, one in zip(tensors, names, strict=True)
    )


def grouped_reducescatter(
    tensors, compression=Compression.none, op=None, name=None, prescale_factor=1.0, postscale_factor=1.0
):
    names = group_names(tensors, name)
    return [
        reducescatter(tensor, compression, op, one, prescale_factor, postscale_factor)
        for tensor, one in zip(tensors, names, strict=True)
    ]


def grouped_allgather_async(tensors, name=None):
    names = group_names(tensors, name)
    return as_group(allgather_async(tensor, one) for tensor, one in zip(tensors, names, strict=True))


class _GroupedAllReduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, name, op, prescale, postscale, compression, *tensors):
        ctx.arguments = (None if name is None else name + ".gradient", op, prescale, postscale, compression)
        return tuple(grouped_allreduce_plain(tensors, name, op, prescale, postscale, compression))

    @staticmethod
    def backward(ctx, *gradients):
        if ctx.arguments[1] not in (Average, Sum):
            raise RuntimeError(f"allreduce with {ctx.arguments[1]!r} has no gradient; use Average or Sum")
        return (None, None, None, None, None, *grouped_allreduce_plain(gradients, *ctx.arguments))


def grouped_allreduce(
    tensors, average=None, name=None, compression=Compression.none, op=None, prescale_factor=1.0, postscale_factor=1.0
):
    """The reduction of each tensor over all ranks, as new tensors, through which gradients flow."""
    op = choose_op(average, op)
    if not tensors:
        return []
    return list(_GroupedAllReduce.apply(name, op, prescale_factor, postscale_factor, compression, *tensors))


def sparse_allreduce_async(tensor, name=None, op=None):
    """The sum or average of sparse COO tensors over all ranks. Call the handle, or synchronize() it, for the result."""
    op = choose_op(None, op)
    if op not in (Average, Sum):
        raise ValueError(f"op is {op!r}; sparse tensors can be averaged and summed")
    if tensor.layout is not torch.sparse_coo:
        raise ValueError("sparse_allreduce_async needs a sparse COO tensor")
    mine = tensor.detach().coalesce()
    name = wire_name("sparse", name)
    indices = allgather_async(mine.indices().t(), f"{name}.indices")
    values = allgather_async(mine.values(), f"{name}.values")

    def finish():
        rows = values.wait()
        if op is Average:
            rows = rows / size()
        total = torch.sparse_coo_tensor(indices.wait().t(), rows.to(mine.dtype), tensor.shape)
        return total.coalesce().to(tensor.device)

    return Handle(lambda: indices.poll() and values.poll(), finish)
