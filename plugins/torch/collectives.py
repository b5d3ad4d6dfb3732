"""Collectives on tensors: allreduce, allgather, broadcast, barrier; each at once or with a handle.

    handle = allreduce_async(tensor, name="loss")
    ...
    mean = synchronize(handle)

The `_` variants write into their argument. Names match tensors across ranks; without one, calls of a kind match in the
order in which they are made. Functions named here without `_` and `_async` can be differentiated (autograd.py). The
ranks are those of `process_set`: all of the job, unless it is given. A root is named by its rank in the job.
"""

import math

import deft
from deft.adasum import adasum, check_ranks
from deft.codec import require_compressor
from deft.names import wire_name
from deft.process_sets import global_process_set
from deft.reduce_op import Adasum, Average, Product, choose_op
from deft.session import finish_all

import torch

from .compression import Compression
from .dtypes import HALVES, TO_DEFT, as_bytes, in_memory, reducible
from .two_rounds import TwoRounds


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


def _scale(tensor, factor):
    """tensor * factor in place; integers are rounded towards zero."""
    if factor == 1:
        return tensor
    if tensor.dtype.is_floating_point:
        return tensor.mul_(factor)
    count = round(1 / factor) if factor else 0
    if count and 1 / count == factor:  # an average: float64 has too few bits for a large sum
        return tensor.copy_(tensor.long().div(count, rounding_mode="trunc"))
    return tensor.copy_((tensor.double() * factor).trunc_())


def _factors(prescale, postscale):
    return "" if prescale == postscale == 1 else f", factors {prescale:g} and {postscale:g}"


def _without_elements(session, name, terms, tensor, output):
    """A collective on no elements: the ranks only agree that it is one."""
    operation = session.start_barrier(name, terms)

    def finish():
        operation.finish()
        return tensor.detach().clone() if output is None else output

    return Handle(operation.poll, finish)


# What the daemons do not compute: the values of all ranks are gathered.
_OF_ALL_VALUES = {
    Product: lambda every: every.prod(0, dtype=every.dtype),
    Adasum: lambda every: adasum(every.unbind(0), _dot) if every.dtype not in HALVES else _adasum_of_halves(every),
}


def _dot(a, b):
    return torch.dot(a.reshape(-1).double(), b.reshape(-1).double()).item()


def _adasum_of_halves(every):
    return adasum(every.float().unbind(0), _dot).to(every.dtype)


def _check_adasum(tensor, process_set):
    check_ranks(process_set.size(), repr(process_set))
    if not tensor.dtype.is_floating_point:
        raise ValueError(f"Adasum needs a tensor of floating-point numbers, not of {tensor.dtype}")


def start_allreduce(
    tensor, output, name, op, prescale, postscale, compression=Compression.none, process_set=global_process_set
):
    """Begins; the handle's result is `output`, or a new tensor like `tensor` if that is None."""
    session = process_set.session()
    require_compressor(compression, "allreduce")
    wire, context = compression.compress(tensor.detach())
    wire = in_memory(wire)
    dtype = reducible(wire.dtype, f"tensor {name!r}" if name else "the tensor to reduce")
    if op is Adasum:
        _check_adasum(wire, process_set)
    if op is Average:
        if wire.dtype in HALVES:  # the sum itself may not fit
            prescale /= session.size
        else:
            postscale /= session.size
    if prescale != 1:
        wire = _scale(wire.clone(), prescale)
    name = wire_name("allreduce", name, session)
    terms = f"{op.name}, shape {list(wire.shape)}{_factors(prescale, postscale)}"
    if wire.numel() == 0:
        return _without_elements(session, name, f"allreduce, {wire.dtype}, {terms}", tensor, output)
    if op in _OF_ALL_VALUES:
        operation = session.allgather(name, wire.data_ptr(), [wire.numel()] * session.size, dtype, terms)
    else:
        operation = session.allreduce(name, wire.data_ptr(), wire.numel(), dtype, op.wire, terms)

    def finish():
        if op in _OF_ALL_VALUES:
            every = wire.new_empty((session.size, *wire.shape))
            operation.finish(every.data_ptr())
            reduced = _OF_ALL_VALUES[op](every)
        else:
            reduced = torch.empty_like(wire)
            operation.finish(reduced.data_ptr())
        reduced = compression.decompress(_scale(reduced, postscale), context)
        if output is None:
            return reduced.to(tensor.device)
        with torch.no_grad():
            return output.copy_(reduced)

    return Handle(operation.poll, finish)


_ALL = global_process_set


def allreduce_async(
    tensor, average=None, name=None, op=None, prescale_factor=1.0, postscale_factor=1.0, process_set=_ALL
):
    op = choose_op(average, op)
    return start_allreduce(tensor, None, name, op, prescale_factor, postscale_factor, process_set=process_set)


def allreduce_async_(
    tensor, average=None, name=None, op=None, prescale_factor=1.0, postscale_factor=1.0, process_set=_ALL
):
    op = choose_op(average, op)
    return start_allreduce(tensor, tensor, name, op, prescale_factor, postscale_factor, process_set=process_set)


def allreduce_(tensor, average=None, name=None, op=None, prescale_factor=1.0, postscale_factor=1.0, process_set=_ALL):
    return allreduce_async_(tensor, average, name, op, prescale_factor, postscale_factor, process_set).wait()


def allreduce_plain(tensor, name, op, prescale_factor, postscale_factor, compression, process_set):
    return start_allreduce(tensor, None, name, op, prescale_factor, postscale_factor, compression, process_set).wait()


class _Together:
    """Several handles as one."""

    def __init__(self, handles):
        self.handles = handles

    def poll(self):
        return all(handle.poll() for handle in self.handles)

    def wait(self):
        return finish_all([handle.wait for handle in self.handles])


def as_group(handles):
    """One handle for several; its result is the list of theirs."""
    together = _Together(list(handles))
    return Handle(together.poll, together.wait)


def group_names(tensors, name):
    return [None if name is None else f"{name}.{i}of{len(tensors)}" for i in range(len(tensors))]


def grouped_allreduce_async(
    tensors, average=None, name=None, op=None, prescale_factor=1.0, postscale_factor=1.0, process_set=_ALL
):
    return as_group(
        allreduce_async(tensor, average, one, op, prescale_factor, postscale_factor, process_set)
        for tensor, one in zip(tensors, group_names(tensors, name), strict=True)
    )


def grouped_allreduce_async_(
    tensors, average=None, name=None, op=None, prescale_factor=1.0, postscale_factor=1.0, process_set=_ALL
):
    return as_group(
        allreduce_async_(tensor, average, one, op, prescale_factor, postscale_factor, process_set)
        for tensor, one in zip(tensors, group_names(tensors, name), strict=True)
    )


def grouped_allreduce_plain(tensors, name, op, prescale_factor, postscale_factor, compression, process_set):
    return as_group(
        start_allreduce(tensor, None, one, op, prescale_factor, postscale_factor, compression, process_set)
        for tensor, one in zip(tensors, group_names(tensors, name), strict=True)
    ).wait()


def grouped_allreduce_(
    tensors, average=None, name=None, op=None, prescale_factor=1.0, postscale_factor=1.0, process_set=_ALL
):
    return grouped_allreduce_async_(tensors, average, name, op, prescale_factor, postscale_factor, process_set).wait()


def allgather_async(tensor, name=None, process_set=_ALL):
    return start_allgather(tensor, name, process_set)


def start_allgather(tensor, name, process_set, more_terms=""):
    """`more_terms`: what else must be the same on all ranks."""
    session, device = process_set.session(), tensor.device
    wire = in_memory(tensor if tensor.dim() else tensor.reshape(1))
    name = wire_name("allgather", name, session)
    terms = f"rows of {wire.dtype}, shape {list(wire.shape[1:])}{more_terms}"
    mine = torch.tensor([len(wire)])
    sizes = session.allgather(name, mine.data_ptr(), [1] * session.size, deft.INT64, terms)

    def begin(sizes):
        rows = torch.empty(session.size, dtype=torch.int64)
        sizes.finish(rows.data_ptr(), keep_name=True)
        return gather_rows(session, f"{name}.data", wire, rows.tolist(), device)

    both = TwoRounds(session, sizes, begin)
    return Handle(both.poll, both.finish)


def gather_rows(session, name, tensor, rows, device):
    """Begins to gather what lies in memory, when each rank's number of rows is known."""
    row_bytes = math.prod(tensor.shape[1:]) * tensor.element_size()
    data = session.allgather(name, tensor.data_ptr(), [count * row_bytes for count in rows], deft.UINT8)

    def finish():
        result = tensor.new_empty((sum(rows), *tensor.shape[1:]))
        data.finish(result.data_ptr())
        return result.to(device)

    return Handle(data.poll, finish)


def _start_broadcast(tensor, output, root_rank, name, process_set):
    session, root = process_set.session(), process_set.place_of(root_rank)
    wire = in_memory(tensor)
    name = wire_name("broadcast", name, session)
    terms = f"{wire.dtype}, shape {list(wire.shape)}"
    if wire.numel() == 0:
        return _without_elements(session, name, f"broadcast from rank {root_rank}, {terms}", tensor, output)
    dtype = TO_DEFT.get(wire.dtype)
    flat = wire if dtype is not None else as_bytes(wire)
    operation = session.broadcast(
        name, flat.data_ptr(), flat.numel(), deft.UINT8 if dtype is None else dtype, root, terms
    )

    def finish():
        received = torch.empty_like(wire, memory_format=torch.contiguous_format)
        operation.finish(received.data_ptr())
        if output is None:
            return received.to(tensor.device)
        with torch.no_grad():
            return output.copy_(received)

    return Handle(operation.poll, finish)


def broadcast_async(tensor, root_rank, name=None, process_set=_ALL):
    return _start_broadcast(tensor, None, root_rank, name, process_set)


def broadcast_async_(tensor, root_rank, name=None, process_set=_ALL):
    return _start_broadcast(tensor, tensor, root_rank, name, process_set)


def broadcast_(tensor, root_rank, name=None, process_set=_ALL):
    return broadcast_async_(tensor, root_rank, name, process_set).wait()


def barrier(process_set=_ALL, name=None):
    """Returns once every rank has called it."""
    session = process_set.session()
    session.barrier(wire_name("barrier", name, session))
