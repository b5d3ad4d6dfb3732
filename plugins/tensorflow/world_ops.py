"""rank_op() and its like: numbers that a graph asks for when it runs, and not when it is made.

`name` is accepted for Horovod's sake.
"""

import numpy as np
from deft import world
from deft.process_sets import find_process_set

import tensorflow as tf

from .host import on_host

_NOT_STARTED, _UNKNOWN = -1, -3  # Horovod's numbers


def _number(function):
    return on_host(lambda: [np.int32(function())], [], [tf.int32], [()])[0]


def rank_op(name=None):
    """rank() as a tensor."""
    return _number(world.rank)


def local_rank_op(name=None):
    """local_rank() as a tensor."""
    return _number(world.local_rank)


def size_op(process_set_id=0, name=None):
    """The number of ranks of a process set as a tensor; 0 is the set of all ranks."""

    def size():
        process_set = find_process_set(process_set_id)
        if process_set is None:
            raise ValueError(f"size_op: there is no process set {process_set_id}")
        return process_set.size()

    return _number(size)


def local_size_op(name=None):
    """local_size() as a tensor."""
    return _number(world.local_size)


def process_set_included_op(process_set_id=0, name=None):
    """1 if this rank is in the process set, else 0, as a tensor; -1 without init(), -3 if there is no such set."""

    def included():
        if not world.is_initialized():
            return _NOT_STARTED
        process_set = find_process_set(process_set_id)
        return _UNKNOWN if process_set is None else int(process_set.included())

    return _number(included)
