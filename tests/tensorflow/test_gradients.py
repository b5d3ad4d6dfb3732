"""Gradients of gradients, and of collectives in branches and loops."""

import numpy as np
import tensorflow as tf


def in_both_modes(function):
    return [function, tf.function(function)]


def outer_tape(function, variable):
    """The gradient of function(), which has a tape of its own."""

    def gradient():
        with tf.GradientTape() as tape:
            result = function()
        return tf.convert_to_tensor(tape.gradient(result, variable))

    return gradient


def of_averages():
    """A second tape goes through the averages, as it goes through an allreduce."""
    import deft.tensorflow as hvd

    variable, factor = tf.Variable([3.0, 1.0]), 1.0 + hvd.rank()

    def penalty(average):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(factor * variable**3)
        return tf.reduce_sum((1 + hvd.rank()) * average(tape, loss) ** 2)

    def by_allreduce(op):
        return lambda tape, loss: hvd.allreduce(tape.gradient(loss, variable), op=op)

    def by_tape(op, **options):
        return lambda tape, loss: hvd.DistributedGradientTape(tape, op=op, **options).gradient(loss, variable)

    for op in (hvd.Average, hvd.Sum):
        expected = outer_tape(lambda op=op: penalty(by_allreduce(op)), variable)()
        assert np.abs(expected).min() > 1
        for options in ({}, {"compression": hvd.Compression.fp16}):
            for run in in_both_modes(outer_tape(lambda op=op, o=options: penalty(by_tape(op, **o)), variable)):
                np.testing.assert_allclose(run(), expected, rtol=1e-3)
        compiled = tf.function(lambda op=op: penalty(by_tape(op)))
        compiled()  # the outer tape comes when the graph is there
        np.testing.assert_allclose(outer_tape(compiled, variable)(), expected)


def of_averaged_rows():
    """Ranks with different numbers of rows, one of them twice: as if the gradient of the table were dense."""
    import deft.tensorflow as hvd

    ids = {0: [1, 3, 3], 1: [3, 5, 1, 0]}[hvd.rank()]
    table, weights = tf.Variable(tf.reshape(tf.range(14.0), (7, 2))), tf.reshape(tf.range(14.0), (7, 2))

    def penalty(as_dense):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((1.0 + hvd.rank()) * tf.gather(table, ids) ** 2)
        average = hvd.DistributedGradientTape(tape, sparse_as_dense=as_dense).gradient(loss, table)
        return tf.reduce_sum(weights * (1 + hvd.rank()) * tf.convert_to_tensor(average))

    expected = outer_tape(lambda: penalty(True), table)()
    assert np.abs(expected).max() > 1
    for run in in_both_modes(outer_tape(lambda: penalty(False), table)):
        np.testing.assert_allclose(run(), expected)


def in_branches_and_loops():
    import deft.tensorflow as hvd

    rank, x = hvd.rank(), tf.constant([[1.0], [2.0]])

    def branch(call):
        return lambda x: tf.cond(x[0, 0] > 0, lambda: tf.reduce_sum(call(x) * (1.0 + rank)), lambda: 0.0)

    def loop(call):
        return lambda x: tf.while_loop(lambda i, _: i < 2, lambda i, _: (i + 1, branch(call)(x)), [0, 0.0])[1]

    def gradient(call):
        def of_call(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                loss = call(x) + tf.reduce_sum(hvd.allreduce(x))
            return tape.gradient(loss, x)

        return of_call

    batch_norm = hvd.SyncBatchNormalization()
    batch_norm(x)
    for call in (
        hvd.allreduce,
        hvd.allgather,
        lambda x: hvd.broadcast(x, 1),
        hvd.alltoall,
        hvd.reducescatter,
        lambda x: hvd.grouped_allreduce([x, x], op=hvd.Sum)[1] ** 2,
        lambda x: batch_norm(x, training=True) ** 2,
    ):
        expected = gradient(branch(call))(x)  # in eager mode
        for wrap in (branch, loop):
            np.testing.assert_allclose(tf.function(gradient(wrap(call)))(x), expected, atol=1e-6)
    np.testing.assert_allclose(tf.function(gradient(loop(tf.function(call))))(x), expected, atol=1e-6)  # the last one


def of_functions_in_branches():
    """TensorFlow makes the gradient of a function once, for calls in branches and elsewhere."""
    import deft.tensorflow as hvd

    x, weight = tf.constant([[1.0], [2.0]]), tf.Variable(3.0)

    @tf.function
    def squared(x):
        return tf.cond(x[0, 0] > 0, lambda: hvd.allreduce(x * weight) ** 2, lambda: x)

    @tf.function
    def twice(x):
        return squared(x) + hvd.allreduce(squared(x * 2))

    def total(in_branch):
        return tf.reduce_sum(tf.cond(x[0, 0] > 0, lambda: twice(x), lambda: x) if in_branch else twice(x))

    def gradient(*in_branches):
        def of_total():
            with tf.GradientTape() as tape:
                loss = sum(total(one) for one in in_branches)
            return tape.gradient(loss, weight)

        return of_total

    once = gradient(False)()
    np.testing.assert_allclose(once, 2 * 3.0 * (1 + 4) * (1 + 4))
    for in_branches in ([True], [False, True]):
        expected = len(in_branches) * once
        for run in in_both_modes(gradient(*in_branches)):
            np.testing.assert_allclose(run(), expected, rtol=1e-6)


def of_rows_that_are_gathered():
    """The upstream of a collective is tf.IndexedSlices."""
    import deft.tensorflow as hvd

    variable = tf.Variable(tf.ones((4, 2)))
    for call in (hvd.alltoall, hvd.allgather, hvd.reducescatter, hvd.allreduce, lambda x: hvd.broadcast(x, 0)):

        def total(pick, call=call):
            return lambda: tf.reduce_sum(pick(call(tf.identity(variable))))

        expected = outer_tape(total(lambda y: y[0] * 2 + y[1]), variable)()
        for run in in_both_modes(outer_tape(total(lambda y: tf.gather(y, [0, 0, 1])), variable)):
            np.testing.assert_allclose(run(), expected)


def that_are_kept():
    """Later steps change neither a gradient that a script keeps nor a variable that has got its memory."""
    import deft.tensorflow as hvd

    variable = tf.Variable(tf.ones(1 << 16))
    newest = tf.Variable(tf.zeros(1 << 16))

    def average(factor):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(variable) * (factor + hvd.rank())
        return hvd.DistributedGradientTape(tape).gradient(loss, variable)

    def assign(factor):
        newest.assign(average(factor))

    middle = (hvd.size() - 1) / 2
    for run, run_to_assign in ((average, assign), (tf.function(average), tf.function(assign))):
        kept = [run(tf.constant(float(factor))) for factor in range(3)]
        run_to_assign(tf.constant(3.0))
        run(tf.constant(4.0))
        for factor, gradient in enumerate([*kept, newest]):
            np.testing.assert_array_equal(gradient, np.full(1 << 16, factor + middle, np.float32))


def two_layers_in_one_model():
    import deft.tensorflow as hvd
    import keras

    layers = [hvd.SyncBatchNormalization(), keras.layers.Dense(3), hvd.SyncBatchNormalization()]
    model = keras.Sequential([keras.layers.Input((4,)), *layers])
    names = [layer.name for layer in model.layers]
    assert len(set(names)) == 3 and all("sync_batch_normalization" in names[i] for i in (0, 2))


def everything():
    of_averages()
    of_averaged_rows()
    in_branches_and_loops()
    of_functions_in_branches()
    of_rows_that_are_gathered()
    that_are_kept()
    two_layers_in_one_model()
    return True


def test_gradients(start):
    assert all(start(policy="fifo").run(everything))
