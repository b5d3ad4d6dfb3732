"""The same start on every rank: parameters and Python objects from one rank to all."""

import types

from deft import objects
from deft.process_sets import global_process_set

from .collectives import broadcast_
from .engine import mxnet_errors
from .importing import mxnet as mx

_ALL = global_process_set


def broadcast_parameters(params, root_rank=0, prefix=None, process_set=_ALL):
    """Gives every rank of the set these parameters of rank `root_rank`, and returns when they are there.

    `params` is a ParameterDict (net.collect_params()) or a dict of Parameters or NDArrays (Module.get_params()). A
    parameter whose shape is not known yet is broadcast when the first forward has initialized it. `prefix`: of the
    names on the wire, to tell several calls apart.
    """
    if not isinstance(params, (dict, mx.gluon.ParameterDict)):
        raise ValueError(f"broadcast_parameters takes a dict of parameters, not {type(params).__name__}")
    if process_set.size() == 1:
        return
    tensors = {}
    for name, param in sorted(params.items()):
        wire = f"{prefix or ''}{name}"
        if not isinstance(param, mx.gluon.Parameter):
            tensors[wire] = param
            continue
        try:
            tensors[wire] = param.data()
        except mx.gluon.parameter.DeferredInitializationError:
            _broadcast_when_initialized(param, root_rank, wire, process_set)
    for name, tensor in tensors.items():
        broadcast_(tensor, root_rank, f"parameter.{name}", process_set=process_set)
    for tensor in tensors.values():
        tensor.wait_to_read()


def _broadcast_when_initialized(param, root_rank, name, process_set):
    initialize = param._init_impl

    def initialize_and_broadcast(self, *arguments):
        param.__dict__.pop("_init_impl", None)  # MXNet calls it again when a parameter moves to another device
        initialize(*arguments)
        broadcast_(self.data(), root_rank, f"parameter.{name}", process_set=process_set)

    param._init_impl = types.MethodType(initialize_and_broadcast, param)


@mxnet_errors
def broadcast_object(obj, root_rank=0, name=None, process_set=_ALL):
    """`obj` of rank `root_rank` on every rank; anything that pickle can carry."""
    return objects.broadcast_object(obj, root_rank, name, process_set)


@mxnet_errors
def allgather_object(obj, name=None, process_set=_ALL):
    """The objects of all ranks, as a list in the order of ranks."""
    return objects.allgather_object(obj, name, process_set)
