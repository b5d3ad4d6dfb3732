"""Averages the gradients of a step over all ranks: dense ones through the arena, IndexedSlices by gathering.

The gradients of the same variables keep one declared group for the whole session, however often a graph is traced and
a tape is made.
"""

import functools
import itertools
import weakref

import numpy as np
from deft.world import depend, size

import tensorflow as tf

from .gradient_group import GradientGroup, Scaling, Spec
from .host import on_host, tensorflow_errors
from .reduce_op import Average, Sum
from .transfers import Gather

_TOKEN = [np.int32(0)]  # what a call gives that the next one waits for


class _Groups:
    """The groups of this session, by variables and by how their gradients travel."""

    def __init__(self):
        self.release()

    def settle(self):
        """No update is ever held back."""

    flush = settle

    def release(self):
        """The session ends, and its groups with it."""
        self._known = {}
        self._numbers = itertools.count()

    def number(self):
        depend(self)
        return next(self._numbers)

    def find(self, variables, kind, make):
        """What make(number) gave for these variables at the first time."""
        key = (kind, *(id(variable) for variable in variables))
        references, found = self._known.get(key, ((), None))
        if found is None or any(reference() is not own for reference, own in zip(references, variables)):
            found = make(self.number())
            self._known[key] = ([weakref.ref(variable) for variable in variables], found)
        return found


_groups = _Groups()
_gathers = _Groups()  # numbered on their own: the first group of dense gradients reports the stages


class Averager:
    """What DistributedGradientTape and DistributedOptimizer have in common."""

    def __init__(self, compression, sparse_as_dense, op, predivide):
        if op not in (Average, Sum):
            raise ValueError(f"op is {op!r}; gradients take deft.tensorflow.Average or Sum")
        if predivide != 1.0 and op is not Average:
            raise ValueError("gradient_predivide_factor works with op=Average only")
        self._compression = compression
        self._sparse_as_dense = sparse_as_dense
        self._op = op
        self._predivide = predivide

    def average(self, gradients, variables):
        """The averages, with None where a gradient is None; the variables are in the order of their use."""
        if size() == 1:
            return gradients
        results = list(gradients)
        if self._sparse_as_dense:
            results = [tf.convert_to_tensor(g) if isinstance(g, tf.IndexedSlices) else g for g in results]
        sparse = [i for i, g in enumerate(results) if isinstance(g, tf.IndexedSlices)]
        dense = [i for i, g in enumerate(results) if g is not None and i not in sparse]
        gathers, tokens = self._start_sparse([results[i] for i in sparse], [variables[i] for i in sparse])
        if dense:
            averages = self._average_dense([results[i] for i in dense], [variables[i] for i in dense], tokens)
            for i, average in zip(dense, averages):
                results[i] = average
        if sparse:
            averages = self._finish_sparse([results[i] for i in sparse], gathers, tokens)
            for i, average in zip(sparse, averages):
                results[i] = average
        return results

    def _scaling(self):
        if self._op is Sum:
            return Scaling(1.0, 1.0)
        if self._predivide == 1.0:
            return Scaling(1.0 / size(), 1.0)
        return Scaling(1.0 / self._predivide, self._predivide / size())

    @tensorflow_errors
    def _declared(self, variables):
        """The group of these variables; all ranks declare it together, at the first time."""
        names = unique_names(variables)
        dtypes = [tf.as_dtype(variable.dtype) for variable in variables]
        specs = [
            Spec(name, dtype, tuple(variable.shape), self._compression.wire_dtype(dtype))
            for name, dtype, variable in zip(names, dtypes, variables)
        ]
        kind = (self._compression, self._scaling())
        return _groups.find(
            variables,
            kind,
            lambda number: GradientGroup(f"tensorflow.{number}", specs, self._scaling(), reports=number == 0),
        )

    def _average_dense(self, gradients, variables, tokens):
        """Backward makes the gradients of the last variables first, so they are handed over first."""
        group = self._declared(variables)
        for index in reversed(range(len(gradients))):
            hand_over = functools.partial(_handed_over, group, index)
            tokens = on_host(hand_over, [tf.cast(gradients[index], variables[index].dtype), *tokens], [tf.int32], [()])
        return on_host(
            lambda *_: group.collect(),
            tokens,
            [tf.as_dtype(variable.dtype) for variable in variables],
            [variable.shape for variable in variables],
        )

    def _start_sparse(self, slices, variables):
        """Tells all ranks how many rows each has; the rows follow in _finish_sparse."""
        if not slices:
            return None, []
        gathers = _gathers.find(variables, "sparse", SparseGathers)
        inputs = [tensor for one in slices for tensor in (one.values, one.indices)]
        return gathers, on_host(gathers.start, inputs, [tf.int32], [()])

    def _finish_sparse(self, slices, gathers, tokens):
        pairs = [(one.values, one.indices) for one in slices]
        dtypes = [tensor.dtype for pair in pairs for tensor in pair]
        shapes = [[None, *tensor.shape[1:]] for pair in pairs for tensor in pair]
        arrays = on_host(lambda *_: gathers.finish(), tokens, dtypes, shapes)
        factor = 1.0 if self._op is Sum else 1.0 / size()
        return [
            tf.IndexedSlices(values * tf.cast(factor, values.dtype), indices, one.dense_shape)
            for values, indices, one in zip(arrays[::2], arrays[1::2], slices)
        ]


def _handed_over(group, index, gradient, *_token):
    group.hand_over(index, gradient)
    return _TOKEN


class SparseGathers:
    """The rows and indices of some sparse gradients, gathered from all ranks."""

    def __init__(self, number):
        self._name = f"sparse.{number}"
        self._under_way = []

    def start(self, *arrays):
        self._under_way = [Gather(array, f"{self._name}.{i}") for i, array in enumerate(arrays)]
        return _TOKEN

    def finish(self):
        for gather in self._under_way:
            gather.begin_data()
        return [gather.finish() for gather in self._under_way]


def unique_names(variables):
    """Keras gives its variables a path. Variables without a name of their own get a number."""
    names = [getattr(variable, "path", None) or variable.name for variable in variables]
    return [name if names.count(name) == 1 else f"{name}.{i}" for i, name in enumerate(names)]
