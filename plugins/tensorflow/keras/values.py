"""The collectives of deft.tensorflow with the arguments of horovod.tensorflow.keras, in its order."""

from deft.reduce_op import Average

from .. import collectives, exchanges
from ..compression import Compression


def allreduce(
    value,
    name=None,
    average=None,
    prescale_factor=1.0,
    postscale_factor=1.0,
    op=None,
    compression=Compression.none,
):
    """The reduction of `value` over all ranks: the average unless `op` says otherwise."""
    return collectives.allreduce(
        value,
        average=average,
        compression=compression,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        name=name,
    )


def allgather(value, name=None):
    """The values of all ranks, joined along the first dimension, in which they may differ in length."""
    return collectives.allgather(value, name)


def broadcast(value, root_rank, name=None):
    """`value` of rank `root_rank` on every rank."""
    return collectives.broadcast(value, root_rank, name)


def reducescatter(value, name=None, op=Average):
    """This rank's share of the rows of the reduction."""
    return exchanges.reducescatter(value, op=op, name=name)
