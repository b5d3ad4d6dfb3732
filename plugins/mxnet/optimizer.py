"""DistributedOptimizer: an optimizer that averages gradients over all ranks before it applies them.

For the Module interface, and for loops that call an Updater. Gluon has DistributedTrainer.
"""

from deft.compression import Compression
from deft.process_sets import global_process_set, process_set_of
from deft.reduce_op import Scaling
from deft.world import is_in_job

from .importing import mxnet as mx
from .keyed import KeyedGradients

_OWN = ("plain", "_gradients", "_process_set", "_options")


def _loaded(plain, options, ranks):
    """What a pickle of a DistributedOptimizer becomes: one like it, and outside of a job the plain optimizer.

    `ranks`: of its process set; None: all."""
    if not is_in_job():
        return plain
    process_set = global_process_set if ranks is None else process_set_of(ranks)
    return DistributedOptimizer(plain, process_set=process_set, **options)


class DistributedOptimizer(mx.optimizer.Optimizer):
    """Wraps `optimizer`, all of whose attributes it has.

    A pickle of it, as save_states() of gluon's Trainer writes it, becomes a DistributedOptimizer with the same options
    in a process that is in a job, and the plain optimizer in others.

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
        self._options = {"gradient_predivide_factor": gradient_predivide_factor, "compression": compression}
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
        ranks = None if self._process_set is global_process_set else self._process_set.ranks
        return _loaded, (self.plain, self._options, ranks)

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
