"""Backwards that run inside another one: reentrant checkpoints (activation checkpointing) have one for each block."""

import weakref

import torch

from .frames import frames_of, runs
from .hooks import current_task

_BACKWARD = torch.autograd.backward.__code__
_UNKNOWN = object()  # a backward that began elsewhere
_PYTHON_BACKWARD = torch.autograd.function.BackwardCFunction.apply.__code__


def is_nested():
    """Whether this runs inside the Python backward of an autograd function: then another backward is under way."""
    return runs(_PYTHON_BACKWARD)


def call_in_outermost(method):
    """Has a bound method called when the outermost backward goes on after the function that runs the nested one.

    autograd gives a nested backward no way to the outer one. But that function's inputs get their gradients next, and
    what computes or keeps these takes hooks. No hook keeps the method's object alive.
    """
    (*_, outermost) = frames_of(_PYTHON_BACKWARD)
    following = next((node for node, _ in outermost.f_locals["self"].next_functions if node is not None), None)
    if following is None:
        return
    called = weakref.WeakMethod(method)

    def go_on(_gradients):
        handle.remove()
        method = called()
        if method is not None:
            method()

    handle = following.register_prehook(go_on)


def running_backward():
    """What is another object for each backward, and one for those that are nested in it; None outside of backward."""
    if current_task() < 0:
        return None
    backwards = list(frames_of(_BACKWARD))
    if not backwards:
        return _UNKNOWN
    begins = backwards[-1].f_locals["tensors"][0]  # of the outermost
    # Nothing may keep the frame, and with it the graph: so this is a weak reference to the loss.
    return weakref.ref(begins) if isinstance(begins, torch.Tensor) else _UNKNOWN
