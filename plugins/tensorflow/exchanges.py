"""alltoall and reducescatter, built on allgather and allreduce: each rank receives what all ranks send.

So they cost more bytes than an exchange of the parts alone. Gradients flow through both.
"""

import numpy as np
from deft.names import wire_name
from deft.world import rank, size

import tensorflow as tf

from .collectives import allreduce
from .compression import Compression
from .host import on_host
from .reduce_op import Average, Sum
from .transfers import Gather


def alltoall(tensor, splits=None, name=None):
    """Sends splits[r] rows of `tensor` to each rank r; equal shares without `splits`.

    Gives the received rows in the order of ranks, and if `splits` is given also how many came from each rank.
    """
    tensor = tf.convert_to_tensor(tensor)
    shares = tf.fill([size()], tf.shape(tensor)[0] // size()) if splits is None else splits
    received, counts = _exchange(tensor, tf.cast(shares, tf.int64), name)
    return received if splits is None else (received, tf.cast(counts, tf.int32))


def _exchange(tensor, splits, name):
    @tf.custom_gradient
    def exchanged(given, shares):
        def gradient(upstream, _counts):
            back = None if name is None else name + ".gradient"
            return _exchange(upstream, counts, back)[0], None

        shape = [None, *given.shape[1:]]
        received, counts = on_host(
            lambda array, numbers: _exchange_now(array, numbers, name),
            [given, shares],
            [given.dtype, tf.int64],
            [shape, [size()]],
        )
        return (received, counts), gradient

    return exchanged(tensor, splits)


def _gathered(array, name):
    gather = Gather(array, name)
    gather.begin_data()
    return gather.finish()


def _exchange_now(array, splits, name):
    """Every rank sees the splits of all, so an error of one rank is the same error on all."""
    name = wire_name("alltoall", name)
    table = _gathered(np.concatenate([[len(array)], splits]).astype(np.int64)[None], f"{name}.splits")
    for other, (rows, *parts) in enumerate(table.tolist()):
        if len(parts) != size() or min(parts) < 0 or sum(parts) != rows:
            raise ValueError(
                f"{name}: rank {other} splits {rows} rows into {parts}; there must be {size()} parts, one a rank, "
                "which add up to the rows"
            )
    data = _gathered(array, name)
    firsts = np.cumsum(table[:, 0]) - table[:, 0] + table[:, 1 : 1 + rank()].sum(axis=1)
    counts = table[:, 1 + rank()]
    return [np.concatenate([data[first : first + count] for first, count in zip(firsts, counts)]), counts.copy()]


def reducescatter(
    tensor, op=Average, name=None, compression=Compression.none, prescale_factor=1.0, postscale_factor=1.0
):
    """This rank's share of the rows of the reduction; the first ranks get one row more if they cannot be equal."""
    if op not in (Average, Sum):
        raise ValueError(f"op is {op!r}; reducescatter takes deft.tensorflow.Average or Sum")
    tensor = tf.convert_to_tensor(tensor)
    total = allreduce(
        tensor,
        op=op,
        name=None if name is None else f"reducescatter.{name}",
        compression=compression,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
    )
    each, more = tf.shape(tensor)[0] // size(), tf.shape(tensor)[0] % size()
    first = each * rank() + tf.minimum(more, rank())
    return total[first : first + each + tf.cast(rank() < more, tf.int32)]
