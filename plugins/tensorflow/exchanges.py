"""alltoall and reducescatter, built on allgather and allreduce: each rank receives what all ranks send.

So they cost more bytes than an exchange of the parts alone. Gradients flow through both.
"""

from deft.arrays import exchange_rows
from deft.process_sets import global_process_set
from deft.reduce_op import Average, Sum

import tensorflow as tf

from .collectives import allgather, allreduce, group_names, shape_of_rows
from .compression import Compression
from .host import on_host

_ALL = global_process_set


def alltoall(tensor, splits=None, name=None, ignore_name_scope=False, process_set=_ALL):
    """Sends splits[r] rows of `tensor` to each rank r; equal shares without `splits`.

    Gives the received rows in the order of ranks, and if `splits` is given also how many came from each rank.
    """
    tensor, size = tf.convert_to_tensor(tensor), process_set.session().size
    shares = tf.fill([size], tf.shape(tensor)[0] // size) if splits is None else splits
    shares = tf.convert_to_tensor(shares)
    if not shares.dtype.is_integer:
        raise ValueError(f"splits are {shares.dtype.name}; they must be integers, one for each rank")
    received, counts = _exchange(tensor, tf.cast(shares, tf.int64), name, process_set)
    return received if splits is None else (received, tf.cast(counts, tf.int32))


def _exchange(tensor, splits, name, process_set):
    @tf.custom_gradient
    def exchanged(given, shares):
        def gradient(upstream, _counts):
            back = None if name is None else name + ".gradient"
            return _exchange(tf.convert_to_tensor(upstream), counts, back, process_set)[0], None

        received, counts = on_host(
            lambda array, numbers: exchange_rows(array, numbers, name, process_set),
            [given, shares],
            [given.dtype, tf.int64],
            [shape_of_rows(given), [process_set.size()]],
        )
        return (received, counts), gradient

    return exchanged(tensor, splits)


def reducescatter(
    tensor,
    device_dense="",
    compression=Compression.none,
    op=Average,
    name=None,
    process_set=_ALL,
    ignore_name_scope=False,
    prescale_factor=1.0,
    postscale_factor=1.0,
):
    """This rank's share of the rows of the reduction; the first ranks get one row more if they cannot be equal.

    The gradient of a sum is multiplied by the number of ranks, as in Horovod.
    """
    if op not in (Average, Sum):
        raise ValueError(f"op is {op!r}; reducescatter takes Average or Sum")
    factor = prescale_factor * postscale_factor * (process_set.size() if op is Sum else 1)  # as in Horovod

    @tf.custom_gradient
    def scattered(given):
        def gradient(upstream):
            back = None if name is None else f"reducescatter.{name}.gradient"
            return allgather(upstream * tf.cast(factor, upstream.dtype), back, process_set=process_set)

        total = allreduce(
            given,
            compression=compression,
            op=op,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
            name=None if name is None else f"reducescatter.{name}",
            process_set=process_set,
        )
        return _share(total, process_set), gradient

    return scattered(tf.convert_to_tensor(tensor))


def _share(rows, process_set):
    rank, size = process_set.rank(), process_set.size()
    each, more = tf.shape(rows)[0] // size, tf.shape(rows)[0] % size
    first = each * rank + tf.minimum(more, rank)
    return rows[first : first + each + tf.cast(rank < more, tf.int32)]


def grouped_reducescatter(
    tensors,
    device_dense="",
    compression=Compression.none,
    op=Average,
    process_set=_ALL,
    prescale_factor=1.0,
    postscale_factor=1.0,
    name=None,
):
    """reducescatter() of each tensor."""
    named = {"process_set": process_set, "prescale_factor": prescale_factor, "postscale_factor": postscale_factor}
    return [
        reducescatter(tensor, device_dense, compression, op, one, **named)
        for tensor, one in zip(tensors, group_names(tensors, name))
    ]
