"""The gradients of some variables on their way through the arena of one declared group.

    group = GradientGroup("tensorflow.0", names, dtypes, shapes, wires, scaling, reports=True)
    group.hand_over(index, array)     # of each variable, in any order: written to the arena, on its way at once
    group.collect()                   # waits; gives all averages

A round is a hand_over of each variable and one collect. Rounds count the steps of the group.
"""

import ctypes
import threading
from typing import NamedTuple

import deft
import numpy as np
from deft.world import session

from .dtypes import reducible


class Scaling(NamedTuple):
    before: float  # what gradients are multiplied by before the sum
    after: float  # and what sums are multiplied by


class Spec(NamedTuple):
    """A gradient; dtypes are TensorFlow's."""

    name: str
    dtype: object
    shape: tuple
    wire: object  # the dtype that travels


class GradientGroup:
    """`specs` are in the order in which forward uses the variables; the declared order is the reverse.

    hand_over may be called on any thread. `reports`: this group tells the daemon the stages of a step.
    """

    def __init__(self, name, specs, scaling, reports):
        self._specs = specs
        self._scaling = scaling
        self._reports = reports
        self._lock = threading.Lock()
        self._handed = bytearray(len(specs))
        self._step = 0
        last = len(specs) - 1
        tensors = [
            deft.Tensor(spec.name, reducible(spec.wire, spec.name), spec.shape, position)
            for position, spec in enumerate(specs)
        ]
        self._group = session().declare(name, tensors[::-1])
        self._views = [self._map(last - index, spec) for index, spec in enumerate(specs)]

    def _map(self, place, spec):
        memory = (ctypes.c_char * self._group.bytes(place)).from_address(self._group.data(place))
        return np.frombuffer(memory, spec.wire.as_numpy_dtype).reshape(spec.shape)

    def hand_over(self, index, gradient):
        self._group.check_open()  # a graph may be older than the session: then the views lie in memory that is gone
        with self._lock:
            first = not any(self._handed)
            if self._handed[index]:
                raise RuntimeError(
                    f"{self._specs[index].name}: its gradient of step {self._step} was handed over before, and the "
                    "averages of that step were not used: did an earlier step end by an error?"
                )
            self._handed[index] = 1
        if first and self._reports:
            session().stage(deft.BACKWARD, self._step)
        factor = gradient.dtype.type(self._scaling.before)
        np.multiply(gradient, factor, out=self._views[index], casting="unsafe")
        self._group.ready(len(self._specs) - 1 - index, 1, self._step)

    def collect(self):
        """The averages, in the order of the specs, as arrays that belong to the caller."""
        self._group.wait(0, len(self._specs), self._step)
        averages = [self._averaged(view, spec) for view, spec in zip(self._views, self._specs)]
        with self._lock:
            self._handed[:] = bytes(len(self._handed))
            self._step += 1
        if self._reports:
            session().stage(deft.FORWARD, self._step)
        return averages

    def _averaged(self, view, spec):
        average = view.astype(spec.dtype.as_numpy_dtype)
        if self._scaling.after != 1:
            average *= average.dtype.type(self._scaling.after)
        return average
