"""Every policy trains as one process on the whole batch does, and with the same bits on every rank."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow_jobs import small_model, weights_of
from training_checks import assert_close, assert_same_everywhere, batches, own_share

STEPS = 12


def sgd():
    return keras.optimizers.SGD(0.05, momentum=0.9)


def train(distributed_by, compiled, optimizer=None, dtype="float32", rows=8, **options):
    """The weights after some steps. distributed_by: "tape", "optimizer", or "" for one process on the whole batch."""
    import deft.tensorflow as hvd

    model, optimizer = small_model(dtype), optimizer or sgd()
    if distributed_by == "optimizer":
        optimizer = hvd.DistributedOptimizer(optimizer, **options)

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.cast(model(x), tf.float32) - y))
        if distributed_by == "tape":
            tape = hvd.DistributedGradientTape(tape, **options)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    run = tf.function(step, reduce_retracing=True) if compiled else step
    if distributed_by:
        if hvd.rank() != 0:
            for weight in model.weights:
                weight.assign(weight * 0)
        hvd.broadcast_variables(model.weights, root_rank=0)
    for x, y in batches(STEPS, rows):
        run(*(own_share(x, y) if distributed_by else (x, y)))
    return weights_of(model)


def train_in_all_ways(exact):
    expected = train("", compiled=True)
    start = weights_of(small_model())
    for how in ("tape", "optimizer"):
        for compiled in (False, True):
            weights = train(how, compiled)
            assert_same_everywhere(weights)
            if exact:
                assert_close(weights, expected)
            else:
                way = sum(np.linalg.norm(a - b) for a, b in zip(expected, start))
                off = sum(np.linalg.norm(a - b) for a, b in zip(weights, expected))
                assert 0 < off < 0.1 * way, f"{how}: {off:.3g} off after a way of {way:.3g}"
    return True


@pytest.mark.parametrize("policy", ["fifo", "bytescheduler", "knapsack"])
def test_trains_as_one_process_on_the_whole_batch(start, policy):
    assert all(start(policy=policy).run(train_in_all_ways, True))


def test_with_an_int8_codec_replicas_have_the_same_bits(start):
    assert all(start(policy="bytescheduler", compression="int8").run(train_in_all_ways, False))


def several_threads():
    return train_in_all_ways(True)


several_threads.threads = 4


def test_with_several_threads_between_operations(start):
    assert all(start(policy="bytescheduler").run(several_threads))


def train_dtypes_and_options():
    import deft.tensorflow as hvd

    start = weights_of(small_model())
    for dtype, share in (("float64", 1e-9), ("bfloat16", 0.2), ("float16", 0.05)):
        weights, expected = train("tape", True, dtype=dtype), train("", True, dtype=dtype)
        assert_same_everywhere(weights)
        way = sum(np.linalg.norm(b.astype(float) - a) for a, b in zip(start, expected))
        off = sum(np.linalg.norm(a.astype(float) - b.astype(float)) for a, b in zip(weights, expected))
        assert off <= share * way, f"{dtype}: {off:.3g} off after a way of {way:.3g}"
    expected = train("", True)
    assert_close(train("tape", True, compression=hvd.Compression.fp16), expected, 2e-3)
    assert_close(train("optimizer", True, gradient_predivide_factor=1.5), expected)
    halved = keras.optimizers.SGD(0.05 / hvd.size(), momentum=0.9)
    assert_close(train("tape", True, optimizer=halved, op=hvd.Sum), expected)
    for wrong in ({"op": hvd.Max}, {"op": hvd.Sum, "gradient_predivide_factor": 2.0}):
        with pytest.raises(ValueError, match=r"op"):
            hvd.DistributedOptimizer(sgd(), **wrong)
    with pytest.raises(ValueError, match="gradient_accumulation_steps"):
        hvd.DistributedOptimizer(sgd(), backward_passes_per_step=2)
    # Keras keeps the average of several passes; averaging over ranks in each pass gives the same.
    slow = [keras.optimizers.SGD(0.05, momentum=0.9, gradient_accumulation_steps=3) for _ in range(2)]
    assert_close(train("optimizer", True, optimizer=slow[0]), train("", True, optimizer=slow[1]))
    return True


def sparse_gradients():
    """Rows of an embedding; the ranks use different numbers of rows, some of them twice."""
    import deft.tensorflow as hvd

    ids = {0: [1, 3, 3], 1: [3, 5, 1, 0]}[hvd.rank()]
    results = []
    for compiled in (False, True):
        for sparse_as_dense in (False, True):
            table, dense, unused = tf.Variable(tf.ones((7, 2))), tf.Variable([2.0, 1.0]), tf.Variable(1.0)

            def gradients(table=table, dense=dense, unused=unused, as_dense=sparse_as_dense):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_sum(tf.gather(table, ids) * dense)
                tape = hvd.DistributedGradientTape(tape, sparse_as_dense=as_dense)
                return tape.gradient(loss, {"t": table, "d": dense, "u": unused})

            found = (tf.function(gradients) if compiled else gradients)()
            assert found["u"] is None
            assert isinstance(found["t"], tf.IndexedSlices) == (not sparse_as_dense)
            results.append(tf.convert_to_tensor(found["t"]).numpy())
            np.testing.assert_allclose(found["d"], [3.5, 3.5])
    counts = np.array([1, 2, 0, 3, 0, 1, 0])
    for result in results:
        np.testing.assert_allclose(result, counts[:, None] * np.array([2.0, 1.0]) / 2)
    return True


def local_layers():
    """Their gradients stay with their rank, divided by the number of ranks unless that is forbidden."""
    import deft.tensorflow as hvd

    for scaled in (True, False):
        local_layer(scaled)
    with pytest.raises(ValueError, match="layers of Keras"):
        hvd.PartialDistributedGradientTape(tf.GradientTape(), local_layers=[1])
    return True


def local_layer(scaled):
    import deft.tensorflow as hvd
    import deft.tensorflow.keras as hvd_keras

    model, x = small_model(), tf.ones((2, 6)) * (1.0 + hvd.rank())
    variables, layer = model.trainable_variables, model.layers[1]
    options = {"local_layers": layer, "scale_local_gradients": scaled}

    def gradients(partial):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x)))
        if partial:
            tape = hvd.PartialDistributedGradientTape(tape, **options)
        return tape.gradient(loss, variables)

    own, of_layer = gradients(False), {id(variable) for variable in layer.trainable_weights}
    assert len(of_layer) == 2
    expected = [
        gradient * (0.5 if scaled else 1.0) if id(variable) in of_layer else hvd.allreduce(gradient)
        for gradient, variable in zip(own, variables)
    ]
    for run in (gradients, tf.function(gradients)):
        assert_close([g.numpy() for g in run(True)], [g.numpy() for g in expected])
    before = [variable.numpy() for variable in variables]
    optimizer = hvd_keras.PartialDistributedOptimizer(keras.optimizers.SGD(1.0), **options)
    optimizer.apply_gradients(zip(own, variables))
    for variable, was, gradient in zip(variables, before, expected):
        np.testing.assert_allclose(variable.numpy(), was - gradient, atol=1e-5)


def two_tapes_and_what_they_watch():
    """Two sets of variables, a persistent tape, a watched tensor, and a graph that one rank alone traces again."""
    import deft.tensorflow as hvd

    first, second, rank = tf.Variable([1.0, 2.0]), tf.Variable(3.0), hvd.rank()

    @tf.function
    def step(x):
        with tf.GradientTape(persistent=True) as tape:
            a, b = tf.reduce_sum(first * tf.reduce_sum(x)), second * tf.reduce_mean(x)
        tape = hvd.DistributedGradientTape(tape)
        return tape.gradient(a, first), tape.gradient(b, [second])

    for rows, average in ((1, 1.0), (1 + 2 * rank, 2.0), (1, 1.0)):
        of_first, (of_second,) = step(tf.ones(rows))
        np.testing.assert_allclose(of_first, [average] * 2)
        np.testing.assert_allclose(of_second, 1.0)
    x = tf.constant([1.0, 2.0]) * (1 + rank)
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_sum(x * x)
    np.testing.assert_allclose(hvd.DistributedGradientTape(tape).gradient(loss, x), [3.0, 6.0])
    return True


def stages_and_the_end_of_a_session():
    """The first group of dense gradients tells the stages, also of a model with sparse ones. A graph that is older than
    the session is an error that says so."""
    import deft
    import deft.tensorflow as hvd
    from deft.world import session

    told = []
    session().stage = lambda stage, step: told.append((stage, step))
    table, dense, other = tf.Variable(tf.ones((3, 2))), tf.Variable([2.0, 1.0]), tf.Variable(1.0)
    for _ in range(2):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, [1]) * dense)
        hvd.DistributedGradientTape(tape).gradient(loss, [table, dense])
    assert told == [(deft.BACKWARD, 0), (deft.FORWARD, 1), (deft.BACKWARD, 1), (deft.FORWARD, 2)]

    @tf.function
    def gradient():
        with tf.GradientTape() as tape:
            loss = other * other
        return hvd.DistributedGradientTape(tape).gradient(loss, other)

    np.testing.assert_allclose(gradient(), 2.0)
    hvd.shutdown()
    with pytest.raises(tf.errors.InvalidArgumentError, match="the session was closed"):
        gradient()
    return True


def test_stages_and_the_end_of_a_session(start):
    assert all(start(policy="fifo").run(stages_and_the_end_of_a_session))


def train_everything_else():
    return train_dtypes_and_options() and sparse_gradients() and local_layers() and two_tapes_and_what_they_watch()


def test_dtypes_options_and_sparse_gradients(start):
    assert all(start(policy="fifo").run(train_everything_else))
