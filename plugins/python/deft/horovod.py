"""Horovod's names that mean the same in every framework. The package of each framework offers all of them.

Names that some framework gives another meaning, such as init and shutdown, are not here.
"""

from deft import DeftError, HorovodInternalError, __version__
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

__all__ = [
    "Adasum",
    "Average",
    "DeftError",
    "HorovodInternalError",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "__version__",
    "add_process_set",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "rocm_built",
    "size",
    "start_timeline",
    "stop_timeline",
]
