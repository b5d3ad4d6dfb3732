"""Deft for model.fit of Keras 3 on TensorFlow, with Horovod's names.

import deft.tensorflow.keras as hvd

hvd.init()
model.compile(optimizer=hvd.DistributedOptimizer(optimizer), loss=..., jit_compile=False)
model.fit(..., callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
"""

from deft import horovod as _horovod
from deft.horovod import *  # noqa: F403
from deft.process_sets import remove_process_set
from deft.world import shutdown

from ..broadcasting import allgather_object, broadcast_global_variables, broadcast_object, broadcast_variables
from ..compression import Compression
from ..starting import init
from . import callbacks, elastic
from .models import DistributedOptimizer, PartialDistributedOptimizer, load_model
from .values import allgather, allreduce, broadcast, reducescatter

__all__ = [
    "Compression",
    "DistributedOptimizer",
    "PartialDistributedOptimizer",
    "allgather",
    "allgather_object",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_variables",
    "callbacks",
    "elastic",
    "init",
    "load_model",
    "reducescatter",
    "remove_process_set",
    "shutdown",
]
__all__ += _horovod.__all__
