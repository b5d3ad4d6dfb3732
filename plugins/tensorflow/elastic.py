"""hvd.elastic: a training that goes on from its last commit after an error, see deft.elastic.

state = hvd.elastic.TensorFlowKerasState(model, optimizer, epoch=0)

@hvd.elastic.run
def train(state): ...
"""

import numpy as np
from deft.elastic import ObjectState, run_again
from deft.world import rank

from .broadcasting import broadcast_object, broadcast_variables
from .host import cause_of

__all__ = ["ObjectState", "TensorFlowKerasState", "TensorFlowState", "run"]


def run(func):
    """A decorator for func(state, ...), which calls it again when the job was lost and has a successor.

    Its first call, too, begins with the state of rank 0 on all ranks.
    """
    return run_again(func, cause_of)


class TensorFlowState(ObjectState):
    """Variables, and Python objects as attributes. `session` is Horovod's for TensorFlow 1."""

    def __init__(self, variables, session=None, **kwargs):
        if session is not None:
            raise ValueError("session is for TensorFlow 1, which is not offered")
        self.variables = variables
        super().__init__(broadcast_object, rank, **kwargs)
        self._save_variables()

    def save(self):
        self._save_variables()
        super().save()

    def restore(self):
        for variable, value in zip(self._all_variables(), self._values):
            variable.assign(value)
        super().restore()

    def sync(self):
        broadcast_variables(self._all_variables(), root_rank=0)
        self._save_variables()
        super().sync()

    def _all_variables(self):
        return list(self.variables)

    def _save_variables(self):
        self._values = [np.array(variable) for variable in self._all_variables()]


class TensorFlowKerasState(TensorFlowState):
    """A model and its optimizer, and Python objects as attributes. `backend` is accepted for Horovod's sake.

    Each rank keeps its own seeds of dropout.
    """

    def __init__(self, model, optimizer=None, backend=None, **kwargs):
        if not model.built:
            raise ValueError("the model must be built first: call model.build(input_shape)")
        self.model = model
        self.optimizer = optimizer or model.optimizer
        if not self.optimizer.built:
            self.optimizer.build(model.trainable_variables)
        super().__init__(None, **kwargs)

    def _all_variables(self):
        return [*self.model.weights, *self.optimizer.variables]
