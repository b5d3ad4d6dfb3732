"""Collectives on numpy arrays, for plugins whose framework gives its tensors as such.

    finish = start_allreduce(array, "loss", Average, 1.0, 1.0, array.dtype)
    result = finish()                       # waits

Each start_* gives a function that waits and gives the result. The ranks are those of `process_set`.
"""

import math

import numpy as np

import deft
from deft._native import InvalidCallError
from deft.adasum import adasum, check_ranks
from deft.names import wire_name
from deft.process_sets import global_process_set
from deft.reduce_op import Adasum, Average, Product
from deft.session import finish_all

_TO_DEFT = {  # by numpy's names of dtypes; bfloat16 is an extension of numpy's
    "float32": deft.FLOAT32,
    "float64": deft.FLOAT64,
    "float16": deft.FLOAT16,
    "bfloat16": deft.BFLOAT16,
    "int32": deft.INT32,
    "int64": deft.INT64,
    "uint8": deft.UINT8,
    "int8": deft.INT8,
}
_HALVES = ("float16", "bfloat16")
_ALL = global_process_set
_ALIGNMENT = 64  # EIGEN_MAX_ALIGN_BYTES with AVX-512, the largest


def _is_half(dtype):
    return dtype.itemsize == 2 and dtype.name in _HALVES  # numpy makes a name anew each time, which takes microseconds


def reducible(dtype, what):
    """Deft's number of a dtype that can be summed; an error that names `what` for the others."""
    name = np.dtype(dtype).name
    if name not in _TO_DEFT:
        raise ValueError(f"{what} is {name}, which cannot be reduced; convert it to one of {', '.join(_TO_DEFT)}")
    return _TO_DEFT[name]


def scaled(array, factor):
    """array * factor; integers are rounded towards zero. The factor of a 16-bit array is not rounded to 16 bits."""
    if factor == 1:
        return array
    if array.dtype.kind in "iu":
        count = round(1 / factor) if factor else 0
        if count > 0 and 1 / count == factor:  # an average: float64 has too few bits for a large sum
            wide = array if array.dtype.itemsize == 8 else array.astype(np.int64)
            quotient, rest = np.divmod(wide, wide.dtype.type(count))
            return (quotient + ((rest != 0) & (wide < 0)).astype(wide.dtype)).astype(array.dtype)
        return np.trunc(array * float(factor)).astype(array.dtype)
    if _is_half(array.dtype):
        return (array.astype(np.float32) * np.float32(factor)).astype(array.dtype)
    return array * array.dtype.type(factor)


def write_scaled(array, factor, out):
    """out = array * factor, of floating-point numbers, with the bits of scaled(). Their types may differ."""
    dtype = np.dtype(np.float32) if _is_half(array.dtype) else array.dtype
    np.multiply(array, dtype.type(factor), out=out, dtype=dtype, casting="unsafe")


def empty_aligned(shape, dtype):
    """An array whose memory a framework can take over as a tensor. What is less aligned TensorFlow copies."""
    dtype = np.dtype(dtype)
    size = math.prod(shape) * dtype.itemsize
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    begin = -memory.ctypes.data % _ALIGNMENT
    return memory[begin : begin + size].view(dtype).reshape(shape)


def _movable(array):
    """`array`, whose bytes mean the same in every process. Strings do not: numpy holds pointers to them."""
    array = np.asarray(array)
    if array.dtype.kind in "OSU":
        raise ValueError("the tensor holds strings, which only broadcast_object and allgather_object can carry")
    return array


def _without_elements(session, name, terms, array):
    """A collective on no elements: the ranks only agree that it is one."""
    operation = session.start_barrier(name, terms)

    def finish():
        operation.finish()
        return array

    return finish


def reduced(every, op):
    """The reduction of the values of all ranks that the daemons do not compute, over the first dimension."""
    if op is Product:
        return every.prod(axis=0, dtype=every.dtype)
    wide = every.astype(np.float32) if _is_half(every.dtype) else every
    return adasum(list(wide), _dot).astype(every.dtype)


def _dot(a, b):
    return float(np.dot(a.ravel().astype(np.float64), b.ravel().astype(np.float64)))


def check_adasum(wire, process_set):
    """Raises unless Adasum takes values of the dtype `wire` from the ranks of the set."""
    check_ranks(process_set.size(), repr(process_set))
    if wire.kind != "f" and not _is_half(wire):
        raise ValueError(f"Adasum needs a tensor of floating-point numbers, not of {wire.name}")


def start_allreduce(array, name, op, prescale, postscale, wire, process_set=_ALL, more_terms=""):
    """`wire` is the dtype that travels. `more_terms`: what else must be the same on all ranks."""
    session, size = process_set.session(), process_set.size()
    dtype, shape, wire = array.dtype, array.shape, np.dtype(wire)
    number = reducible(wire, f"tensor {name!r}" if name else "the tensor to reduce")
    if op is Adasum:
        check_adasum(wire, process_set)
    if op is Average:
        if _is_half(wire):  # the sum itself may not fit
            prescale /= size
        else:
            postscale /= size
    name, terms = wire_name("allreduce", name, session), f"{op.name}, shape {list(shape)}"
    if prescale != 1 or postscale != 1:
        terms += f", factors {prescale:g} and {postscale:g}"
    terms += more_terms
    if array.size == 0:
        return _without_elements(session, name, f"allreduce, {wire.name}, {terms}", array)
    given = np.ascontiguousarray(scaled(array, prescale).astype(wire, copy=False))
    gathers = op.wire is None
    if gathers:
        operation = session.allgather(name, given.ctypes.data, [given.size] * size, number, terms)
    else:
        operation = session.allreduce(name, given.ctypes.data, given.size, number, op.wire, terms)

    def finish():
        result = np.empty((size, *shape) if gathers else shape, given.dtype)
        operation.finish(result.ctypes.data)
        if gathers:
            result = reduced(result, op)
        return scaled(result, postscale).astype(dtype, copy=False)

    return finish


def start_broadcast(array, root_rank, name, process_set=_ALL):
    session, root = process_set.session(), process_set.place_of(root_rank)
    array = _movable(array)
    name, terms = wire_name("broadcast", name, session), f"{array.dtype}, shape {list(array.shape)}"
    if array.size == 0:
        return _without_elements(session, name, f"broadcast from rank {root_rank}, {terms}", array)
    given = np.ascontiguousarray(array)
    operation = session.broadcast(name, given.ctypes.data, given.nbytes, deft.UINT8, root, terms)

    def finish():
        received = np.empty(array.shape, given.dtype)
        operation.finish(received.ctypes.data)
        return received

    return finish


class Gather:
    """An allgather in two rounds: how much each rank gives, then the data. Made by every rank in the same order."""

    def __init__(self, array, name, process_set=_ALL, more_terms=""):
        self._session = process_set.session()
        self._array = np.ascontiguousarray(_movable(array))  # has one dimension or more
        self._name = wire_name("allgather", name, self._session)
        self._mine = np.array([len(self._array)], np.int64)
        terms = f"rows of {self._array.dtype}, shape {list(self._array.shape[1:])}{more_terms}"
        ones = [1] * self._session.size
        self._sizes = self._session.allgather(self._name, self._mine.ctypes.data, ones, deft.INT64, terms)
        self._data = None
        self.rows = []  # of each rank

    def begin_data(self):
        """Waits for the sizes of all ranks. A second time does nothing."""
        if self.rows:
            return
        rows = np.empty(self._session.size, np.int64)
        self._sizes.finish(rows.ctypes.data)
        self.rows = rows.tolist()
        row_bytes = math.prod(self._array.shape[1:]) * self._array.itemsize
        counts = [count * row_bytes for count in self.rows]
        if any(counts):
            self._data = self._session.allgather(f"{self._name}.data", self._array.ctypes.data, counts, deft.UINT8)

    def finish(self):
        """After begin_data(): the rows of all ranks."""
        result = np.empty((sum(self.rows), *self._array.shape[1:]), self._array.dtype)
        if self._data is not None:
            self._data.finish(result.ctypes.data)
        return result


def finish_gathers(gathers):
    """The rows of all ranks, of each Gather. The first error is raised when all have ended: their names are free."""
    begins, ends = [gather.begin_data for gather in gathers], [gather.finish for gather in gathers]
    return finish_all(begins + ends)[len(begins) :]


def _gathered(array, name, process_set):
    return finish_gathers([Gather(array, name, process_set)])[0]


def exchange_rows(array, splits, name, process_set=_ALL):
    """alltoall: this rank gives splits[r] rows to each rank r. Gives the received rows, and how many came from each.

    It is built on allgather. Every rank sees the splits of all, so an error of one rank is the same error on all. It is
    a DeftError and a ValueError: scripts of Horovod catch one or the other.
    """
    splits = np.asarray(splits)
    if splits.dtype.kind not in "iu":
        raise ValueError(f"splits are {splits.dtype}; they must be integers, one for each rank")
    session = process_set.session()
    rank, size, name = session.rank, session.size, wire_name("alltoall", name, session)
    table = _gathered(np.concatenate([[len(array)], splits]).astype(np.int64)[None], f"{name}.splits", process_set)
    for other, (rows, *parts) in enumerate(table.tolist()):
        if len(parts) != size or min(parts) < 0 or sum(parts) != rows:
            raise InvalidCallError(
                f"{name}: rank {other} splits {rows} rows into {parts}; there must be {size} parts, one a rank, "
                "which add up to the rows"
            )
    data = _gathered(array, name, process_set)
    firsts = np.cumsum(table[:, 0]) - table[:, 0] + table[:, 1 : 1 + rank].sum(axis=1)
    counts = table[:, 1 + rank]
    return [np.concatenate([data[first : first + count] for first, count in zip(firsts, counts)]), counts.copy()]
