"""The quick start of docs/tensorflow.md trains, word for word."""

import deft.tensorflow as hvd
import numpy as np
from document_code import run_code
from tensorflow_jobs import small_model, weights_of

PAGE = ("docs/tensorflow.md", "Quick start")


def own_samples():
    """Three batches of eight samples, other ones on each rank."""
    chance = np.random.default_rng(hvd.rank())
    return [tuple(chance.normal(size=(8, columns)).astype("float32") for columns in (6, 1)) for _ in range(3)]


def other_weights(model):
    """A user's ranks begin with weights of their own."""
    for variable in model.trainable_variables:
        variable.assign_add(np.full(variable.shape, 0.01 * hvd.rank(), "float32"))
    return model


def assert_equal_and_trained(results):
    first, second = results
    began = weights_of(small_model())
    assert all(np.array_equal(one, other) for one, other in zip(first, second, strict=True)), "the ranks differ"
    assert not any(np.array_equal(one, then) for one, then in zip(first, began, strict=True))


def fit():
    import tensorflow as tf

    x, y = (np.concatenate(columns) for columns in zip(*own_samples(), strict=True))
    samples = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
    names = run_code(*PAGE, {"make_model": lambda: other_weights(small_model()), "own_samples": samples})
    return weights_of(names["model"])


def test_model_fit_trains(start):
    assert_equal_and_trained(start().run(fit))


def loop():
    import keras

    model = other_weights(small_model())
    brought = {
        "model": model,
        "loss_function": keras.losses.MeanSquaredError(),
        "optimizer": keras.optimizers.SGD(0.1, momentum=0.9),
    }
    step = run_code(*PAGE, brought, block=1)["step"]
    for x, y in own_samples():
        step(x, y)
    return weights_of(model)


def test_a_loop_of_ones_own_trains(start):
    assert_equal_and_trained(start().run(loop))
