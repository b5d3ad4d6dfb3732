"""DistributedGradientTape: the user's tape, whose gradients are averages over all ranks."""

import tensorflow as tf

from .averaging import Averager
from .collectives import allreduce
from .compression import Compression
from .reduce_op import Average


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
):
    """Makes gradtape.gradient() average over all ranks, and gives the tape back.

    sparse_as_dense: sum tf.IndexedSlices as dense gradients; otherwise their rows are gathered.
    gradient_predivide_factor: how much of the division comes before the sum (Average only).
    device_dense, device_sparse, num_groups, groups: accepted for Horovod's sake.
    """
    base = type(gradtape)
    if issubclass(base, _Distributed):
        raise ValueError("this tape is a DistributedGradientTape already")
    gradtape._deft = Averager(compression, sparse_as_dense, op, gradient_predivide_factor)
    gradtape._deft_op = op
    gradtape.__class__ = type(base.__name__, (_Distributed, base), {"__module__": base.__module__})
    return gradtape


class _Distributed:
    """Comes before the tape's class in the class of a distributed tape."""

    def gradient(self, target, sources, output_gradients=None, unconnected_gradients=tf.UnconnectedGradients.NONE):
        gradients = super().gradient(target, sources, output_gradients, unconnected_gradients)
        flat_sources, flat = tf.nest.flatten(sources), tf.nest.flatten(gradients)
        named = [i for i, source in enumerate(flat_sources) if hasattr(source, "assign")]
        averages = self._deft.average([flat[i] for i in named], [flat_sources[i] for i in named])
        results = [None if g is None else g for g in flat]
        for i, average in zip(named, averages):
            results[i] = average
        for i in sorted(set(range(len(flat))) - set(named)):  # of tensors that the tape watched
            results[i] = None if flat[i] is None else allreduce(flat[i], op=self._deft_op)
        return tf.nest.pack_sequence_as(sources, results)
