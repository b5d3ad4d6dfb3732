"""Python objects from one rank to all, or from all to all.

They travel as pickles, so all ranks must trust each other.
"""

import pickle

import numpy as np

from deft.arrays import Gather, start_broadcast
from deft.names import wire_name
from deft.process_sets import global_process_set


def broadcast_object(obj, root_rank=0, name=None, process_set=global_process_set):
    """`obj` of rank `root_rank` on every rank."""
    name = wire_name("broadcast", name, process_set.session()) + ".object"
    is_root = process_set.rank() == process_set.place_of(root_rank)
    data = np.frombuffer(pickle.dumps(obj), np.uint8) if is_root else np.empty(0, np.uint8)
    length = start_broadcast(np.array([data.size], np.int64), root_rank, name + ".size", process_set)()[0]
    if not is_root:
        data = np.empty(length, np.uint8)
    data = start_broadcast(data, root_rank, name, process_set)()
    return obj if is_root else pickle.loads(data.tobytes())


def allgather_object(obj, name=None, process_set=global_process_set):
    """The objects of all ranks, as a list in the order of ranks."""
    name = wire_name("allgather", name, process_set.session()) + ".object"
    gather = Gather(np.frombuffer(pickle.dumps(obj), np.uint8), name, process_set)
    gather.begin_data()
    data = gather.finish()
    ends = np.cumsum(gather.rows)
    return [pickle.loads(data[ends[i] - gather.rows[i] : ends[i]].tobytes()) for i in range(process_set.size())]
