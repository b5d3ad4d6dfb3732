"""Deft for PyTorch, with Horovod's names.

    import deft.torch as hvd

    hvd.init()
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

The rest of the training script stays as it is. See docs/pytorch.md.
"""

from deft import horovod as _horovod
from deft.horovod import *  # noqa: F403
from deft.process_sets import init, remove_process_set
from deft.world import shutdown

import torch

from . import elastic
from .autograd import allgather, allreduce, broadcast, grouped_allgather
from .averaging import average_gradients
from .broadcasting import allgather_object, broadcast_object, broadcast_optimizer_state, broadcast_parameters
from .collectives import (
    allgather_async,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    barrier,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    poll,
    synchronize,
)
from .compression import Compression
from .exchanges import (
    alltoall,
    alltoall_async,
    grouped_allgather_async,
    grouped_allreduce,
    grouped_reducescatter,
    grouped_reducescatter_async,
    reducescatter,
    reducescatter_async,
    sparse_allreduce_async,
)
from .joining import join
from .optimizer import DistributedOptimizer
from .scaling import GradScaler
from .sync_batch_norm import SyncBatchNorm

if torch.distributed.is_available():
    from .c10d_backend import register
    from .ddp_hook import DdpState, ddp_hook

    register()

__all__ = [
    "Compression",
    "DdpState",
    "DistributedOptimizer",
    "GradScaler",
    "SyncBatchNorm",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "average_gradients",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "ddp_hook",
    "elastic",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "init",
    "join",
    "poll",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "shutdown",
    "sparse_allreduce_async",
    "synchronize",
]
__all__ += _horovod.__all__
