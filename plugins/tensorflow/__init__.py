"""Deft for TensorFlow 2 and Keras 3, with Horovod's names.

    import deft.tensorflow as hvd

    hvd.init()
    tape = hvd.DistributedGradientTape(tape)              # in each step; or, once:
    optimizer = hvd.DistributedOptimizer(optimizer)
    hvd.broadcast_variables(model.variables, root_rank=0)

The rest of the training script stays as it is. See docs/tensorflow.md.
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
from deft.reduce_op import Adasum, Average, Max, Min, Product, Sum
from deft.tracing import start_timeline, stop_timeline
from deft.world import (
    cross_rank,
    cross_size,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
)

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
from .starting import init
from .sync_batch_norm import SyncBatchNormalization
from .tape import DistributedGradientTape, PartialDistributedGradientTape
from .world_ops import local_rank_op, local_size_op, process_set_included_op, rank_op, size_op

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DeftError",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "Max",
    "Min",
    "PartialDistributedGradientTape",
    "ProcessSet",
    "Product",
    "Sum",
    "SyncBatchNormalization",
    "__version__",
    "add_process_set",
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
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_rank_op",
    "local_size",
    "local_size_op",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "process_set_included_op",
    "rank",
    "rank_op",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "size_op",
    "start_timeline",
    "stop_timeline",
]
