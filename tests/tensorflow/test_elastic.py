"""hvd.elastic: states, and trainings that go on in a new job when a daemon was started again."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from restarting import STEPS, Victim, check_that_errors_end_it, run_with_restart, train_through_restart
from tensorflow_jobs import TensorFlowCluster, small_model, weights_of
from training_checks import assert_close, assert_same_everywhere, batches, own_share

EPOCHS, BATCHES = 2, 3


def states():
    import deft.tensorflow as hvd
    import deft.tensorflow.keras as hvd_keras

    rank = hvd.rank()
    variables = [tf.Variable([1.0 + rank]), tf.Variable(rank)]
    model, optimizer = small_model(), keras.optimizers.Adam(0.01)
    for weight in model.weights:
        weight.assign(weight + rank)
    first = [weight - rank for weight in weights_of(model)]
    for state, changed, expected in (
        (hvd.elastic.TensorFlowState(variables, batch=20 + rank, epoch=10 + rank), variables, [[1.0], 0]),
        (hvd.elastic.TensorFlowKerasState(model, optimizer, batch=20 + rank, epoch=10 + rank), model.weights, first),
        (hvd_keras.elastic.KerasState(model, optimizer, batch=20 + rank, epoch=10 + rank), model.weights, first),
    ):
        one_state(state, changed, expected)
    assert hvd.elastic.TensorFlowKerasState(compiled()).optimizer.built
    with pytest.raises(ValueError, match=r"call model\.build"):
        hvd.elastic.TensorFlowKerasState(keras.Sequential([keras.layers.Dense(1)]), optimizer)
    with pytest.raises(ValueError, match="TensorFlow 1"):
        hvd.elastic.TensorFlowState(variables, session=1)
    return True


def one_state(state, variables, expected):
    """sync() gives what rank 0 has, and restore() what the last commit had."""

    def check(values, batch):
        for variable, value in zip(variables, values, strict=True):
            np.testing.assert_allclose(np.array(variable), value, atol=1e-6)
        assert (state.batch, state.epoch) == (batch, batch - 10)

    def change():
        for variable in variables:
            variable.assign(variable + tf.cast(1, variable.dtype))
        state.batch, state.epoch = state.batch + 1, state.epoch + 1

    state.sync()
    check(expected, 20)
    change()
    state.restore()
    check(expected, 20)
    change()
    state.commit()
    change()
    state.restore()
    check([np.array(value) + 1 for value in expected], 21)
    for variable, value in zip(variables, expected, strict=True):
        variable.assign(value)


def compiled():
    model = small_model()
    model.compile(keras.optimizers.SGD(0.01), "mse", jit_compile=False)
    return model


def commits_of_fit():
    import deft.tensorflow.keras as hvd

    model = compiled()
    state = hvd.elastic.KerasState(model, batch=0, epoch=0)
    seen = []
    names = ("UpdateBatchStateCallback", "UpdateEpochStateCallback")
    callbacks = [getattr(hvd.elastic, name)(state) for name in names]
    callbacks.append(hvd.elastic.CommitStateCallback(state, batches_per_commit=3))
    state.save = lambda: seen.append((state.epoch, state.batch))
    for _ in range(2):
        model.fit(np.zeros((4 * 8, 6)), np.zeros((4 * 8, 1)), batch_size=8, epochs=2, verbose=0, callbacks=callbacks)
    assert seen == [(0, 2), (1, 0), (1, 1), (2, 0), (2, 2), (3, 0), (3, 1), (4, 0)]
    return True


def only_lost_jobs_are_begun_again():
    """Not an error of the script, nor a call that ranks make differently."""
    import deft.tensorflow as hvd

    def differs(allreduce, name):
        allreduce(tf.ones(2 + hvd.rank()), name=name)

    check_that_errors_end_it(
        hvd.elastic.run,
        hvd.elastic.TensorFlowState([], batch=0),
        (KeyError, "of the script", lambda: {}["of the script"]),
        (tf.errors.FailedPreconditionError, "on rank 1", lambda: differs(hvd.allreduce, "eager")),
        (tf.errors.InvalidArgumentError, "on rank 1", lambda: differs(tf.function(hvd.allreduce), "graph")),
    )
    return True


def states_and_what_is_no_reason():
    return states() and commits_of_fit() and only_lost_jobs_are_begun_again()


def test_states_and_what_is_no_reason_to_begin_again(start):
    assert all(start(policy="fifo").run(states_and_what_is_no_reason))


def of_one_process(optimizer, x, y, epochs):
    """The weights after a training on all samples, in batches of 8."""
    model = small_model()
    model.compile(optimizer, "mse", jit_compile=False)
    model.fit(x, y, batch_size=8, epochs=epochs, shuffle=False, verbose=0)
    return weights_of(model)


def joined(steps):
    return [np.concatenate(arrays) for arrays in zip(*steps)]


def own_loop(pid):
    """The graph was made in the first job."""
    import deft.tensorflow as hvd

    model, optimizer = small_model(), hvd.DistributedOptimizer(keras.optimizers.SGD(0.05, momentum=0.9))
    state, steps = hvd.elastic.TensorFlowKerasState(model, optimizer, step=0), list(batches(STEPS))

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x) - y))
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))

    train_through_restart(hvd.elastic.run, state, pid, lambda number: step(*own_share(*steps[number])))
    assert_same_everywhere(weights_of(model))
    reference = of_one_process(keras.optimizers.SGD(0.05, momentum=0.9), *joined(steps), 1)
    assert_close(weights_of(model), reference)
    return True


def by_fit(pid):
    import deft.tensorflow.keras as hvd

    x, y = joined(own_share(*batch) for batch in batches(BATCHES))
    model = small_model()
    model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), "mse", jit_compile=False)
    state, victim, begun = hvd.elastic.KerasState(model, batch=0, epoch=0), Victim(pid), []
    kill = keras.callbacks.LambdaCallback(
        on_train_batch_begin=lambda batch, logs=None: victim.kill() if (state.epoch, batch) == (1, 1) else None
    )
    callbacks = [
        kill,
        hvd.elastic.UpdateEpochStateCallback(state),
        hvd.elastic.CommitStateCallback(state, batches_per_commit=100),
    ]

    @hvd.elastic.run
    def train(state):
        begun.append(state.epoch)
        left = EPOCHS - state.epoch
        model.fit(x, y, batch_size=4, epochs=left, shuffle=False, verbose=0, callbacks=callbacks)

    train(state)
    assert begun == [0, 1]
    reference = of_one_process(keras.optimizers.Adam(0.01), *joined(batches(BATCHES)), EPOCHS)
    assert_same_everywhere(weights_of(model))
    assert_close(weights_of(model), reference, 1e-4)
    return True


def test_a_training_goes_on_when_a_daemon_was_started_again(tmp_path):
    with contextlib.closing(TensorFlowCluster(tmp_path, 2, policy="bytescheduler", timeout="20s")) as cluster:
        for function in (own_loop, by_fit):
            assert all(run_with_restart(cluster, function))
