"""Deft for model.fit of Keras 3 on TensorFlow, with Horovod's names.

import deft.tensorflow.keras as hvd

hvd.init()
model.compile(optimizer=hvd.DistributedOptimizer(optimizer), loss=..., jit_compile=False)
model.fit(..., callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
"""

from deft import DeftError, __version__
from deft.capabilities import (
    ccl_built,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rocm_built,
)
from deft.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from deft.reduce_op import Average, Max, Min, Sum
from deft.world import (
    cross_rank,
    cross_size,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
)

from ..broadcasting import allgather_object, broadcast_global_variables, broadcast_object, broadcast_variables
from ..compression import Compression
from ..starting import init
from . import callbacks
from .models import DistributedOptimizer, PartialDistributedOptimizer, load_model
from .values import allgather, allreduce, broadcast, reducescatter

__all__ = [
    "Average",
    "Compression",
    "DeftError",
    "DistributedOptimizer",
    "Max",
    "Min",
    "PartialDistributedOptimizer",
    "ProcessSet",
    "Sum",
    "__version__",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_variables",
    "callbacks",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_initialized",
    "load_model",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
]
