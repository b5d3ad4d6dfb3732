"""Jobs of TensorFlow workers on real daemons, and a small model.

Workers run with one thread for and one thread between operations, so a call that waits in the wrong place hangs.
"""

import numpy as np
from launching import Cluster


def limit_tensorflow(function):
    """`function.threads` between operations, 1 without it."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(getattr(function, "threads", 1))


class TensorFlowCluster(Cluster):
    package = "deft.tensorflow"
    script_modules = ("numpy", "tensorflow", "keras")
    prepare = staticmethod(limit_tensorflow)


def small_model(dtype="float32", units=24):
    """Equal on every rank. With 96 units two matrices are large enough to be encoded."""
    import keras

    keras.utils.set_random_seed(3)
    layers = [keras.layers.Dense(units, activation="tanh", dtype=dtype) for _ in range(3)]
    model = keras.Sequential([keras.layers.Input((6,)), *layers, keras.layers.Dense(1, dtype=dtype)])
    model.build((None, 6))
    return model


def weights_of(model):
    return [np.array(weight) for weight in model.weights]
