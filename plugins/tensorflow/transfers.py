"""Collectives on numpy arrays: each start_* gives a function that waits and gives the result."""

import math

import deft
import numpy as np
from deft.names import wire_name
from deft.world import session, size

from .dtypes import HALVES, reducible
from .reduce_op import Average


def _scale(array, factor):
    """array * factor; integers are rounded towards zero."""
    if factor == 1:
        return array
    if array.dtype.kind in "iu":
        return np.trunc(array * float(factor)).astype(array.dtype)
    return array * array.dtype.type(factor)


def _movable(array):
    """`array`, whose bytes mean the same in every process. Strings do not: numpy holds pointers to them."""
    array = np.asarray(array)
    if array.dtype.kind in "OSU":
        raise ValueError("the tensor holds strings, which only broadcast_object and allgather_object can carry")
    return array


def _without_elements(name, terms, array):
    """A collective on no elements: the ranks only agree that it is one."""
    operation = session().start_barrier(name, terms)

    def finish():
        operation.finish()
        return array

    return finish


def start_allreduce(array, name, op, prescale, postscale, wire):
    """`wire` is the tf.DType that travels."""
    dtype, shape = array.dtype, array.shape
    number = reducible(wire, f"tensor {name!r}" if name else "the tensor to reduce")
    if op is Average:
        if wire in HALVES:  # the sum itself may not fit
            prescale /= size()
        else:
            postscale /= size()
    name, terms = wire_name("allreduce", name), f"{op.name}, shape {list(shape)}"
    if prescale != 1 or postscale != 1:
        terms += f", factors {prescale:g} and {postscale:g}"
    if array.size == 0:
        return _without_elements(name, f"allreduce, {wire.name}, {terms}", array)
    given = np.ascontiguousarray(_scale(array, prescale).astype(wire.as_numpy_dtype, copy=False))
    operation = session().allreduce(name, given.ctypes.data, given.size, number, op.wire, terms)

    def finish():
        reduced = np.empty(shape, given.dtype)
        operation.finish(reduced.ctypes.data)
        return _scale(reduced, postscale).astype(dtype, copy=False)

    return finish


def start_broadcast(array, root_rank, name):
    if not 0 <= root_rank < size():
        raise ValueError(f"root_rank is {root_rank}; the job has ranks 0 to {size() - 1}")
    array = _movable(array)
    name, terms = wire_name("broadcast", name), f"{array.dtype}, shape {list(array.shape)}"
    if array.size == 0:
        return _without_elements(name, f"broadcast from rank {root_rank}, {terms}", array)
    given = np.ascontiguousarray(array)
    operation = session().broadcast(name, given.ctypes.data, given.nbytes, deft.UINT8, root_rank, terms)

    def finish():
        received = np.empty(array.shape, given.dtype)
        operation.finish(received.ctypes.data)
        return received

    return finish


class Gather:
    """An allgather in two rounds: how much each rank gives, then the data. Made by every rank in the same order."""

    def __init__(self, array, name):
        self._array = np.ascontiguousarray(_movable(array))  # has one dimension or more
        self._name = wire_name("allgather", name)
        self._mine = np.array([len(self._array)], np.int64)
        terms = f"rows of {self._array.dtype}, shape {list(self._array.shape[1:])}"
        self._sizes = session().allgather(self._name, self._mine.ctypes.data, [1] * size(), deft.INT64, terms)
        self._data = None
        self.rows = []  # of each rank

    def begin_data(self):
        """Waits for the sizes of all ranks."""
        rows = np.empty(size(), np.int64)
        self._sizes.finish(rows.ctypes.data)
        self.rows = rows.tolist()
        row_bytes = math.prod(self._array.shape[1:]) * self._array.itemsize
        counts = [count * row_bytes for count in self.rows]
        if any(counts):
            self._data = session().allgather(f"{self._name}.data", self._array.ctypes.data, counts, deft.UINT8)

    def finish(self):
        """After begin_data(): the rows of all ranks."""
        result = np.empty((sum(self.rows), *self._array.shape[1:]), self._array.dtype)
        if self._data is not None:
            self._data.finish(result.ctypes.data)
        return result
