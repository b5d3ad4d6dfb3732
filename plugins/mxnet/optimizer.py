"""DistributedOptimizer: an optimizer that averages gradients over all ranks before it applies them.

For the Module interface, and for loops that call an Updater. Gluon has DistributedTrainer.
"""

from deft.compression import Compression
from deft.process_sets import global_process_set
from deft.reduce_op import Scaling

from .importing import mxnet as mx
from .keyed import KeyedGradients

_OWN = ("plain", "_gradients", "_process_set")


def _itself(optimizer):
    return optimizer


class DistributedOptimizer(mx.optimizer.Optimizer):
    """Wraps `optimizer`, all of whose attributes it has. A pickle of it is one of the plain optimizer.

    gradient_predivide_factor: how much of the division comes before the sum. num_groups: for Horovod's sake.
    process_set: the ranks that train together. Other ranks keep their own gradients.
    compression: Compression.fp16, a codec such as Compression.int8, or a function of a gradient's key (a text) and the
    gradient that gives one of these. It is for all steps but the first.
    """

    def __init__(
        self,
        optimizer,
        gradient_predivide_factor=1.0,
        num_groups=0,
        process_set=global_process_set,
        compression=Compression.none,
    ):
        self.plain = optimizer
        self._process_set = process_set
        if process_set.included():
            scaling = Scaling(1.0 / gradient_predivide_factor, gradient_predivide_factor / process_set.size())
            self._gradients = KeyedGradients(scaling, compression, process_set)

    def __getattr__(self, name):
        return getattr(self.__dict__["plain"], name)

    def __setattr__(self, name, value):
        if name in _OWN:
            self.__dict__[name] = value
        else:
            setattr(self.plain, name, value)

    def __reduce__(self):
        return _itself, (self.plain,)

    def update(self, index, weight, grad, state):
        self._average(index, grad)
        self.plain.update(index, weight, grad, state)

    def update_multi_precision(self, index, weight, grad, state):
        self._average(index, grad)
        self.plain.update_multi_precision(index, weight, grad, state)

    def create_state(self, index, weight):
        return self.plain.create_state(index, weight)

    def create_state_multi_precision(self, index, weight):
        return self.plain.create_state_multi_precision(index, weight)

    def set_learning_rate(self, lr):
        self.plain.set_learning_rate(lr)

    def set_lr_mult(self, args_lr_mult):
        self.plain.set_lr_mult(args_lr_mult)

    def set_wd_mult(self, args_wd_mult):
        self.plain.set_wd_mult(args_wd_mult)

    @property
    def learning_rate(self):
        return self.plain.learning_rate

    def _average(self, index, grad):
        if not self._process_set.included() or self._process_set.size() == 1:
            return
        pairs = zip(index, grad) if isinstance(index, (list, tuple)) else [(index, grad)]
        for key, gradient in pairs:
            self._gradients.push(key, gradient, gradient, -key if isinstance(key, int) else 0)
