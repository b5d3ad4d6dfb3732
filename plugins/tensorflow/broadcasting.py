"""The same start on every rank: variables and Python objects from one rank to all."""

import pickle

import numpy as np
from deft.names import wire_name
from deft.world import rank, size

import tensorflow as tf

from .host import on_host, tensorflow_errors
from .transfers import Gather, start_broadcast


def broadcast_variables(variables, root_rank=0, inplace=False):
    """Gives every rank the values of these variables (tf.Variable or Keras's) of rank `root_rank`.

    `inplace` is accepted for Horovod's sake.
    """
    variables = list(variables)
    if not variables:
        return
    values = [tf.convert_to_tensor(variable) for variable in variables]

    def now(*arrays):
        started = [start_broadcast(array, root_rank, None) for array in arrays]
        return [finish() for finish in started]

    received = on_host(now, values, [value.dtype for value in values], [value.shape for value in values])
    for variable, value in zip(variables, received):
        variable.assign(value)


@tensorflow_errors
def broadcast_object(obj, root_rank=0, name=None):
    """`obj` of rank `root_rank` on every rank; anything that pickle can carry. Not for graphs."""
    name = wire_name("broadcast", name) + ".object"
    data = np.frombuffer(pickle.dumps(obj), np.uint8) if rank() == root_rank else np.empty(0, np.uint8)
    length = start_broadcast(np.array([data.size], np.int64), root_rank, name + ".size")()[0]
    if rank() != root_rank:
        data = np.empty(length, np.uint8)
    data = start_broadcast(data, root_rank, name)()
    return obj if rank() == root_rank else pickle.loads(data.tobytes())


@tensorflow_errors
def allgather_object(obj, name=None):
    """The objects of all ranks, as a list in the order of ranks. Not for graphs."""
    gather = Gather(np.frombuffer(pickle.dumps(obj), np.uint8), wire_name("allgather", name) + ".object")
    gather.begin_data()
    data = gather.finish()
    ends = np.cumsum(gather.rows)
    return [pickle.loads(data[ends[i] - gather.rows[i] : ends[i]].tobytes()) for i in range(size())]
