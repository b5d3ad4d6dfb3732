"""Collectives on tensors: allreduce, allgather, broadcast, barrier; each at once or with a handle.

    handle = allreduce_async(tensor, name="loss")
    ...
    mean = synchronize(handle)

The `_` variants write into their argument. Names match tensors across ranks; without one, calls of a kind match in the
order in which they are made. Functions named here without `_` and `_async` can be differentiated (autograd.py).
"""

import math

import deft
from deft.names import wire_name
from deft.world import session, size

import torch

from .compression import Compression
from .dtypes import HALVES, TO_DEFT, as_bytes, in_memory, reducible


class ReduceOp:
    """How the values of the ranks become one."""

    def __init__(self, name, wire):
        self.name = name
        self.wire = wire  # what the daemon computes; None: it does not

    def __repr__(self):
        return f"deft.torch.{self.name}"


Average = ReduceOp("Average", deft.SUM)
Sum = ReduceOp("Sum", deft.SUM)
Min = ReduceOp("Min", deft.MIN)
Max = ReduceOp("Max", deft.MAX)
Adasum = ReduceOp("Adasum", None)
Product = ReduceOp("Product", None)


class Handle:
    """A collective under way. `finish` waits and gives the result; it runs once."""

    def __init__(self, poll, finish):
        self._poll = poll
        self._finish = finish
        self._result = None

    def poll(self):
        return self._finish is None or self._poll()

    def __call__(self):
        return self.wait()

    def wait(self):
        if self._finish is not None:
            self._result = self._finish()  # if Ctrl-C ends the wait, wait() may be called again
            self._finish = self._poll = None
        return self._result


def synchronize(handle):
    """Waits for an asynchronous collective and gives its result."""
    return handle.wait()


def poll(handle):
    """Whether synchronize() would return at once."""
    return handle.poll()


def choose_op(average, op):
    """Horovod's two ways to say it: op=, or the older average=True or False."""
    if average is not None:
        if op is not None:
            raise ValueError("give either op or average, not both")
        return Average if average else Sum
    op = Average if op is None else op
    if not isinstance(op, ReduceOp):
        raise ValueError(f"op is {op!r}; give one of deft.torch.Average, Sum, Min, Max, Product")
    if op is Adasum:
        raise ValueError(f"{op!r} is not offered; use deft.torch.Average, Sum, Min, Max or Product")
    return op


def _scale(tensor, factor):
    """tensor * factor in place; integers are rounded towards zero."""
    if factor == 1:
        return tensor
    if tensor.dtype.is_floating_point:
        return tensor.mul_(factor)
    return tensor.copy_((tensor.double() * factor).trunc_())


def _factors(prescale, postscale):
    return "" if prescale == postscale == 1 else f", factors {prescale:g} and {postscale:g}"


def _without_elements(name, terms, tensor, output):
    """A collective on no elements: the ranks only agree that it is one."""
    operation = session().start_barrier(name, terms)

    def finish():
        operation.finish()
        return tensor.detach().clone() if output is None else output

    return Handle(operation.poll, finish)


def start_allreduce(tensor, output, name, op, prescale, postscale, compression=Compression.none):
    """Begins; the handle's result is `output`, or a new tensor like `tensor` if that is None."""
    wire, context = compression.compress(tensor.detach())
    wire = in_memory(wire)
    dtype = reducible(wire.dtype, f"tensor {name!r}" if name else "the tensor to reduce")
    if op is Average:
        if wire.dtype in HALVES:  # the sum itself may not fit
            prescale /= size()
        else:
            postscale /= size()
    if prescale != 1:
        wire = _scale(wire.clone(), prescale)
    name = wire_name("allreduce", name)
    terms = f"{op.name}, shape {list(wire.shape)}{_factors(prescale, postscale)}"
    if wire.numel() == 0:
        return _without_elements(name, f"allreduce, {wire.dtype}, {terms}", tensor, output)
    if op is Product:  # the daemons do not multiply: the values of all ranks are gathered
        operation = session().allgather(name, wire.data_ptr(), [wire.numel()] * size(), dtype, terms)
    else:
        operation = session().allreduce(name, wire.data_ptr(), wire.numel(), dtype, op.wire, terms)

    def finish():
        if op is Product:
            every = wire.new_empty((size(), *wire.shape))
            operation.finish(every.data_ptr())
            reduced = every.prod(0, dtype=wire.dtype)
        else:
            reduced = torch.empty_like(wire)
            operation.finish(reduced.data_ptr())
        reduced = compression.decompress(_scale(reduced, postscale), context)
        if output is None:
            return reduced.to(tensor.device)
        with torch.no_grad():
            return output.copy_(reduced)

    return Handle(operation.poll, finish)


def allreduce_async(tensor, average=None, name=None, op=None, prescale_factor=1.0, postscale_factor=1.0):
    return start_allreduce(tensor, None, name, choose_op(average, op), prescale_factor, postscale_factor)


def allreduce_async_(tensor, average=None, name=None, op=None, prescale_factor=1.0, postscale_factor=1.0):
    return start_allreduce(tensor, tensor, name, choose_op(average, op), prescale_factor, postscale_factor)


def allreduce_(tensor, average=None, name=None, op=None, prescale_factor=1.0, postscale_factor=1.0):
    return allreduce_async_(tensor, average, name, op, prescale_factor, postscale_factor).wait()


def allreduce_plain(tensor, name, op, prescale_factor, postscale_factor, compression):
    return start_allreduce(tensor, None, name, op, prescale_factor, postscale_factor, compression).wait()


class _Together:
    """Several handles as one."""

    def __init__(self, handles):
        self.handles = handles

    def poll(self):
        return all(handle.poll() for handle in self.handles)

    def wait(self):
        return [handle.wait() for handle in self.handles]


def as_group(handles):
    """One handle for several; its result is the list of theirs."""
    together = _Together(list(handles))
    return Handle(together.poll, together.wait)


def group_names(tensors, name):
    return [None if name is None else f"{name}.{i}of{len(tensors)}" for i in range(len(tensors))]


def grouped_allreduce_async(tensors, average=None, name=None, op=None, prescale_factor=1.0, postscale_factor=1.0):
    return as_group(
        allreduce_async(tensor, average, one, op, prescale_factor, postscale_factor)
        for tensor, one in zip(tensors, group_names(tensors, name), strict=True)
    )


def grouped_allreduce_async_(tensors, average=None, name=None, op=None, prescale_factor=1.0, postscale_factor=1.0):
    return as_group(
        allreduce_async_(tensor, average, one, op, prescale_factor, postscale_factor)
        for tensor, one in zip(tensors, group_names(tensors, name), strict=True)
    )


def grouped_allreduce_plain(tensors, name, op, prescale_factor, postscale_factor, compression):
    return as_group(
        start_allreduce(tensor, None, one, op, prescale_factor, postscale_factor, compression)
        for tensor, one in zip(tensors, group_names(tensors, name), strict=True)
    ).wait()


def grouped_allreduce_(tensors, average=None, name=None, op=None, prescale_factor=1.0, postscale_factor=1.0):
    return grouped_allreduce_async_(tensors, average, name, op, prescale_factor, postscale_factor).wait()


class _Gather:
    """An allgather in two rounds: how much each rank gives, then the data."""

    def __init__(self, tensor, name):
        self.tensor = in_memory(tensor if tensor.dim() else tensor.reshape(1))
        self.device = tensor.device
        self.name = wire_name("allgather", name)
        self.mine = torch.tensor([len(self.tensor)])
        terms = f"rows of {self.tensor.dtype}, shape {list(self.tensor.shape[1:])}"
        self.sizes = session().allgather(self.name, self.mine.data_ptr(), [1] * size(), deft.INT64, terms)
        self.data = None
        self.rows = None

    def poll(self):
        if self.data is None:
            if not self.sizes.poll():
                return False
            self._begin_data()
        return self.data.poll()

    def finish(self):
        if self.data is None:
            self._begin_data()
        result = self.tensor.new_empty((sum(self.rows), *self.tensor.shape[1:]))
        self.data.finish(result.data_ptr())
        return result.to(self.device)

    def _begin_data(self):
        rows = torch.empty(size(), dtype=torch.int64)
        self.sizes.finish(rows.data_ptr())
        self.rows = rows.tolist()
        row_bytes = math.prod(self.tensor.shape[1:]) * self.tensor.element_size()
        counts = [rows * row_bytes for rows in self.rows]
        self.data = session().allgather(self.name + ".data", self.tensor.data_ptr(), counts, deft.UINT8)


def allgather_async(tensor, name=None):
    gather = _Gather(tensor, name)
    return Handle(gather.poll, gather.finish)


def _start_broadcast(tensor, output, root_rank, name):
    if not 0 <= root_rank < size():
        raise ValueError(f"root_rank is {root_rank}; the job has ranks 0 to {size() - 1}")
    wire = in_memory(tensor)
    name = wire_name("broadcast", name)
    terms = f"{wire.dtype}, shape {list(wire.shape)}"
    if wire.numel() == 0:
        return _without_elements(name, f"broadcast from rank {root_rank}, {terms}", tensor, output)
    dtype = TO_DEFT.get(wire.dtype)
    flat = wire if dtype is not None else as_bytes(wire)
    operation = session().broadcast(
        name, flat.data_ptr(), flat.numel(), deft.UINT8 if dtype is None else dtype, root_rank, terms
    )

    def finish():
        received = torch.empty_like(wire, memory_format=torch.contiguous_format)
        operation.finish(received.data_ptr())
        if output is None:
            return received.to(tensor.device)
        with torch.no_grad():
            return output.copy_(received)

    return Handle(operation.poll, finish)


def broadcast_async(tensor, root_rank, name=None):
    return _start_broadcast(tensor, None, root_rank, name)


def broadcast_async_(tensor, root_rank, name=None):
    return _start_broadcast(tensor, tensor, root_rank, name)


def broadcast_(tensor, root_rank, name=None):
    return broadcast_async_(tensor, root_rank, name).wait()


def barrier(name=None):
    """Returns once every rank has called it."""
    session().barrier(wire_name("barrier", name))
