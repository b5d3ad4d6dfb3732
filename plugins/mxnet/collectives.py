"""allreduce, broadcast, allgather, alltoall, reducescatter, their grouped and in-place variants, and barrier.

allreduce, broadcast and reducescatter return at once: the engine starts them when their tensor is computed, and what
uses the result waits for it. allgather and alltoall do not know the shape of their result beforehand, so they wait.
Names match tensors across ranks; without one, calls of a kind match in the order in which they are made. No gradients
flow through them. The ranks are those of `process_set`: all of the job, unless it is given. A root is named by its rank
in the job.
"""

from collections.abc import Callable
from typing import NamedTuple

import deft
import numpy as np
from deft import arrays
from deft.names import wire_name
from deft.process_sets import global_process_set, share_of
from deft.reduce_op import Adasum, Average, Sum, choose_op

from . import engine, join_watch
from .array_kinds import empty_like, of_kind
from .exchange import write
from .importing import mxnet as mx

_ALL = global_process_set
_HALF = np.dtype(np.float16)
_STAND_INS = {"int8": np.int32, "bool": np.uint8}  # what MXNet cannot place in the memory of a numpy array


def _staged(tensor):
    """Memory for the tensor's values, as numpy array and as NDArray."""
    dtype = np.dtype(tensor.dtype)
    array = np.empty(tensor.shape or (1,), _STAND_INS.get(dtype.name, dtype))
    return array, engine.view_of(array)


class _Collective(NamedTuple):
    """One on an array in host memory, whose result replaces its values."""

    session: deft.Session
    start: Callable  # of the array's address; gives a deft.Operation
    scales: tuple = (1.0, 1.0)  # before and after
    gathered: np.ndarray | None = None  # where the result goes, if the values are still to be made of it
    reduce: Callable | None = None  # makes them: of `gathered`


def _in_engine(tensor, out, staged, collective, priority):
    """out = the result of the collective."""
    array, view = staged
    session, gathered = collective.session, collective.gathered

    def begin(done):
        operation = collective.start(array.ctypes.data)
        join_watch.began(session)

        def ended(_error):
            join_watch.ended(session)
            try:
                operation.finish((array if gathered is None else gathered).ctypes.data)
            except deft.DeftError as error:
                done(error)
            else:
                done()

        operation.when_done(ended)

    def reduce(done):
        array[...] = collective.reduce(gathered)
        done()

    before, after = collective.scales
    of_floats = array.dtype.kind == "f"
    with mx.autograd.pause():  # a gradient of these copies alone would be a wrong one of the collective
        write(tensor, view, before if of_floats else 1.0)
        _scale_integers(staged, before)
        engine.push(begin, writes=[view], priority=priority, name="deft_collective")
        if gathered is not None:
            engine.push(reduce, writes=[view], priority=priority, name="deft_reduce")
        _scale_integers(staged, after)
        write(view, out, after if of_floats else 1.0)


def _scale_integers(staged, factor):
    """Multiplies integers, rounded towards zero: MXNet would use float64, which has too few bits for large sums."""
    array, view = staged
    if factor == 1.0 or array.dtype.kind == "f":
        return

    def scale(done):
        array[...] = arrays.scaled(array, factor)
        done()

    engine.push(scale, writes=[view], name="deft_scale")


def allreduce_into(tensor, out, name, op, prescale, postscale, priority, process_set=_ALL):
    """out = the reduction of `tensor`; both may be the same."""
    what = f"tensor {name!r}" if name else "the tensor to reduce"
    current, size, staged = process_set.session(), process_set.size(), _staged(tensor)
    array = staged[0]
    number = arrays.reducible(array.dtype, what)
    if op is Adasum:
        arrays.check_adasum(np.dtype(tensor.dtype), process_set)
    if op is Average:
        if np.dtype(tensor.dtype) == _HALF:  # the sum itself may not fit
            prescale /= size
        else:
            postscale /= size
    name, terms = wire_name("allreduce", name, current), f"{op.name}, shape {list(tensor.shape)}"
    if prescale != 1 or postscale != 1:
        terms += f", factors {prescale:g} and {postscale:g}"
    scales = (prescale, postscale)

    def reduce(address):
        return current.allreduce(name, address, array.size, number, op.wire, terms)

    def gather(address):
        return current.allgather(name, address, [array.size] * size, number, terms)

    if op.wire is not None:
        collective = _Collective(current, reduce, scales)
    else:  # the daemons do not compute it
        gathered = np.empty((size, *array.shape), array.dtype)
        collective = _Collective(current, gather, scales, gathered, lambda every: arrays.reduced(every, op))
    _in_engine(tensor, out, staged, collective, priority)


def allreduce(
    tensor,
    average=None,
    name=None,
    priority=0,
    prescale_factor=1.0,
    postscale_factor=1.0,
    process_set=_ALL,
    op=None,
):
    """The reduction of `tensor` over all ranks: the average unless `average` or `op` say otherwise.

    The result is reduce(tensor * prescale_factor) * postscale_factor.
    """
    out = empty_like(tensor)
    op = choose_op(average, op)
    allreduce_into(tensor, out, name, op, prescale_factor, postscale_factor, priority, process_set)
    return out


def allreduce_(
    tensor,
    average=None,
    name=None,
    priority=0,
    prescale_factor=1.0,
    postscale_factor=1.0,
    process_set=_ALL,
    op=None,
):
    """allreduce in place."""
    op = choose_op(average, op)
    allreduce_into(tensor, tensor, name, op, prescale_factor, postscale_factor, priority, process_set)
    return tensor


def _names_of_group(tensors, name):
    return [None if name is None else f"{name}.{i}of{len(tensors)}" for i in range(len(tensors))]


def _of_each(collective, tensors, name, **named):
    """collective(tensor, name=...) of each tensor, all under way at once."""
    return [collective(tensor, name=one, **named) for tensor, one in zip(tensors, _names_of_group(tensors, name))]


def grouped_allreduce(
    tensors,
    average=None,
    name=None,
    priority=0,
    prescale_factor=1.0,
    postscale_factor=1.0,
    process_set=_ALL,
    op=None,
):
    """allreduce of several tensors, which are all under way at once."""
    factors = {"prescale_factor": prescale_factor, "postscale_factor": postscale_factor}
    how = {"average": average, "op": op, "priority": priority, "process_set": process_set}
    return _of_each(allreduce, tensors, name, **how, **factors)


def grouped_allreduce_(
    tensors,
    average=None,
    name=None,
    priority=0,
    prescale_factor=1.0,
    postscale_factor=1.0,
    process_set=_ALL,
    op=None,
):
    """grouped_allreduce in place."""
    factors = {"prescale_factor": prescale_factor, "postscale_factor": postscale_factor}
    how = {"average": average, "op": op, "priority": priority, "process_set": process_set}
    return _of_each(allreduce_, tensors, name, **how, **factors)


def broadcast_into(tensor, out, root_rank, name, priority=0, process_set=_ALL):
    """out = `tensor` of rank root_rank; both may be the same."""
    current, root, staged = process_set.session(), process_set.place_of(root_rank), _staged(tensor)
    terms = f"{np.dtype(tensor.dtype).name}, shape {list(tensor.shape)}"
    name, count = wire_name("broadcast", name, current), staged[0].nbytes

    def start(address):
        return current.broadcast(name, address, count, deft.UINT8, root, terms)

    _in_engine(tensor, out, staged, _Collective(current, start), priority)


def broadcast(tensor, root_rank, name=None, priority=0, process_set=_ALL):
    """`tensor` of rank `root_rank` on every rank."""
    out = empty_like(tensor)
    broadcast_into(tensor, out, root_rank, name, priority, process_set)
    return out


def broadcast_(tensor, root_rank, name=None, priority=0, process_set=_ALL):
    """broadcast in place."""
    broadcast_into(tensor, tensor, root_rank, name, priority, process_set)
    return tensor


@engine.mxnet_errors
def allgather(tensor, name=None, priority=0, process_set=_ALL):
    """The tensors of all ranks, joined along the first dimension, in which they may differ in length.

    It waits, so `priority` is accepted for Horovod's sake only.
    """
    return _all_gathered([tensor], [name], process_set)[0]


@engine.mxnet_errors
def grouped_allgather(tensors, name=None, priority=0, process_set=_ALL):
    """allgather of several tensors, which are all under way at once. It waits for all."""
    return _all_gathered(tensors, _names_of_group(tensors, name), process_set)


def _all_gathered(tensors, names, process_set):
    rows = [np.atleast_1d(tensor.asnumpy()) for tensor in tensors]
    gathers = [arrays.Gather(array, name, process_set) for array, name in zip(rows, names)]
    return [of_kind(tensor, every) for every, tensor in zip(arrays.finish_gathers(gathers), tensors)]


@engine.mxnet_errors
def alltoall(tensor, splits=None, name=None, priority=0, process_set=_ALL):
    """Sends splits[r] rows of `tensor` to each rank r; equal shares without `splits`. It waits, as allgather does.

    Gives the received rows in the order of ranks, and if `splits` is given also how many came from each rank.
    """
    array, size = tensor.asnumpy(), process_set.size()
    if splits is None:
        shares = np.full(size, len(array) // size)
    else:
        shares = splits.asnumpy() if isinstance(splits, mx.nd.NDArray) else splits
    received, counts = arrays.exchange_rows(array, shares, name, process_set)
    if splits is None:
        return of_kind(tensor, received)
    return of_kind(tensor, received), of_kind(tensor, counts.astype(np.int32))


def reducescatter(
    tensor, op=Average, name=None, priority=0, prescale_factor=1.0, postscale_factor=1.0, process_set=_ALL
):
    """This rank's share of the rows of the reduction; the first ranks get one row more if they cannot be equal."""
    if op not in (Average, Sum):
        raise ValueError(f"op is {op!r}; reducescatter takes Average or Sum")
    if not tensor.shape:
        raise ValueError("reducescatter needs a tensor of one dimension or more")
    name = None if name is None else f"reducescatter.{name}"
    total = allreduce(tensor, None, name, priority, prescale_factor, postscale_factor, process_set, op)
    return total[share_of(tensor.shape[0], process_set)]


def grouped_reducescatter(tensors, op=Average, name=None, priority=0, process_set=_ALL, **factors):
    """reducescatter of several tensors, which are all under way at once."""
    return _of_each(reducescatter, tensors, name, op=op, priority=priority, process_set=process_set, **factors)


@engine.mxnet_errors
def barrier(process_set=_ALL, name=None):
    """Returns once every rank has called it."""
    session = process_set.session()
    session.barrier(wire_name("barrier", name, session))
