"""hvd.elastic: a training that goes on from its last commit after an error, see deft.elastic.

state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, epoch=0)

@hvd.elastic.run
def train(state): ...
"""

import copy

from deft._native import DeftError
from deft.elastic import ObjectState, run_again
from deft.world import is_in_job, rank

import torch

from .broadcasting import allgather_object, broadcast_object, broadcast_optimizer_state, broadcast_parameters
from .elastic_sampler import ElasticSampler
from .optimizer import distribute_again, undistribute

__all__ = ["ElasticSampler", "ObjectState", "TorchState", "run"]


def run(func):
    """A decorator for func(state, ...), which calls it again when the job was lost and has a successor.

    Its first call, too, begins with the state of rank 0 on all ranks.
    """
    return run_again(func, lambda error: error if isinstance(error, DeftError) else None)


class _Kept:
    """One object with state_dict() and load_state_dict(), a scheduler of learning rates for instance."""

    def __init__(self, value):
        self.value = value
        self.save()

    def save(self):
        self._saved = copy.deepcopy(self.value.state_dict())

    def restore(self):
        self.value.load_state_dict(copy.deepcopy(self._saved))

    def sync(self):
        self.value.load_state_dict(broadcast_object(self.value.state_dict()))
        self.save()

    def reset(self):
        """A new job has begun."""


class _KeptModel(_Kept):
    def restore(self):
        super().restore()
        self.value.zero_grad()  # what is left of the step that has failed

    def sync(self):
        broadcast_parameters(self.value.state_dict(), root_rank=0)
        self.save()


class _KeptOptimizer(_Kept):
    def save(self):
        if hasattr(self.value, "_deft"):
            self.value.flush()  # gradients that a plan holds back belong to this state
        super().save()

    def restore(self):
        if not is_in_job():
            undistribute(self.value)
        super().restore()

    def reset(self):
        distribute_again(self.value)

    def sync(self):
        broadcast_optimizer_state(self.value, root_rank=0)
        self.save()


class _KeptSampler(_Kept):
    def reset(self):
        self.value.reset()

    def sync(self):
        """All ranks know what any of them has processed."""
        state = self.value.state_dict()
        processed = set().union(*allgather_object(state["processed_indices"]))
        self.value.load_state_dict(broadcast_object({**state, "processed_indices": sorted(processed)}))
        self.save()


def _kept(value):
    """What keeps this object; None: it is copied as it is."""
    for kind, kept in (
        (torch.nn.Module, _KeptModel),
        (torch.optim.Optimizer, _KeptOptimizer),
        (ElasticSampler, _KeptSampler),
    ):
        if isinstance(value, kind):
            return kept(value)
    return _Kept(value) if hasattr(value, "state_dict") and hasattr(value, "load_state_dict") else None


class TorchState(ObjectState):
    """Models, optimizers, ElasticSamplers and whatever has a state_dict(), and other Python objects, as attributes."""

    def __init__(self, model=None, optimizer=None, **kwargs):
        given = {"model": model, "optimizer": optimizer, **kwargs}
        found = {name: _kept(value) for name, value in given.items() if value is not None}
        self._kept = {name: kept for name, kept in found.items() if kept is not None}
        super().__init__(broadcast_object, rank, **{n: v for n, v in kwargs.items() if n not in self._kept})
        for name, kept in self._kept.items():
            super().__setattr__(name, kept.value)

    def __setattr__(self, name, value):
        """Another model, optimizer or sampler may take the place of one."""
        super().__setattr__(name, value)
        if name in self.__dict__.get("_kept", ()):
            self._kept[name].value = value

    def save(self):
        for kept in self._kept.values():
            kept.save()
        super().save()

    def restore(self):
        for kept in self._kept.values():
            kept.restore()
        super().restore()

    def sync(self):
        for kept in self._kept.values():
            kept.sync()
        super().sync()

    def reset(self):
        for kept in self._kept.values():
            kept.reset()
        super().reset()
