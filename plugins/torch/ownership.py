"""Which optimizer a parameter belongs to: a model that is given to a new optimizer leaves its earlier one."""

import logging
import sys
import weakref

from deft import DeftError
from deft.session import has_failed
from deft.world import is_dependent, is_in_job

import torch
from torch.utils.weak import WeakTensorKeyDictionary

log = logging.getLogger("deft.torch")
_owners = WeakTensorKeyDictionary()  # parameter -> weak reference to the steps of the optimizer whose hooks it has


def retire_earlier(gradients):
    """Ends the optimizers that these parameters had before; call it before any new hook is made.

    Each of the gradients has a `param` and its `name`."""
    for gradient in gradients:
        reference = _owners.pop(gradient.param, None)
        earlier = None if reference is None else reference()
        if earlier is not None and not earlier.ownership.is_retired():
            if is_dependent(earlier):  # else its session has ended, and settled it
                earlier.settle()
            earlier.release()
            earlier.ownership.retire_for(gradient.name)


def register(gradients, steps):
    """`steps` has settle(), release() and an Ownership."""
    for gradient in gradients:
        _owners[gradient.param] = weakref.ref(steps)


def belongs(param, steps):
    """Whether `steps` is the last that was registered for the parameter."""
    reference = _owners.get(param)
    return steps is not None and reference is not None and reference() is steps


def settle_at_end(optimizer, steps):
    """The user's last reference to a distributed optimizer has gone, on all ranks at the same place.

    If the optimizer is part of a cycle, each rank collects it at another moment. Then only what this rank can do alone
    is done: updates that wait for the next forward are made.
    """
    if sys.is_finalizing() or has_failed() or not is_in_job():
        return
    try:
        if steps.overlap.deferred is not None:
            steps.overlap.deferred.flush_at_end(optimizer)
        if steps.ownership.is_alone(optimizer) and is_dependent(steps):
            steps.settle()
    except DeftError as error:
        log.error("updates under way are lost: %s", error)


class Ownership:
    """The parameters of one optimizer; those without a hook must not get a gradient, unless they have no elements."""

    def __init__(self, optimizer, gradients):
        hooked = {id(gradient.param) for gradient in gradients}
        self._unhooked = [p for group in optimizer.param_groups for p in group["params"] if id(p) not in hooked]
        # With a callback: from Python 3.14 on, a collection clears only such references before it runs finalizers.
        self._optimizer_of = weakref.ref(optimizer, lambda _: None)
        self._out_of_use = None  # why

    def is_alone(self, optimizer):
        """Whether an optimizer that ends is not part of a cycle: weak references to the parts of a cycle go first."""
        return self._optimizer_of() is optimizer

    def add_unhooked(self, params):
        self._unhooked += params

    def add_group(self, add, group):
        """add_param_group(group), by `add`, the user's class's own."""
        params = group["params"]
        params = [params] if isinstance(params, torch.Tensor) else list(params)
        tensors = [param[1] if isinstance(param, tuple) else param for param in params]  # they may come with names
        if any(isinstance(param, torch.Tensor) and param.requires_grad for param in tensors):
            raise ValueError(
                "parameters cannot be added to a DistributedOptimizer; add all groups before "
                "deft.torch.DistributedOptimizer, with requires_grad set"
            )
        add({**group, "params": params})
        self.add_unhooked(tensors)

    def is_retired(self):
        return self._out_of_use is not None

    def retire_for(self, name):
        """A newer optimizer has taken the parameter `name`."""
        self._out_of_use = f"parameter {name} was given to a newer DistributedOptimizer; this one is out of use"

    def session_ends(self):
        self._out_of_use = self._out_of_use or "the session of this DistributedOptimizer has ended: wrap a new one"

    def check_in_use(self):
        if self._out_of_use is not None:
            raise RuntimeError(self._out_of_use)

    def check_gradients(self):
        for param in self._unhooked:
            if param.grad is not None and param.numel():
                raise RuntimeError(
                    f"a parameter of shape {list(param.shape)} has a gradient, but did not require one when the "
                    "optimizer was made distributed; set requires_grad before deft.torch.DistributedOptimizer, or wrap "
                    "a new optimizer; with average_gradients(model), call it again"
                )


class Attachment:
    """The parts of a distributed optimizer that hang on the user's model: hooks, and gradients that lie in the arena.

    release() takes them back. So does the end of the optimizer, of which this is a part.
    """

    def __init__(self, overlap, stages, buffer):
        self._parts = (overlap, stages, buffer)

    def release(self):
        """More than once is harmless."""
        for part in self._parts:
            part.release()

    def __del__(self):
        if not sys.is_finalizing():
            self.release()
