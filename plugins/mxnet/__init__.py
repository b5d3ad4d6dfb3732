"""Deft for MXNet 1.9.1, with Horovod's names.

    import deft.mxnet as hvd

    hvd.init()
    hvd.broadcast_parameters(net.collect_params(), root_rank=0)
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1})

The rest of the training script stays as it is. See docs/mxnet.md.
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
from deft.compression import Compression
from deft.process_sets import ProcessSet, add_process_set, global_process_set
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
    size,
)

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
from .starting import init, remove_process_set, shutdown
from .trainer import DistributedTrainer

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DeftError",
    "DistributedOptimizer",
    "DistributedTrainer",
    "KVStore",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "__version__",
    "add_process_set",
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
    "grouped_allreduce_",
    "grouped_reducescatter",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
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
    "start_timeline",
    "stop_timeline",
]
