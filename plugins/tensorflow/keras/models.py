"""DistributedOptimizer and load_model with the arguments of horovod.tensorflow.keras, in its order."""

import keras
from deft.process_sets import global_process_set
from deft.reduce_op import Average

from .. import optimizer as distributed
from ..compression import Compression
from ..tape import local_variables


def DistributedOptimizer(
    optimizer,
    name=None,
    device_dense="",
    device_sparse="",
    compression=Compression.none,
    sparse_as_dense=False,
    gradient_predivide_factor=1.0,
    op=Average,
    backward_passes_per_step=1,
    average_aggregated_gradients=False,
    num_groups=0,
    groups=None,
    process_set=global_process_set,
    scale_local_gradients=True,
):
    """deft.tensorflow.DistributedOptimizer; its arguments have another order there, as in Horovod."""
    return distributed.DistributedOptimizer(
        optimizer,
        name,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        backward_passes_per_step=backward_passes_per_step,
        average_aggregated_gradients=average_aggregated_gradients,
        op=op,
        gradient_predivide_factor=gradient_predivide_factor,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )


def PartialDistributedOptimizer(
    optimizer,
    name=None,
    device_dense="",
    device_sparse="",
    compression=Compression.none,
    sparse_as_dense=False,
    gradient_predivide_factor=1.0,
    op=Average,
    groups=None,
    process_set=global_process_set,
    local_layers=None,
    scale_local_gradients=True,
):
    """DistributedOptimizer() that leaves the gradients of `local_layers`, one layer or several, to their rank."""
    DistributedOptimizer(
        optimizer,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        op=op,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )
    for variable in local_variables(local_layers):
        optimizer.register_local_var(variable)
    return optimizer


def load_model(
    filepath,
    custom_optimizers=None,
    custom_objects=None,
    compression=Compression.none,
    legacy_opts=False,
    **options,
):
    """keras.models.load_model, with the optimizer of the model made distributed.

    `custom_optimizers`: classes of optimizers that the file names. `options` are those of DistributedOptimizer. The
    file does not hold them, so give those that the training had.
    """
    if legacy_opts:
        raise ValueError("legacy_opts is not offered: Keras 3 has no legacy optimizers")
    known = {optimizer.__name__: optimizer for optimizer in custom_optimizers or ()}
    model = keras.models.load_model(filepath, custom_objects={**known, **(custom_objects or {})})
    if getattr(model, "optimizer", None) is not None:
        _require_meaning(model.optimizer, options)
        DistributedOptimizer(model.optimizer, compression=compression, **options)
        model.jit_compile = False
    return model


def _require_meaning(optimizer, options):
    """A file has the same number for passes whose gradients are added up and for those whose mean is taken."""
    passes = getattr(optimizer, "gradient_accumulation_steps", None)
    if passes and not options.keys() & {"backward_passes_per_step", "average_aggregated_gradients"}:
        raise ValueError(
            f"the file has an optimizer with gradient_accumulation_steps={passes}, and does not say whether the passes "
            f"are added up: give load_model backward_passes_per_step={passes} if the optimizer was a "
            f"DistributedOptimizer with that option, and average_aggregated_gradients=True if it took the mean"
        )
