"""DistributedOptimizer: the user's Keras optimizer, which averages gradients over all ranks before it applies them.

The object and its class stay the same, so configurations, saved models and isinstance see what they saw before.
"""

import weakref

import keras
from deft.process_sets import global_process_set
from deft.reduce_op import Adasum, Average

import tensorflow as tf

from .averaging import Averager
from .compression import Compression
from .importing import check_backend


def DistributedOptimizer(
    optimizer,
    name=None,
    use_locking=False,
    device_dense="",
    device_sparse="",
    compression=Compression.none,
    sparse_as_dense=False,
    backward_passes_per_step=1,
    op=Average,
    gradient_predivide_factor=1.0,
    average_aggregated_gradients=False,
    num_groups=0,
    groups=None,
    process_set=global_process_set,
    scale_local_gradients=True,
):
    """Makes `optimizer` (of Keras 3) average its gradients over all ranks, and gives it back.

    A LossScaleOptimizer is wrapped from outside: DistributedOptimizer(LossScaleOptimizer(optimizer)).
    sparse_as_dense: sum tf.IndexedSlices as dense gradients; otherwise their rows are gathered.
    gradient_predivide_factor: how much of the division comes before the sum (Average only).
    process_set: the ranks that train together. Other ranks keep their own gradients.
    scale_local_gradients: divide the gradients of variables that register_local_var() was called for by the number of
    ranks. backward_passes_per_step: the gradients of so many passes are added up before an update; with
    average_aggregated_gradients their mean is taken. name, use_locking, device_dense, device_sparse, num_groups and
    groups: accepted for Horovod's sake.
    """
    check_backend()
    if not hasattr(optimizer, "apply") or not hasattr(optimizer, "apply_gradients"):
        kind = f"{type(optimizer).__module__}.{type(optimizer).__name__}"
        raise ValueError(
            f"{kind} is no optimizer of Keras 3, such as keras.optimizers.SGD; those of tf_keras (TF_USE_LEGACY_KERAS) "
            "and of TensorFlow 1 do not work"
        )
    if isinstance(optimizer.__dict__.get("apply"), AveragedApply):
        raise ValueError("this optimizer is a DistributedOptimizer already")
    if op is Adasum:
        raise ValueError("an optimizer of Keras takes no op=Adasum, as in Horovod; DistributedGradientTape does")
    averager = Averager(compression, sparse_as_dense, op, gradient_predivide_factor, process_set, scale_local_gradients)
    if backward_passes_per_step < 1:
        raise ValueError(f"backward_passes_per_step is {backward_passes_per_step}; it is 1 or more")
    if backward_passes_per_step > 1:
        _accumulate(optimizer, backward_passes_per_step)
    factor = 1 if average_aggregated_gradients else backward_passes_per_step
    object.__setattr__(optimizer, "apply", AveragedApply(optimizer, averager, factor))
    object.__setattr__(optimizer, "register_local_var", averager.keep_local)
    return optimizer


def _accumulate(optimizer, passes):
    """Has Keras keep the mean of the gradients of so many calls of apply()."""
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        raise ValueError(
            "a LossScaleOptimizer takes no backward_passes_per_step: give the optimizer inside it "
            f"gradient_accumulation_steps={passes}"
        )
    if optimizer.gradient_accumulation_steps not in (None, passes):
        raise ValueError(
            f"backward_passes_per_step is {passes}, and gradient_accumulation_steps of the optimizer is "
            f"{optimizer.gradient_accumulation_steps}: give one of them"
        )
    if optimizer.built and optimizer.gradient_accumulation_steps is None:
        raise ValueError(
            "backward_passes_per_step needs an optimizer that has no variables yet: wrap it before its use"
        )
    optimizer.gradient_accumulation_steps = passes


def _times(gradient, factor):
    if gradient is None or factor == 1:
        return gradient
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(gradient.values * factor, gradient.indices, gradient.dense_shape)
    return gradient * factor


class AveragedApply:
    """Stands for the optimizer's apply(), which apply_gradients() and model.fit call.

    factor: what averages are multiplied by. The optimizer holds this object, and goes with its last reference: so it is
    held weakly here.
    """

    def __init__(self, optimizer, averager, factor=1):
        self._optimizer_of = weakref.ref(optimizer)
        self._averager = averager
        self._factor = factor
        self._built_for = ()  # the variables by id, at the last call
        averager.goes_with(optimizer)

    def __call__(self, grads, trainable_variables=None):
        if _in_branch():
            raise ValueError(
                "a DistributedOptimizer is applied inside tf.cond, which not all ranks may enter. Wrap a "
                "LossScaleOptimizer from outside: DistributedOptimizer(LossScaleOptimizer(optimizer)); model.fit with "
                "mixed_float16 makes one by itself unless it is given one"
            )
        optimizer = self._optimizer_of()
        if optimizer is None:
            raise ReferenceError("the DistributedOptimizer of this apply() is gone: keep it as long as apply() is used")
        variables = list(optimizer._trainable_variables if trainable_variables is None else trainable_variables)
        self._note_build(optimizer._trainable_variables if optimizer.built else variables)
        averages = self._averager.average(list(grads), variables, _loss_scale(optimizer))
        averages = [_times(average, self._factor) for average in averages]
        return type(optimizer).apply(optimizer, averages, trainable_variables)

    def _note_build(self, variables):
        """If the optimizer was built again for other variables, the gradients of those before end."""
        built_for = tuple(map(id, variables))
        if self._built_for not in ((), built_for):
            self._averager.keep_only(variables)
        self._built_for = built_for


def _loss_scale(optimizer):
    """What this optimizer's scale_loss() multiplies a loss by, if that changes from step to step; else None."""
    if not isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        return None
    return tf.convert_to_tensor(optimizer.dynamic_scale if optimizer.built else optimizer.initial_scale, tf.float32)


def _in_branch():
    """Whether a branch of the function that is traced is left for apply().

    A branch around that function is the user's: model.fit has one around each of several steps of an execution.
    """
    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    while graph is not None:
        kind = type(graph).__name__
        if "CondBranch" in kind:
            return True
        graph = graph.outer_graph if "While" in kind else None  # else it is a function of its own
    return False
