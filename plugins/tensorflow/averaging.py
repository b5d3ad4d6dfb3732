"""Averages the gradients of a step over all ranks: dense ones through the arena, IndexedSlices by gathering.

However often a graph is traced and a tape is made, the gradients of the same variables keep one declared group. A graph
may be older than the session: it finds the groups of the session in which it runs.

The life of a group: it gets its number when a tape or an apply() is traced, or runs eagerly. In a later session a graph
that is not traced again gives the number when its first ordered call runs. Both orders are those of the program, so
ranks number alike (host.py). The group is declared when its first round begins. It ends with its session, with the
first of its variables that goes, and if an optimizer has made it, with that optimizer, which shares it with no other.
All of these may be collected at a time of each rank's own. So no later group takes the place of one that has ended.
"""

import contextlib
import functools
import itertools
import math
import weakref
from typing import NamedTuple

import numpy as np
from deft._native import EINVALID, DeftError
from deft.adasum import check_ranks
from deft.arrays import Gather, finish_gathers
from deft.codec import choose_compression
from deft.gradient_group import RETIRED, GradientSpec, LateGroup
from deft.names import common_name
from deft.process_sets import global_process_set
from deft.reduce_op import Adasum, Average, Sum, scaling_of
from deft.world import depend

import tensorflow as tf
from tensorflow.python.eager import record

from .collectives import allgather, grouped_allreduce, shape_of_rows
from .host import on_host

_WORTH_A_CALL_BYTES = 256 << 10
_TOKEN = [np.int32(0)]  # the result of a call for which the next call waits


class _Found(NamedTuple):
    """A group, and what ends it."""

    group: object
    references: list  # to its variables
    finalizers: list  # of its variables and its owner


class _Groups:
    """The groups of a session, by owner, by variables and by how their gradients travel."""

    def __init__(self, process_set):
        self._session = weakref.ref(process_set.session())
        self._known = {}
        self.release()

    def settle(self):
        """No update is ever held back."""

    flush = settle

    def release(self):
        """The session ends, and its groups with it."""
        for found in self._known.values():
            _detach(found)
        self._known = {}
        self._numbers = itertools.count()

    def number(self):
        depend(self, self._session())
        return next(self._numbers)

    def all(self):
        return [found.group for found in list(self._known.values())]

    def find(self, owner, references, kind, make):
        """What make(number) gave at the first time for the variables that these weak references are to.

        owner: a weak reference to the optimizer with which the group ends, or None."""
        key = (owner, kind, *map(id, references))  # a variable has one such reference, which is kept here
        if key not in self._known:
            keepers = [reference() for reference in (references if owner is None else [*references, owner])]
            if any(keeper is None for keeper in keepers):
                raise DeftError(EINVALID, RETIRED.format("of a function that is older than the session"))
            group = make(self.number())
            finalizers = [weakref.finalize(keeper, _retire, weakref.ref(self), key) for keeper in keepers]
            for one in finalizers:
                one.atexit = False
            self._known[key] = _Found(group, references, finalizers)
        return self._known[key].group

    def retire(self, key):
        """Waits for nothing, as finalizers call it, on any thread."""
        found = self._known.pop(key, None)
        if found is not None:
            _detach(found)
            found.group.retire()

    def keep_only(self, owner, variables):
        """The owner averages no others any more."""
        kept = set(map(id, variables))
        for key, found in list(self._known.items()):
            if key[0] == owner and not kept.issuperset(id(reference()) for reference in found.references):
                self.retire(key)


def _detach(found):
    for one in found.finalizers:
        one.detach()


def _retire(groups_of, key):
    groups = groups_of()
    if groups is not None:
        groups.retire(key)


# By session. Gathers are numbered on their own.
_groups, _gathers = weakref.WeakKeyDictionary(), weakref.WeakKeyDictionary()


def _of_session(groups, process_set):
    session = process_set.session()
    if session not in groups:
        groups[session] = _Groups(process_set)
    return groups[session]


class _OfVariables:
    """What belongs to some variables in each session, as _Groups.find() gives it."""

    def __init__(self, groups, owner, process_set, variables, kind, make):
        self._groups = groups
        self._owner = owner
        self._process_set = process_set
        self._references = [weakref.ref(variable) for variable in variables]  # a graph does not keep its variables
        self._kind, self._make = kind, make
        self._session, self._found = lambda: None, None
        self.now()

    def now(self):
        """Of the session that is open."""
        session = self._process_set.session()
        if self._session() is not session:
            groups = _of_session(self._groups, self._process_set)
            self._found = groups.find(self._owner, self._references, self._kind, self._make)
            self._session = weakref.ref(session)
        return self._found


def send_residuals():
    """The next step of each declared group brings what encodings have left out of its gradients."""
    for groups in list(_groups.values()):
        for group in groups.all():
            if group.declared is not None:
                group.declared.send_residuals()


def groups_for_join(process_set):
    """The declared groups of dense gradients; rounds of the others that an error has ended are forgotten."""
    groups = _of_session(_groups, process_set).all()
    for group in groups:
        group.forget_round()
    return [group.declared for group in groups if group.declared is not None]


class Averager:
    """What DistributedGradientTape and DistributedOptimizer have in common.

    goes_with(optimizer): its groups end with the optimizer. Those of tapes end with their variables, as a tape lives
    for one step only.
    """

    def __init__(self, compression, sparse_as_dense, op, predivide, process_set=global_process_set, scale_local=True):
        if op not in (Average, Sum, Adasum):
            raise ValueError(f"op is {op!r}; gradients take Average, Sum or Adasum")
        if predivide != 1.0 and op is not Average:
            raise ValueError("gradient_predivide_factor works with op=Average only")
        self._compression = compression
        self._sparse_as_dense = sparse_as_dense
        self._op = op
        self._predivide = predivide
        self._process_set = process_set
        self._scale_local = scale_local
        self._local = {}  # variables whose gradients stay with their rank, by id
        self._owner = None

    def goes_with(self, optimizer):
        self._owner = weakref.ref(optimizer)

    def keep_only(self, variables):
        """Ends its groups that have others than these variables."""
        if self._process_set.included():
            for groups in (_groups, _gathers):
                _of_session(groups, self._process_set).keep_only(self._owner, variables)

    def keep_local(self, variable):
        """The gradient of this variable is not averaged."""
        self._local[id(variable)] = variable

    @tf.autograph.experimental.do_not_convert
    def average(self, gradients, variables, loss_scale=None):
        """The averages, with None where a gradient is None; the variables are in the order of their use.

        loss_scale: a tensor by which the loss, and so the gradients, were multiplied. The next step may have another
        one, and what codecs leave out is added to that step's gradients. So what codecs may encode travels without it.
        """
        if not self._process_set.included() or self._process_set.size() == 1:
            return gradients
        if self._op is Adasum:
            check_ranks(self._process_set.size(), repr(self._process_set))
        results = list(gradients)
        shared = [i for i, variable in enumerate(variables) if id(variable) not in self._local]
        averages = self._average_shared([gradients[i] for i in shared], [variables[i] for i in shared], loss_scale)
        for i, average in zip(shared, averages):
            results[i] = average
        for i in set(range(len(variables))).difference(shared):
            results[i] = self._of_this_rank(gradients[i])
        return results

    def _of_this_rank(self, gradient):
        """Divided by the number of ranks, as in Horovod: then a loss counts as much as in the averages."""
        if gradient is None or not self._scale_local:
            return gradient
        size = self._process_set.size()
        if isinstance(gradient, tf.IndexedSlices):
            return tf.IndexedSlices(gradient.values / size, gradient.indices, gradient.dense_shape)
        return gradient / size

    def _average_shared(self, gradients, variables, loss_scale):
        results = list(gradients)
        if self._sparse_as_dense:
            results = [tf.convert_to_tensor(g) if isinstance(g, tf.IndexedSlices) else g for g in results]
        if self._op is Adasum:
            return self._by_adasum(results)
        sparse = [i for i, g in enumerate(results) if isinstance(g, tf.IndexedSlices)]
        dense = [i for i, g in enumerate(results) if g is not None and i not in sparse]
        gathers, tokens = self._start_sparse([results[i] for i in sparse], [variables[i] for i in sparse])
        if dense:
            given, of = [results[i] for i in dense], [variables[i] for i in dense]
            averages = self._average_dense(given, of, tokens, loss_scale)
            for i, average in zip(dense, averages):
                results[i] = average
        if sparse:
            averages = self._finish_sparse([results[i] for i in sparse], gathers, tokens)
            for i, average in zip(sparse, averages):
                results[i] = average
        return results

    def _by_adasum(self, gradients):
        """Each gradient by itself, when all are there: no policy schedules Adasum."""
        there = [i for i, gradient in enumerate(gradients) if gradient is not None]
        if any(isinstance(gradients[i], tf.IndexedSlices) for i in there):
            raise NotImplementedError("Adasum does not take tf.IndexedSlices: say sparse_as_dense=True")
        reduced = grouped_allreduce(
            [gradients[i] for i in there], compression=self._compression, op=Adasum, process_set=self._process_set
        )
        for i, one in zip(there, reduced):
            gradients[i] = one
        return gradients

    def _scaling(self):
        return scaling_of(self._op, self._predivide, self._process_set.size())

    def _spec(self, place, variable):
        name = getattr(variable, "path", None) or variable.name
        compressor, codec = choose_compression(self._compression, name, variable)
        own = np.dtype(tf.as_dtype(variable.dtype).as_numpy_dtype)
        wire = compressor.wire_dtype(own) if compressor else own
        return GradientSpec(common_name(place, name), own, tuple(variable.shape), wire, codec)

    def _specs(self, variables):
        return [self._spec(*each) for each in enumerate(variables)]

    def _group_of(self, variables, specs):
        """The group of these variables in each session."""
        # By what was chosen: a loop may make the function that chooses anew in each step.
        scaling, process_set = self._scaling(), self._process_set
        kind = (tuple((str(spec.wire), spec.codec) for spec in specs), scaling)

        def make(number):
            return LateGroup(f"tensorflow.{number}", specs, scaling, process_set)

        return _OfVariables(_groups, self._owner, process_set, variables, kind, make)

    def _average_dense(self, gradients, variables, tokens, loss_scale):
        specs = self._specs(variables)
        scales = [None if spec.wire == np.float16 else loss_scale for spec in specs]  # float16 needs the scale
        given = [
            _without_scale(tf.cast(gradient, variable.dtype), scale)
            for gradient, variable, scale in zip(gradients, variables, scales)
        ]
        group = self._group_of(variables, specs)
        averages = self._differentiable(functools.partial(_exchanged, group, specs, tokens), self._reduced)(*given)
        return [_with_scale(*pair) for pair in zip(averages, scales)]

    def _differentiable(self, function, gradient):
        """`function` of tensors, whose gradients gradient(tensors, upstreams) gives. A graph may get a tape around it
        later, and nobody asks for gradients of what an optimizer averages."""
        if self._owner is not None or (tf.executing_eagerly() and not record.could_possibly_record()):
            return function

        @tf.custom_gradient
        def differentiable(*tensors):
            return function(*tensors), lambda *upstreams: gradient(tensors, upstreams)

        return differentiable

    def _reduced(self, _tensors, upstreams):
        return grouped_allreduce(list(upstreams), op=self._op, process_set=self._process_set)

    def _own_rows(self, values, upstreams):
        """Of the reduced gradients of gathered rows."""
        counts = tf.reshape(tf.stack([tf.shape(one, tf.int64)[0] for one in values]), [1, -1])
        counts, rank = allgather(counts, process_set=self._process_set), self._process_set.rank()
        firsts = tf.reduce_sum(counts[:rank], 0)
        reduced = self._reduced(values, upstreams)
        return [one[firsts[i] : firsts[i] + counts[rank, i]] for i, one in enumerate(reduced)]

    def _start_sparse(self, slices, variables):
        """Tells all ranks how many rows each has; the rows follow in _finish_sparse."""
        if not slices:
            return None, []
        make = functools.partial(SparseGathers, process_set=self._process_set)
        gathers = _OfVariables(_gathers, self._owner, self._process_set, variables, "sparse", make)
        inputs = [tensor for one in slices for tensor in (one.values, one.indices)]
        terms = [f", {self._op.name} of gradients of {list(variable.shape)}" for variable in variables]
        return gathers, on_host(lambda *arrays: gathers.now().start(terms, arrays), inputs, [tf.int32], [()])

    def _finish_sparse(self, slices, gathers, tokens):
        tensors = [tensor for one in slices for tensor in (one.values, one.indices)]
        dtypes, shapes = [tensor.dtype for tensor in tensors], [shape_of_rows(tensor) for tensor in tensors]
        arrays = on_host(lambda *_: gathers.now().finish(), tokens, dtypes, shapes)
        factor = 1.0 if self._op is Sum else 1.0 / self._process_set.size()

        def gathered(*_values):
            return tuple(_scaled_rows(values, factor) for values in arrays[::2])

        values = self._differentiable(gathered, self._own_rows)(*tensors[::2])
        return [
            tf.IndexedSlices(values_of_all, indices, one.dense_shape)
            for values_of_all, indices, one in zip(values, arrays[1::2], slices)
        ]


def _exchanged(group, specs, tokens, *gradients):
    """Gradients are handed over as soon as backward has them, in any order: only the first call is in order."""
    begun = on_host(functools.partial(_begun, group), tokens, [tf.int32], [()])
    handed = []
    for run in runs(specs):
        hand_over = functools.partial(_handed_over, group, run)
        handed += on_host(hand_over, [*(gradients[i] for i in run), *begun], [tf.int32], [()], ordered=False)
    dtypes = [gradient.dtype for gradient in gradients]
    return tuple(on_host(lambda *_: group.now().collect(), handed, dtypes, [spec.shape for spec in specs]))


def _without_scale(gradient, scale):
    return gradient if scale is None else gradient / tf.cast(scale, gradient.dtype)


def _with_scale(average, scale):
    return average if scale is None else average * tf.cast(scale, average.dtype)


def _begun(group, *_token):
    group.now().begin_round()
    return _TOKEN


def runs(specs):
    """The gradients that one call hands over, as backward has them: the last ones first.

    A call of Python from a graph takes some 0.3 ms, as long as a megabyte takes. So small gradients go with the next
    ones.
    """
    run, size = [], 0
    for index in reversed(range(len(specs))):
        run.append(index)
        size += math.prod(specs[index].shape) * specs[index].dtype.itemsize
        if size >= _WORTH_A_CALL_BYTES or index == 0:
            yield run
            run, size = [], 0


def _handed_over(group, run, *gradients_and_token):
    group.now().hand_over(run, gradients_and_token[: len(run)])
    return _TOKEN


def _scaled_rows(values, factor):
    """The factor of 16-bit values is not rounded to 16 bits."""
    wide = tf.float32 if values.dtype.size == 2 else values.dtype
    return tf.cast(tf.cast(values, wide) * tf.cast(factor, wide), values.dtype)


class SparseGathers:
    """The rows and indices of some sparse gradients, gathered from all ranks."""

    def __init__(self, number, process_set):
        self._name = f"sparse.{number}"
        self._process_set = process_set
        self._under_way = []
        self._retired = False

    def retire(self):
        """Nobody keeps what its gradients are of."""
        self._retired = True

    def start(self, terms, arrays):
        """`arrays`: values and indices of each gradient. `terms`: what must be the same on all ranks, of each."""
        if self._retired:
            raise DeftError(EINVALID, RETIRED.format(self._name))
        with contextlib.suppress(DeftError):
            self.finish()  # what Ctrl-C has left of an earlier step: the others wait for it
        self._under_way = [
            Gather(array, f"{self._name}.{i}", self._process_set, terms[i // 2]) for i, array in enumerate(arrays)
        ]
        return _TOKEN

    def finish(self):
        try:
            results = finish_gathers(self._under_way)
        except Exception:
            self._under_way = []  # all of them have ended
            raise
        self._under_way = []
        return results
