"""allreduce, allgather, grouped ones, broadcast and barrier; gradients flow through all but the last.

Names match tensors across ranks; without one, calls of a kind match in the order in which they run. The ranks are those
of `process_set`: all of the job, unless it is given. A root is named by its rank in the job. Arguments are in
Horovod's order; device_dense, device_sparse and ignore_name_scope are accepted for its sake.
"""

from deft.arrays import Gather, start_allreduce, start_broadcast
from deft.codec import require_compressor
from deft.names import wire_name
from deft.process_sets import global_process_set
from deft.reduce_op import Adasum, Average, Sum, choose_op
from deft.session import finish_all

import tensorflow as tf

from .compression import Compression
from .host import on_host, tensorflow_errors

_ALL = global_process_set


def allreduce(
    tensor,
    average=None,
    device_dense="",
    device_sparse="",
    compression=Compression.none,
    op=None,
    prescale_factor=1.0,
    postscale_factor=1.0,
    name=None,
    process_set=_ALL,
    ignore_name_scope=False,
):
    """The reduction of `tensor` over all ranks: the average unless `op` says otherwise.

    The result is reduce(tensor * prescale_factor) * postscale_factor. tf.IndexedSlices are gathered.
    """
    op = choose_op(average, op)
    if isinstance(tensor, tf.IndexedSlices):
        return _reduce_slices(tensor, op, prescale_factor, postscale_factor, name, process_set)
    return _reduce([tensor], [name], op, prescale_factor, postscale_factor, compression, process_set)[0]


def grouped_allreduce(
    tensors,
    average=None,
    device_dense="",
    device_sparse="",
    compression=Compression.none,
    op=None,
    prescale_factor=1.0,
    postscale_factor=1.0,
    process_set=_ALL,
    ignore_name_scope=False,
    name=None,
):
    """allreduce of several tensors, which are all under way at once; tf.IndexedSlices are gathered, one by one."""
    op = choose_op(average, op)
    names, results = group_names(tensors, name), list(tensors)
    dense = [i for i, tensor in enumerate(tensors) if not isinstance(tensor, tf.IndexedSlices)]
    for i, tensor in enumerate(tensors):
        if isinstance(tensor, tf.IndexedSlices):
            results[i] = _reduce_slices(tensor, op, prescale_factor, postscale_factor, names[i], process_set)
    if dense:
        given, own = [tensors[i] for i in dense], [names[i] for i in dense]
        reduced = _reduce(given, own, op, prescale_factor, postscale_factor, compression, process_set)
        for i, one in zip(dense, reduced):
            results[i] = one
    return results


def group_names(tensors, name):
    return [None if name is None else f"{name}.{i}of{len(tensors)}" for i in range(len(tensors))]


def _reduce(tensors, names, op, prescale, postscale, compression, process_set):
    require_compressor(compression, "allreduce")
    tensors = [tf.convert_to_tensor(tensor) for tensor in tensors]
    wires = [compression.wire_dtype(tensor.dtype.as_numpy_dtype) for tensor in tensors]

    def now(*arrays):
        started = [
            start_allreduce(array, name, op, prescale, postscale, wire, process_set)
            for array, name, wire in zip(arrays, names, wires)
        ]
        return finish_all(started)

    @tf.custom_gradient
    def reduced(*inputs):
        def gradient(*upstream):
            if op not in (Average, Sum, Adasum):
                raise ValueError(f"allreduce with {op!r} has no gradient; use Average or Sum")
            back = [None if name is None else name + ".gradient" for name in names]
            return _reduce(upstream, back, op, prescale, postscale, compression, process_set)

        results = on_host(now, inputs, [x.dtype for x in inputs], [x.shape for x in inputs])
        return tuple(results), gradient

    return list(reduced(*tensors))


def _reduce_slices(slices, op, prescale, postscale, name, process_set):
    if prescale != 1.0 or postscale != 1.0:
        raise NotImplementedError("prescale_factor and postscale_factor do not go with tf.IndexedSlices")
    if op not in (Average, Sum):
        raise NotImplementedError(f"{op!r} cannot reduce tf.IndexedSlices; use Average or Sum")
    shape = [] if slices.dense_shape is None else [slices.dense_shape]
    terms = f", {op.name} of tf.IndexedSlices"
    values = _gather(slices.values, None if name is None else name + ".values", process_set, terms, shape)
    indices = _gather(slices.indices, None if name is None else name + ".indices", process_set, terms, shape)
    if op is Average:
        values = values / tf.cast(process_set.size(), values.dtype)
    return tf.IndexedSlices(values, indices, slices.dense_shape)


def allgather(tensor, name=None, ignore_name_scope=False, process_set=_ALL):
    """The tensors of all ranks, joined along the first dimension, in which they may differ in length."""
    return _gather(tensor, name, process_set)


def _gather(tensor, name, process_set, terms="", more=()):
    """`terms`: what else must be the same on all ranks, with the values of the tensors `more`."""
    rank, size = process_set.rank(), process_set.size()

    def now(array, *values):
        gather = Gather(array, name, process_set, terms + "".join(f" {value.tolist()}" for value in values))
        gather.begin_data()
        return [gather.finish(), tf.constant(gather.rows, tf.int64).numpy()]

    @tf.custom_gradient
    def gathered(given):
        result, rows = on_host(now, [given, *more], [given.dtype, tf.int64], [shape_of_rows(given), [size]])

        def gradient(upstream):
            total = _own_gradient(upstream, name, process_set)
            first = tf.reduce_sum(rows[:rank])
            return tf.reshape(total[first : first + rows[rank]], tf.shape(given))

        return result, gradient

    return gathered(tf.convert_to_tensor(tensor))


def shape_of_rows(tensor):
    """What is known of the shape of rows of several such tensors; None: nothing."""
    return None if tensor.shape.rank is None else [None, *tensor.shape[1:]]


def grouped_allgather(tensors, name=None, ignore_name_scope=False, process_set=_ALL):
    """allgather() of each tensor."""
    pairs = zip(tensors, group_names(tensors, name))
    return [allgather(tensor, one, process_set=process_set) for tensor, one in pairs]


def broadcast(tensor, root_rank, name=None, ignore_name_scope=False, process_set=_ALL):
    """`tensor` of rank `root_rank` on every rank."""
    tensor, is_root = tf.convert_to_tensor(tensor), process_set.rank() == process_set.place_of(root_rank)

    @tf.custom_gradient
    def sent(given):
        def now(array):
            return [start_broadcast(array, root_rank, name, process_set)()]

        def gradient(upstream):
            total = _own_gradient(upstream, name, process_set)
            return total if is_root else tf.zeros_like(total)

        return on_host(now, [given], [given.dtype], [given.shape])[0], gradient

    return sent(tensor)


def _own_gradient(upstream, name, process_set):
    """Horovod's meaning: the gradient of what all ranks see is the average of theirs."""
    name = None if name is None else name + ".gradient"
    return _reduce([upstream], [name], Average, 1.0, 1.0, Compression.none, process_set)[0]


@tensorflow_errors
def barrier(process_set=_ALL, name=None):
    """Returns once every rank has called it. Not for graphs."""
    session = process_set.session()
    session.barrier(wire_name("barrier", name, session))
