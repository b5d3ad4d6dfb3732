"""The same start on every rank: variables and Python objects from one rank to all."""

from deft import objects
from deft.arrays import start_broadcast
from deft.process_sets import global_process_set
from deft.session import finish_all

import tensorflow as tf

from .collectives import group_names
from .host import on_host, tensorflow_errors

_ALL = global_process_set


def broadcast_variables(variables, root_rank=0, process_set=_ALL, inplace=False):
    """Gives every rank the values of these variables (tf.Variable or Keras's) of rank `root_rank`.

    `inplace` is accepted for Horovod's sake.
    """
    broadcast_(variables, root_rank, process_set=process_set)


def broadcast_(variables, root_rank, name=None, process_set=_ALL):
    """The same, and gives the values as tensors."""
    variables = list(variables)
    if not variables:
        return []
    values = [tf.convert_to_tensor(variable) for variable in variables]
    names = group_names(variables, name)

    def now(*arrays):
        started = [start_broadcast(array, root_rank, one, process_set) for array, one in zip(arrays, names)]
        return finish_all(started)

    received = on_host(now, values, [value.dtype for value in values], [value.shape for value in values])
    for variable, value in zip(variables, received):
        variable.assign(value)
    return received


def broadcast_global_variables(root_rank):
    """Of Horovod for TensorFlow 1, where a graph knows its variables; here it is an error that says what to call."""
    raise RuntimeError(
        "broadcast_global_variables() needs a graph of TensorFlow 1: call broadcast_variables(VARIABLES, root_rank) "
        "with the variables of your model and of its optimizer"
    )


@tensorflow_errors
def broadcast_object(obj, root_rank=0, session=None, name=None, process_set=_ALL):
    """`obj` of rank `root_rank` on every rank; anything that pickle can carry. Not for graphs, so without `session`."""
    return objects.broadcast_object(obj, root_rank, name, process_set)


def broadcast_object_fn(root_rank=0, session=None, name=None, process_set=_ALL):
    """broadcast_object() as a function of the object alone."""
    return lambda obj: broadcast_object(obj, root_rank, name=name, process_set=process_set)


@tensorflow_errors
def allgather_object(obj, session=None, name=None, process_set=_ALL):
    """The objects of all ranks, as a list in the order of ranks. Not for graphs, so without `session`."""
    return objects.allgather_object(obj, name, process_set)
