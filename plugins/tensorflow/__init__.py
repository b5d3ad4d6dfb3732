"""Deft for TensorFlow 2 and Keras 3, with Horovod's names.

    import deft.tensorflow as hvd

    hvd.init()
    tape = hvd.DistributedGradientTape(tape)              # in each step; or, once:
    optimizer = hvd.DistributedOptimizer(optimizer)
    hvd.broadcast_variables(model.variables, root_rank=0)

The rest of the training script stays as it is. See docs/tensorflow.md.
"""

from deft import horovod as _horovod
from deft.horovod import *  # noqa: F403
from deft.process_sets import remove_process_set
from deft.world import shutdown

from . import importing as _importing  # noqa: F401  (the first of all)

# isort: split
from . import elastic
from .broadcasting import (
    allgather_object,
    broadcast_,
    broadcast_global_variables,
    broadcast_object,
    broadcast_object_fn,
    broadcast_variables,
)
from .collectives import allgather, allreduce, barrier, broadcast, grouped_allgather, grouped_allreduce
from .compression import Compression
from .exchanges import alltoall, grouped_reducescatter, reducescatter
from .joining import join
from .optimizer import DistributedOptimizer
from .residuals import flush_residuals
from .starting import init
from .sync_batch_norm import SyncBatchNormalization
from .tape import DistributedGradientTape, PartialDistributedGradientTape
from .world_ops import local_rank_op, local_size_op, process_set_included_op, rank_op, size_op

__all__ = [
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "PartialDistributedGradientTape",
    "SyncBatchNormalization",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "elastic",
    "flush_residuals",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "init",
    "join",
    "local_rank_op",
    "local_size_op",
    "process_set_included_op",
    "rank_op",
    "reducescatter",
    "remove_process_set",
    "shutdown",
    "size_op",
]
__all__ += _horovod.__all__
