"""Deft for model.fit of Keras 3 on TensorFlow, with Horovod's names.

import deft.tensorflow.keras as hvd

hvd.init()
model.compile(optimizer=hvd.DistributedOptimizer(optimizer), loss=..., jit_compile=False)
model.fit(..., callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
"""

import keras
from deft import DeftError, __version__
from deft.world import is_initialized, local_rank, local_size, rank, shutdown, size

from ..broadcasting import allgather_object, broadcast_object, broadcast_variables
from ..collectives import allgather, allreduce, broadcast
from ..compression import Compression
from ..optimizer import DistributedOptimizer
from ..reduce_op import Average, Max, Min, Sum
from ..starting import init
from . import callbacks

__all__ = [
    "Average",
    "Compression",
    "DeftError",
    "DistributedOptimizer",
    "Max",
    "Min",
    "Sum",
    "__version__",
    "allgather",
    "allgather_object",
    "allreduce",
    "broadcast",
    "broadcast_object",
    "broadcast_variables",
    "callbacks",
    "init",
    "is_initialized",
    "load_model",
    "local_rank",
    "local_size",
    "rank",
    "shutdown",
    "size",
]


def load_model(filepath, custom_objects=None, compression=Compression.none):
    """keras.models.load_model, with the optimizer of the model made distributed."""
    model = keras.models.load_model(filepath, custom_objects=custom_objects)
    if getattr(model, "optimizer", None) is not None:
        DistributedOptimizer(model.optimizer, compression=compression)
        model.jit_compile = False
    return model
