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

from .broadcasting import allgather_object, broadcast_object, broadcast_variables
from .collectives import allgather, allreduce, barrier, broadcast, grouped_allreduce
from .compression import Compression
from .exchanges import alltoall, reducescatter
from .optimizer import DistributedOptimizer
from .reduce_op import Adasum, Average, Max, Min, Product, Sum
from .starting import init
from .tape import DistributedGradientTape

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DeftError",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "Max",
    "Min",
    "Product",
    "Sum",
    "__version__",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_object",
    "broadcast_variables",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "gloo_built",
    "gloo_enabled",
    "grouped_allreduce",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "reducescatter",
    "rocm_built",
    "shutdown",
    "size",
]
