"""Deft for MXNet 1.9.1, with Horovod's names.

    import deft.mxnet as hvd

    hvd.init()
    hvd.broadcast_parameters(net.collect_params(), root_rank=0)
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1})

The rest of the training script stays as it is. See docs/mxnet.md.
"""

from deft import horovod as _horovod
from deft.compression import Compression
from deft.horovod import *  # noqa: F403

from .broadcasting import allgather_object, broadcast_object, broadcast_parameters
from .collectives import (
    allgather,
    allreduce,
    allreduce_,
    alltoall,
    barrier,
    broadcast,
    broadcast_,
    grouped_allgather,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_reducescatter,
    reducescatter,
)
from .joining import join
from .kvstore import Deft as KVStore
from .optimizer import DistributedOptimizer
from .residuals import flush_residuals
from .starting import init, remove_process_set, shutdown
from .trainer import DistributedTrainer

__all__ = [
    "Compression",
    "DistributedOptimizer",
    "DistributedTrainer",
    "KVStore",
    "allgather",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_object",
    "broadcast_parameters",
    "flush_residuals",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_reducescatter",
    "init",
    "join",
    "reducescatter",
    "remove_process_set",
    "shutdown",
]
__all__ += _horovod.__all__
