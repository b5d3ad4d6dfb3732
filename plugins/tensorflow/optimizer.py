"""DistributedOptimizer: the user's Keras optimizer, which averages gradients over all ranks before it applies them.

The object and its class stay the same, so configurations, saved models and isinstance see what they saw before.
"""

from deft.process_sets import global_process_set
from deft.reduce_op import Average

import tensorflow as tf

from .averaging import Averager
from .compression import Compression


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
    ranks. name, use_locking, device_dense, device_sparse, average_aggregated_gradients, num_groups and groups: accepted
    for Horovod's sake.
    """
    if backward_passes_per_step != 1:
        raise ValueError("backward_passes_per_step is not offered; give the optimizer gradient_accumulation_steps")
    if not hasattr(optimizer, "apply") or not hasattr(optimizer, "apply_gradients"):
        raise ValueError(f"{type(optimizer).__name__} is no optimizer of Keras 3")
    if isinstance(optimizer.__dict__.get("apply"), AveragedApply):
        raise ValueError("this optimizer is a DistributedOptimizer already")
    averager = Averager(compression, sparse_as_dense, op, gradient_predivide_factor, process_set, scale_local_gradients)
    object.__setattr__(optimizer, "apply", AveragedApply(optimizer, averager))
    object.__setattr__(optimizer, "register_local_var", averager.keep_local)
    return optimizer


class AveragedApply:
    """Stands for the optimizer's apply(), which apply_gradients() and model.fit call."""

    def __init__(self, optimizer, averager):
        self._optimizer = optimizer
        self._averager = averager

    def __call__(self, grads, trainable_variables=None):
        if _in_branch():
            raise ValueError(
                "a DistributedOptimizer is applied inside tf.cond, which not all ranks may enter. Wrap a "
                "LossScaleOptimizer from outside: DistributedOptimizer(LossScaleOptimizer(optimizer)); model.fit with "
                "mixed_float16 makes one by itself unless it is given one"
            )
        optimizer = self._optimizer
        variables = list(optimizer._trainable_variables if trainable_variables is None else trainable_variables)
        averages = self._averager.average(list(grads), variables)
        return type(optimizer).apply(optimizer, averages, trainable_variables)


def _in_branch():
    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    while graph is not None:
        if "CondBranch" in type(graph).__name__:
            return True
        graph = getattr(graph, "outer_graph", None)
    return False
