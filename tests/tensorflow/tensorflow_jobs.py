"""Jobs of TensorFlow workers on real daemons, and a small model with its data.

Workers run with one thread for and one thread between operations, so a call that waits in the wrong place hangs.
"""

import hashlib

import numpy as np
from launching import Cluster, answer_with, prepare_worker


def work_with_tensorflow(function, arguments, variables, log, answer):
    """A worker's life. `function.threads` between operations, 1 without it."""
    prepare_worker(variables, log)
    import deft.tensorflow as hvd
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(getattr(function, "threads", 1))
    answer_with(hvd, function, arguments, answer)


class TensorFlowCluster(Cluster):
    work = staticmethod(work_with_tensorflow)


def small_model(dtype="float32"):
    """Equal on every rank."""
    import keras

    keras.utils.set_random_seed(3)
    layers = [keras.layers.Dense(24, activation="tanh", dtype=dtype) for _ in range(3)]
    model = keras.Sequential([keras.layers.Input((6,)), *layers, keras.layers.Dense(1, dtype=dtype)])
    model.build((None, 6))
    return model


def batches(steps, rows=8):
    rng = np.random.default_rng(5)
    for _ in range(steps):
        x = rng.standard_normal((rows, 6)).astype(np.float32)
        yield x, np.sin(x.sum(axis=1, keepdims=True)).astype(np.float32)


def own_share(*arrays):
    import deft.tensorflow as hvd

    return [array[hvd.rank() :: hvd.size()] for array in arrays]


def weights_of(model):
    return [np.array(weight) for weight in model.weights]


def assert_same_everywhere(arrays):
    import deft.tensorflow as hvd

    bits = hashlib.sha256(b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)).hexdigest()
    everywhere = hvd.allgather_object(bits)
    assert len(set(everywhere)) == 1, f"the ranks have different bits: {everywhere}"


def assert_close(arrays, expected, tolerance=1e-5):
    for array, wanted in zip(arrays, expected, strict=True):
        np.testing.assert_allclose(array, wanted, rtol=10 * tolerance, atol=tolerance)
