"""Collectives on numpy arrays: each start_* gives a function that waits and gives the result."""

import math

import deft
import numpy as np
from deft.names import wire_name
from deft.world import rank, session, size

from .dtypes import HALVES, reducible
from .reduce_op import Average


def _scale(array, factor):
    """array * factor; integers are rounded towards zero."""
    if factor == 1:
        return array
    if array.dtype.kind in "iu":
        return np.trunc(array * float(factor)).astype(array.dtype)
    return array * array.dtype.type(factor)


def start_allreduce(array, name, op, prescale, postscale, wire):
    """`wire` is the tf.DType that travels."""
    dtype, shape = array.dtype, array.shape
    number = reducible(wire, f"tensor {name!r}" if name else "the tensor to reduce")
    if op is Average:
        if wire in HALVES:  # the sum itself may not fit
            prescale /= size()
        else:
            postscale /= size()
    name = wire_name("allreduce", name)
    if array.size == 0:
        return lambda: array
    given = np.ascontiguousarray(_scale(array, prescale).astype(wire.as_numpy_dtype, copy=False))
    operation = session().allreduce(name, given.ctypes.data, given.size, number, op.wire)

    def finish():
        reduced = np.empty(shape, given.dtype)
        operation.finish(reduced.ctypes.data)
        return _scale(reduced, postscale).astype(dtype, copy=False)

    return finish


def start_broadcast(array, root_rank, name):
    if not 0 <= root_rank < size():
        raise ValueError(f"root_rank is {root_rank}; the job has ranks 0 to {size() - 1}")
    name = wire_name("broadcast", name)
    if array.size == 0:
        return lambda: array
    given = np.ascontiguousarray(array)
    operation = session().broadcast(name, given.ctypes.data, given.nbytes, deft.UINT8, root_rank)

    def finish():
        received = np.empty(array.shape, given.dtype)
        operation.finish(received.ctypes.data)
        return received

    return finish


class Gather:
    """An allgather in two rounds: how much each rank gives, then the data. Made by every rank in the same order."""

    def __init__(self, array, name):
        self._array = np.ascontiguousarray(array if array.ndim else array.reshape(1))
        self._name = wire_name("allgather", name)
        row = math.prod(self._array.shape[1:])
        self._mine = np.array([len(self._array), row, self._array.itemsize, self._array.ndim], np.int64)
        self._sizes = session().allgather(
            f"{self._name}.sizes", self._mine.ctypes.data, [self._mine.size] * size(), deft.INT64
        )
        self._data = None
        self.rows = []  # of each rank

    def begin_data(self):
        """Waits for the sizes of all ranks."""
        table = np.empty((size(), self._mine.size), np.int64)
        self._sizes.finish(table.ctypes.data)
        for other, given in enumerate(table.tolist()):
            self._check(other, given, self._mine.tolist())
        self.rows = table[:, 0].tolist()
        row_bytes = int(self._mine[1] * self._mine[2])
        counts = [rows * row_bytes for rows in self.rows]
        if any(counts):
            self._data = session().allgather(self._name, self._array.ctypes.data, counts, deft.UINT8)

    def _check(self, other, given, mine):
        if given[1:] != mine[1:]:
            raise ValueError(
                f"{self._name}: rank {other} gives rows of {given[1]} elements of {given[2]} bytes in {given[3]} "
                f"dimensions, rank {rank()} gives rows of {mine[1]} elements of {mine[2]} bytes in {mine[3]}; only "
                "the first dimension may differ"
            )

    def finish(self):
        """After begin_data(): the rows of all ranks."""
        result = np.empty((sum(self.rows), *self._array.shape[1:]), self._array.dtype)
        if self._data is not None:
            self._data.finish(result.ctypes.data)
        return result
