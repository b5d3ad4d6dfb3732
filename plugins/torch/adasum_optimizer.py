"""DistributedOptimizer(op=Adasum): each rank makes its own step, and Adasum reduces the changes of the parameters.

Each rank's step() changes the parameters by its own gradients, with its own state. The changes of all ranks are
reduced, and each parameter becomes its value before the step plus the reduced change. There is no overlap with
backward: the changes exist only after step(). Each rank has an optimizer state of its own, as in Horovod.

A GradScaler makes no step if the gradients are infinite. So all ranks skip a step if one of them has infinities.
"""

import contextlib
from typing import NamedTuple

from deft.adasum import check_ranks
from deft.reduce_op import Adasum, Max
from deft.session import finish_all

import torch

from .collectives import start_allreduce
from .compression import Compression
from .ownership import Ownership, register, retire_earlier
from .scaling import let_scalers_agree


class _Owned(NamedTuple):
    name: str
    param: torch.nn.Parameter


class AdasumSteps:
    """The changes that one optimizer makes to the parameters `named`: (name, parameter) of each."""

    def __init__(self, optimizer, named, compression, process_set):
        check_ranks(process_set.size(), repr(process_set))
        self._named = [_Owned(*each) for each in named]
        retire_earlier(self._named)
        self.ownership = Ownership(optimizer, self._named)
        register(self._named, self)
        self._name = f"adasum.{process_set.session().optimizers.number()}"
        self._compression = compression
        self._process_set = process_set
        let_scalers_agree()

    def agree_on_infinities(self, found):
        """`found`: this rank's counts of infinities, by device. On all ranks they become the largest count of all."""
        most = torch.tensor([max((float(count) for count in found.values()), default=0.0)])
        name, none = f"{self._name}.infinities", Compression.none
        most = start_allreduce(most, None, name, Max, 1.0, 1.0, none, self._process_set).wait()
        for count in found.values():
            count.fill_(most.item())

    def step(self, update):
        """`update` is the step() of the user's class."""
        self.ownership.check_in_use()
        self.ownership.check_gradients()
        before = [param.detach().clone() for _, param in self._named]
        result = update()
        self.ownership.check_gradients()  # of a closure
        handles = [
            start_allreduce(
                param.detach() - was,
                None,
                f"{self._name}.{param_name}",
                Adasum,
                1.0,
                1.0,
                self._compression,
                self._process_set,
            )
            for (param_name, param), was in zip(self._named, before, strict=True)
        ]
        changes = finish_all(handle.wait for handle in handles)
        with torch.no_grad():
            for (_, param), was, change in zip(self._named, before, changes, strict=True):
                param.copy_(was + change)
        return result

    def settle(self):
        """Nothing waits."""

    release = settle  # nor has any parameter a hook


class AdasumMixin:
    """Comes before the user's class in the class of the optimizer."""

    def step(self, closure=None, *args, **kwargs):
        base = super().step
        return self._deft_adasum.step(lambda: base(closure, *args, **kwargs))

    step.hooked = True  # torch wraps step() for profiling and hooks once: that of the user's class

    def add_param_group(self, param_group):
        self._deft_adasum.ownership.add_group(super().add_param_group, param_group)

    def synchronize(self):
        """Nothing waits: the changes are reduced in step()."""

    @contextlib.contextmanager
    def skip_synchronize(self):
        raise AssertionError("skip_synchronize() has no meaning with op=Adasum: step() reduces what it has changed")
        yield

    def flush(self, residuals=False):
        """Nothing waits, and nothing is encoded."""

    def report_loss(self, loss, target=0.0):
        """Of interest for delayed updates only."""

    def set_backward_passes_per_step(self, passes):
        """Gradients add up in p.grad until step(), however many passes there are."""


class LocalMixin(AdasumMixin):
    """The optimizer of a rank outside its process set: it makes its steps alone, as in Horovod."""

    def step(self, closure=None, *args, **kwargs):
        return super(AdasumMixin, self).step(closure, *args, **kwargs)

    step.hooked = True

    def add_param_group(self, param_group):
        super(AdasumMixin, self).add_param_group(param_group)

    @contextlib.contextmanager
    def skip_synchronize(self):
        yield
