"""BatchNormalization with the mean and variance of the batches of all ranks together."""

import keras
from deft.process_sets import global_process_set
from deft.reduce_op import Sum

import tensorflow as tf

from .collectives import allreduce


@keras.saving.register_keras_serializable("deft")
class SyncBatchNormalization(keras.layers.BatchNormalization):
    """Takes the arguments of keras.layers.BatchNormalization. A call in training is a collective of all ranks.

    Ranks may have batches of different sizes. `fused` is Horovod's; only False is offered.
    """

    def __init__(self, fused=False, **options):
        if fused is not False:
            raise ValueError("SyncBatchNormalization does not support fused=True")
        super().__init__(**options)

    def _moments(self, inputs, mask):
        """What Keras normalizes by."""
        mean, variance = super()._moments(inputs, mask)
        if global_process_set.size() == 1:
            return mean, variance
        # in float64, since the squares of large means lose digits
        own, spread = tf.cast(mean, tf.float64), tf.cast(variance, tf.float64)
        count = tf.cast(tf.size(inputs) // tf.size(mean) if mask is None else tf.math.count_nonzero(mask), tf.float64)
        sums = tf.concat([own * count, (spread + tf.square(own)) * count, [count]], 0)
        *sums, total = tf.split(allreduce(sums, op=Sum), [tf.size(own), tf.size(own), 1])
        own, squares = (part / total for part in sums)
        spread = tf.maximum(squares - tf.square(own), 0.0)
        return tf.cast(own, mean.dtype), tf.cast(spread, variance.dtype)
