"""allreduce, grouped_allreduce, allgather, broadcast and barrier; gradients flow through all but the last.

Names match tensors across ranks; without one, calls of a kind match in the order in which they run.
"""

from deft.names import wire_name
from deft.world import rank, session, size

import tensorflow as tf

from .compression import Compression
from .host import on_host, tensorflow_errors
from .reduce_op import Average, Sum, choose_op
from .transfers import Gather, start_allreduce, start_broadcast


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
):
    """The reduction of `tensor` over all ranks: the average unless `op` says otherwise.

    The result is reduce(tensor * prescale_factor) * postscale_factor. tf.IndexedSlices are gathered. device_dense and
    device_sparse are accepted for Horovod's sake.
    """
    op = choose_op(average, op)
    if isinstance(tensor, tf.IndexedSlices):
        return _gather_slices(tensor, op, name)
    return _reduce([tensor], [name], op, prescale_factor, postscale_factor, compression)[0]


def grouped_allreduce(
    tensors,
    average=None,
    device_dense="",
    device_sparse="",
    compression=Compression.none,
    op=None,
    prescale_factor=1.0,
    postscale_factor=1.0,
    name=None,
):
    """allreduce of several tensors, which are all under way at once."""
    if not tensors:
        return []
    names = [None if name is None else f"{name}.{i}of{len(tensors)}" for i in range(len(tensors))]
    return _reduce(tensors, names, choose_op(average, op), prescale_factor, postscale_factor, compression)


def _reduce(tensors, names, op, prescale, postscale, compression):
    tensors = [tf.convert_to_tensor(tensor) for tensor in tensors]
    wires = [compression.wire_dtype(tensor.dtype) for tensor in tensors]

    def now(*arrays):
        started = [
            start_allreduce(array, name, op, prescale, postscale, wire)
            for array, name, wire in zip(arrays, names, wires)
        ]
        return [finish() for finish in started]

    @tf.custom_gradient
    def reduced(*inputs):
        def gradient(*upstream):
            if op not in (Average, Sum):
                raise ValueError(f"allreduce with {op!r} has no gradient; use Average or Sum")
            back = [None if name is None else name + ".gradient" for name in names]
            return _reduce(upstream, back, op, prescale, postscale, compression)

        results = on_host(now, inputs, [x.dtype for x in inputs], [x.shape for x in inputs])
        return tuple(results), gradient

    return list(reduced(*tensors))


def _gather_slices(slices, op, name):
    if op not in (Average, Sum):
        raise ValueError(f"{op!r} cannot reduce tf.IndexedSlices; use Average or Sum")
    values, indices = slices.values, slices.indices
    values = allgather(values, None if name is None else name + ".values")
    indices = allgather(indices, None if name is None else name + ".indices")
    if op is Average:
        values = values / tf.cast(size(), values.dtype)
    return tf.IndexedSlices(values, indices, slices.dense_shape)


def allgather(tensor, name=None):
    """The tensors of all ranks, joined along the first dimension, in which they may differ in length."""
    tensor = tf.convert_to_tensor(tensor)

    def now(array):
        gather = Gather(array, name)
        gather.begin_data()
        return [gather.finish(), tf.constant(gather.rows, tf.int64).numpy()]

    @tf.custom_gradient
    def gathered(given):
        shape = [None, *given.shape[1:]] if given.shape.rank is not None else None
        result, rows = on_host(now, [given], [given.dtype, tf.int64], [shape, [size()]])

        def gradient(upstream):
            total = _own_gradient(upstream, name)
            first = tf.reduce_sum(rows[: rank()])
            return tf.reshape(total[first : first + rows[rank()]], tf.shape(given))

        return result, gradient

    return gathered(tensor)


def broadcast(tensor, root_rank, name=None):
    """`tensor` of rank `root_rank` on every rank."""
    tensor = tf.convert_to_tensor(tensor)

    @tf.custom_gradient
    def sent(given):
        def now(array):
            return [start_broadcast(array, root_rank, name)()]

        def gradient(upstream):
            total = _own_gradient(upstream, name)
            return total if rank() == root_rank else tf.zeros_like(total)

        return on_host(now, [given], [given.dtype], [given.shape])[0], gradient

    return sent(tensor)


def _own_gradient(upstream, name):
    """Horovod's meaning: the gradient of what all ranks see is the average of theirs."""
    name = None if name is None else name + ".gradient"
    return _reduce([upstream], [name], Average, 1.0, 1.0, Compression.none)[0]


@tensorflow_errors
def barrier(name=None):
    """Returns once every rank has called it. Not for graphs."""
    session().barrier(wire_name("barrier", name))
