"""Callbacks for model.fit: the same start on all ranks, averages of metrics, learning rates that fit the job's size."""

import logging

import keras
import numpy as np
from deft.world import rank, size

import tensorflow as tf

from ..broadcasting import broadcast_variables
from ..collectives import grouped_allreduce

log = logging.getLogger("deft.tensorflow")


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):
    """Gives all ranks the weights and the optimizer's state of rank `root_rank`.

    It does so before the first batch, or after it if the model is not built before. It also turns XLA off for
    model.fit: XLA cannot compile calls of Python, by which gradients leave the graph. `local_variables`: variables that
    stay as they are, one or several. `device` is accepted for Horovod's sake.
    """

    def __init__(self, root_rank, device="", local_variables=None):
        super().__init__()
        self.root_rank = root_rank
        local = [local_variables] if hasattr(local_variables, "assign") else local_variables or ()
        self._local = {id(variable) for variable in local}
        self._done = False

    def set_model(self, model):
        super().set_model(model)
        if model.jit_compile:
            model.jit_compile = False

    def on_train_begin(self, logs=None):
        if self.model.built:
            if not self.model.optimizer.built:
                self.model.optimizer.build(self.model.trainable_variables)
            self._broadcast()

    def on_train_batch_end(self, batch, logs=None):
        self._broadcast()

    def _broadcast(self):
        if not self._done:
            shared = [*self.model.weights, *self.model.optimizer.variables]
            broadcast_variables([one for one in shared if id(one) not in self._local], self.root_rank)
            self._done = True


class MetricAverageCallback(keras.callbacks.Callback):
    """Averages the metrics of an epoch over all ranks. Put it before the callbacks that read them."""

    def __init__(self, device=""):
        super().__init__()

    def on_epoch_end(self, epoch, logs=None):
        names = sorted(name for name, value in (logs or {}).items() if np.isscalar(value) or np.ndim(value) == 0)
        if size() > 1 and names:
            values = [tf.constant(float(logs[name]), tf.float64) for name in names]
            for name, average in zip(names, grouped_allreduce(values, name=f"metrics.{epoch}")):
                logs[name] = float(average)


class LearningRateScheduleCallback(keras.callbacks.Callback):
    """Sets the learning rate to initial_lr * multiplier(epoch) from `start_epoch` up to `end_epoch`.

    `multiplier` is a function of the epoch, or a number. `staircase`: it changes with epochs only; otherwise with each
    batch, whose epoch has a fraction, which needs steps_per_epoch. momentum_correction is accepted for Horovod's sake:
    a graph of Keras 3 holds the momentum as a constant.
    """

    def __init__(
        self,
        initial_lr,
        multiplier,
        start_epoch=0,
        end_epoch=None,
        staircase=True,
        momentum_correction=True,
        steps_per_epoch=None,
    ):
        super().__init__()
        if initial_lr is None:
            raise ValueError("initial_lr is None; give the learning rate that the multipliers are for")
        self.initial_lr = initial_lr
        self.start_epoch, self.end_epoch = start_epoch, end_epoch
        self.staircase = staircase if callable(multiplier) else True
        self.multiplier = multiplier if callable(multiplier) else lambda _epoch: multiplier
        self.steps_per_epoch = steps_per_epoch
        self.epoch = 0

    def on_train_begin(self, logs=None):
        if not self.staircase and not self.steps_per_epoch:
            self.steps_per_epoch = self.params.get("steps")
            if not self.steps_per_epoch:
                raise ValueError("steps_per_epoch is not known; give it to the callback")

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch
        if self.staircase:
            self._adjust(epoch)

    def on_train_batch_begin(self, batch, logs=None):
        if not self.staircase:
            self._adjust(self.epoch + batch / self.steps_per_epoch)

    def on_epoch_end(self, epoch, logs=None):
        if logs is not None:
            logs["lr"] = float(self.model.optimizer.learning_rate)

    def _adjust(self, epoch):
        if self.start_epoch <= self.epoch and (self.end_epoch is None or self.epoch < self.end_epoch):
            self.model.optimizer.learning_rate = self.initial_lr * self.multiplier(epoch)


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the learning rate from initial_lr / size() to initial_lr over `warmup_epochs`."""

    def __init__(self, initial_lr, warmup_epochs=5, momentum_correction=True, steps_per_epoch=None, verbose=0):
        def multiplier(epoch):
            epoch += 1.0 / self.steps_per_epoch  # the last batch of the warmup has the whole rate
            return 1.0 / size() * (epoch * (size() - 1) / warmup_epochs + 1)

        super().__init__(initial_lr, multiplier, 0, warmup_epochs, False, momentum_correction, steps_per_epoch)
        self.verbose = verbose

    def on_epoch_end(self, epoch, logs=None):
        super().on_epoch_end(epoch, logs)
        if epoch == self.end_epoch - 1 and self.verbose and rank() == 0:
            log.warning("epoch %d: the warmup is over, the learning rate is %g", epoch + 1, logs["lr"])
