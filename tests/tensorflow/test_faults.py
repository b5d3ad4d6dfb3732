"""What is lost or differs is TensorFlow's exception with Deft's text, within DEFT_TIMEOUT, on every rank that lives."""

import os
import signal
import time

import pytest
import tensorflow as tf
from launching import WorkerFailed
from tensorflow_jobs import TensorFlowCluster, small_model
from training_checks import batches

TIMEOUT_SECONDS = 10


def training(way):
    """A step of a training: eager, as a graph, or by model.fit."""
    import deft.tensorflow as hvd
    import keras

    model = small_model()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.01))
    if way == "fit":
        model.compile(optimizer, "mse", jit_compile=False)
        return lambda x, y: model.fit(x, y, verbose=0)

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x) - y))
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))

    return tf.function(step) if way == "graph" else step


def shapes_that_differ():
    """The tapes of the ranks have other variables. Dense ones come last: ranks declare them, and the job is over."""
    import deft.tensorflow as hvd

    kinds = ((False, tf.errors.FailedPreconditionError), (True, tf.errors.InvalidArgumentError))
    for compiled, error in kinds:
        tables = [tf.Variable(tf.ones((3, 2 + hvd.rank())), name=f"table{i}{compiled}") for i in range(2)]

        def sparse_gradients(tables=tables):
            with tf.GradientTape() as tape:
                loss = sum(tf.reduce_sum(tf.gather(table, [0])) for table in tables)
            return hvd.DistributedGradientTape(tape).gradient(loss, tables)

        for _ in range(2):  # the second step has the same error, and no name that is under way
            with pytest.raises(error, match=r"rows of float32, shape \[2\].*rank 0.*rank 1"):
                (tf.function(sparse_gradients) if compiled else sparse_gradients)()
    for compiled, error in kinds:
        variable = tf.Variable(tf.ones(3 + hvd.rank()), name=f"w{compiled}")

        def gradient(variable=variable):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(variable)
            return hvd.DistributedGradientTape(tape).gradient(loss, variable)

        with pytest.raises(error, match=r"rank 0.*rank 1|rank 1.*rank 0"):
            (tf.function(gradient) if compiled else gradient)()
    return True


def test_shapes_that_differ_are_an_error_that_names_both_ranks(start):
    assert all(start(policy="fifo", timeout=f"{TIMEOUT_SECONDS}s").run(shapes_that_differ))


def train_until_killed(victim, words, way):
    """Rank 1 kills process `victim` (0: itself) in the middle of training. words[rank] is in that rank's error."""
    import deft.tensorflow as hvd

    step, expected = training(way), tf.errors.UnavailableError if way == "eager" else tf.errors.UnknownError
    for number in range(200):
        if number == 5 and hvd.rank() == 1:
            os.kill(victim or os.getpid(), signal.SIGKILL)
        if number == 5:
            began = time.monotonic()
        try:
            step(*next(batches(1)))
        except expected as error:
            assert time.monotonic() - began < TIMEOUT_SECONDS + 30
            assert words[hvd.rank()] in error.message
            return True
    raise AssertionError("nothing failed")


@pytest.mark.parametrize("way", ["eager", "graph", "fit"])
def test_a_killed_worker_is_named(start, way):
    cluster = start(policy="bytescheduler", timeout=f"{TIMEOUT_SECONDS}s")
    with pytest.raises(WorkerFailed) as failed:
        cluster.run(train_until_killed, 0, ["rank 1 "], way)
    assert failed.value.errors[0] is None, failed.value


@pytest.mark.parametrize("way", ["eager", "graph"])
def test_a_killed_daemon_is_named(tmp_path, way):
    cluster = TensorFlowCluster(tmp_path, 2, policy="fifo", timeout=f"{TIMEOUT_SECONDS}s")
    try:
        assert all(cluster.run(train_until_killed, cluster.daemons[1].pid, ["node 1", "daemon"], way))
    finally:
        cluster.daemons[1].wait()
        cluster.daemons.pop()
        cluster.close()
