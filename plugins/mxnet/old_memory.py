"""Who writes to the memory that a gradient had before it moved into the arena.

A network under hybridize(static_alloc=True, static_shape=True) keeps the addresses of its gradients for all steps: so
they do not move. A graph that was recorded before the move writes to the old memory once, which is an error.
"""

import ctypes
import functools
import gc
import weakref

from .importing import mxnet as mx

_Block = mx.gluon.HybridBlock
_addressed = weakref.WeakSet()  # parameters with whose gradients' addresses an operation was built


def _note(block):
    if dict(block._flags).get("static_shape"):
        _addressed.update(param for is_argument, param in block._cached_op_args if not is_argument)


def _note_built(build):
    @functools.wraps(build)
    def built(block, *arguments):
        build(block, *arguments)
        _note(block)

    return built


_Block._build_cache = _note_built(_Block._build_cache)
for _object in gc.get_objects():  # those that were built before deft.mxnet was imported
    if issubclass(type(_object), _Block) and getattr(_object, "_cached_op", None) is not None:
        _note(_object)


class OlderGraphs:
    """The graphs that were recorded before gradients moved. It keeps the old memory."""

    def __init__(self):
        self._variables = []  # (parameter, array that stands for it in those graphs)

    def take_in(self, exchange, position, param):
        """Moves the gradient into the arena, so that backward of later graphs writes there."""
        gradient, data = param.list_grad()[0], param.list_data()[0]
        before, is_fresh = _same_variable(data), data._fresh_grad
        if param in _addressed or not exchange.take_in(position, gradient):
            return
        mx.autograd.mark_variables([data], [gradient], param.grad_req)
        data._fresh_grad, before._fresh_grad = is_fresh, False
        self._variables.append((param, before))

    def refuse_late(self):
        for param, before in self._variables:
            if before._fresh_grad:
                raise ValueError(
                    f"a gradient of parameter {param.name} is lost: backward has used a graph that was recorded before "
                    "the first step() of this trainer ended, in which gradients move into shared memory. Record graphs "
                    "after that step"
                )


def _same_variable(array):
    """Another array of the same memory, which remains autograd's variable of now when the first becomes another one."""
    handle = ctypes.c_void_p()
    mx.base.check_call(mx.base._LIB.MXShallowCopyNDArray(array.handle, ctypes.byref(handle)))
    return mx.nd.NDArray(handle)
