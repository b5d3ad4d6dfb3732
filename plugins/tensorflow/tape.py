"""DistributedGradientTape: the user's tape, whose gradients are averages over all ranks."""

import keras
from deft.process_sets import global_process_set
from deft.reduce_op import Average

import tensorflow as tf

from .averaging import Averager
from .collectives import allreduce
from .compression import Compression


def DistributedGradientTape(
    gradtape,
    device_dense="",
    device_sparse="",
    compression=Compression.none,
    sparse_as_dense=False,
    op=Average,
    gradient_predivide_factor=1.0,
    num_groups=0,
    groups=None,
    process_set=global_process_set,
    scale_local_gradients=True,
):
    """Makes gradtape.gradient() average over all ranks, and gives the tape back.

    sparse_as_dense: sum tf.IndexedSlices as dense gradients; otherwise their rows are gathered.
    gradient_predivide_factor: how much of the division comes before the sum (Average only).
    process_set: the ranks that train together. Other ranks keep their own gradients.
    scale_local_gradients: divide the gradients of variables that register_local_source() was called for by the number
    of ranks. device_dense, device_sparse, num_groups, groups: accepted for Horovod's sake.
    """
    base = type(gradtape)
    if issubclass(base, _DistributedTape):
        raise ValueError("this tape is a DistributedGradientTape already")
    gradtape._deft = Averager(
        compression, sparse_as_dense, op, gradient_predivide_factor, process_set, scale_local_gradients
    )
    gradtape._deft_op, gradtape._deft_process_set = op, process_set
    gradtape.__class__ = type(base.__name__, (_DistributedTape, base), {"__module__": base.__module__})
    return gradtape


def PartialDistributedGradientTape(
    gradtape,
    device_dense="",
    device_sparse="",
    compression=Compression.none,
    sparse_as_dense=False,
    op=Average,
    gradient_predivide_factor=1.0,
    num_groups=0,
    groups=None,
    process_set=global_process_set,
    local_layers=None,
    scale_local_gradients=True,
):
    """DistributedGradientTape() that leaves the gradients of `local_layers`, one layer or several, to their rank."""
    tape = DistributedGradientTape(
        gradtape,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        op=op,
        gradient_predivide_factor=gradient_predivide_factor,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )
    for variable in local_variables(local_layers):
        tape.register_local_source(variable)
    return tape


def local_variables(layers):
    """The trainable variables of one layer, several, or none."""
    if layers is None:
        return []
    layers = [layers] if isinstance(layers, keras.layers.Layer) else list(layers)
    if not all(isinstance(layer, keras.layers.Layer) for layer in layers):
        raise ValueError("local_layers must be layers of Keras")
    for layer in layers:
        if not layer.built:
            raise ValueError(f"local layer '{layer.name}' has no variables yet: build the model first")
    return [variable for layer in layers for variable in layer.trainable_weights]


class _DistributedTape:
    """Comes before the tape's class in the class of a distributed tape."""

    def register_local_source(self, source):
        """The gradient of this variable stays with its rank."""
        self._deft.keep_local(source)

    def gradient(self, target, sources, output_gradients=None, unconnected_gradients=tf.UnconnectedGradients.NONE):
        gradients = super().gradient(target, sources, output_gradients, unconnected_gradients)
        flat_sources, flat = tf.nest.flatten(sources), tf.nest.flatten(gradients)
        named = [i for i, source in enumerate(flat_sources) if hasattr(source, "assign")]
        averages = self._deft.average([flat[i] for i in named], [flat_sources[i] for i in named])
        results = list(flat)
        for i, average in zip(named, averages):
            results[i] = average
        for i in sorted(set(range(len(flat))) - set(named)):  # of tensors that the tape watched
            results[i] = self._reduced(flat[i])
        return tf.nest.pack_sequence_as(sources, results)

    def _reduced(self, gradient):
        if gradient is None or not self._deft_process_set.included():
            return gradient
        return allreduce(gradient, op=self._deft_op, process_set=self._deft_process_set)
