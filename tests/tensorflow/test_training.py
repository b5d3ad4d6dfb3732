"""Every policy trains as one process on the whole batch does, and with the same bits on every rank."""

import functools
import gc
import itertools
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow_jobs import small_model, weights_of
from training_checks import (
    assert_close,
    assert_same_everywhere,
    batches,
    large_gradient,
    own_share,
    share_off,
    sum_of_halves,
)

STEPS = 12
WAYS = list(itertools.product(("tape", "optimizer"), (False, True)))  # how, and whether in a graph


def sgd():
    return keras.optimizers.SGD(0.05, momentum=0.9)


def train(distributed_by, compiled, optimizer=None, dtype="float32", rows=8, units=24, **options):
    """The weights after some steps. distributed_by: "tape", "optimizer", or "" for one process on the whole batch."""
    import deft.tensorflow as hvd

    model, optimizer = small_model(dtype, units), optimizer or sgd()
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


def train_in_all_ways():
    expected = train("", compiled=True)
    for how, compiled in WAYS:
        weights = train(how, compiled)
        assert_same_everywhere(weights)
        assert_close(weights, expected)
    return True


def train_encoded():
    expected, start = train("", compiled=True, units=96), weights_of(small_model(units=96))
    for how, compiled in WAYS:
        weights = train(how, compiled, units=96)
        assert_same_everywhere(weights)
        off = share_off(weights, expected, start)
        assert 1e-4 < off < 0.1, f"{how}: off by {off:.3g} of the way"  # rounding alone: some 1e-6
    return True


@pytest.mark.parametrize("policy", ["fifo", "bytescheduler", "knapsack"])
def test_trains_as_one_process_on_the_whole_batch(start, policy):
    assert all(start(policy=policy).run(train_in_all_ways))


def test_with_an_int8_codec_replicas_have_the_same_bits(start):
    assert all(start(policy="bytescheduler", compression="int8").run(train_encoded))


def travels_during_backward():
    """In a graph backward goes on only when the gradient that it has made first is on its way."""
    import deft.tensorflow as hvd
    from deft.gradient_group import LateGroup

    handed, seen, order = threading.Event(), [], []
    ones = np.ones(1 << 16, np.float32)  # a smaller gradient would go with the next one
    first, last = keras.Variable(ones), keras.Variable(ones)

    def wait_for_last(upstream):
        seen.append(handed.wait(60))
        handed.clear()
        return upstream

    @tf.custom_gradient
    def gate(x):
        def gradient(upstream):
            result = tf.numpy_function(wait_for_last, [upstream], tf.float32, stateful=False)
            return tf.ensure_shape(result, upstream.shape)

        return tf.identity(x), gradient

    def step(variables):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(gate(tf.convert_to_tensor(first) * 2.0) * last)
        return hvd.DistributedGradientTape(tape).gradient(loss, variables)

    hand_over = LateGroup.hand_over

    def note(group, run, gradients):
        hand_over(group, run, gradients)
        if any(order[index] is last for index in run):
            handed.set()

    LateGroup.hand_over = note
    try:
        for order in [first, last], [last, first]:  # the list's order does not matter
            run = tf.function(functools.partial(step, order))
            for _ in range(3):
                np.testing.assert_allclose(run(), [2.0 * ones] * 2)
    finally:
        LateGroup.hand_over = hand_over
    assert seen == [True] * 6, "all of backward came before the first gradient was on its way"


def several_threads():
    travels_during_backward()
    return train_in_all_ways()


several_threads.threads = 4


def test_with_several_threads_between_operations(start):
    assert all(start(policy="bytescheduler").run(several_threads))


def train_dtypes_and_options():
    import deft.tensorflow as hvd

    start = weights_of(small_model())
    for dtype, share in (("float64", 1e-9), ("bfloat16", 0.2), ("float16", 0.05)):
        expected = train("", True, dtype=dtype)
        for how, compiled in (("tape", False), ("optimizer", False), ("tape", True)):
            weights = train(how, compiled, dtype=dtype)
            assert_same_everywhere(weights)
            off = share_off(weights, expected, start)
            assert off <= share, f"{dtype}, {how}: off by {off:.3g} of the way"
    expected = train("", True)
    for how, compiled in (("tape", False), ("optimizer", True)):
        assert_close(train(how, compiled, gradient_predivide_factor=1.5), expected)
    for how, compiled in (("tape", True), ("optimizer", False)):
        halved = keras.optimizers.SGD(0.05 / hvd.size(), momentum=0.9)
        assert_close(train(how, compiled, optimizer=halved, op=hvd.Sum), expected)
    for wrong in ({"op": hvd.Max}, {"op": hvd.Adasum}, {"op": hvd.Sum, "gradient_predivide_factor": 2.0}):
        with pytest.raises(ValueError, match=r"op"):
            hvd.DistributedOptimizer(sgd(), **wrong)
    accumulating()
    return True


def accumulating():
    """Keras keeps the average of several passes; averaging over ranks in each pass gives the same. Horovod adds up."""
    import deft.tensorflow as hvd

    slow = [keras.optimizers.SGD(0.05, momentum=0.9, gradient_accumulation_steps=3) for _ in range(2)]
    expected = train("", True, optimizer=slow[0])
    assert_close(train("optimizer", True, optimizer=slow[1]), expected)
    mean = {"backward_passes_per_step": 3, "average_aggregated_gradients": True}
    assert_close(train("optimizer", True, optimizer=sgd(), **mean), expected)
    third = keras.optimizers.SGD(0.05 / 3, momentum=0.9)
    assert_close(train("optimizer", False, optimizer=third, backward_passes_per_step=3), expected)
    built = sgd()
    built.build([keras.Variable(1.0)])
    for wrong, said in (
        (built, "no variables yet"),
        (keras.optimizers.SGD(gradient_accumulation_steps=3), "gradient_accumulation_steps of the optimizer is 3"),
        (keras.optimizers.LossScaleOptimizer(sgd()), "the optimizer inside it gradient_accumulation_steps=2"),
    ):
        with pytest.raises(ValueError, match=said):
            hvd.DistributedOptimizer(wrong, backward_passes_per_step=2)


def update_of(gradient, how, compiled, **options):
    """What SGD with a rate of 1 takes from a variable."""
    import deft.tensorflow as hvd

    variable = keras.Variable(np.zeros(gradient.shape, gradient.dtype), dtype=gradient.dtype.name)
    optimizer = keras.optimizers.SGD(1.0)
    optimizer.build([variable])
    if how == "optimizer":
        hvd.DistributedOptimizer(optimizer, **options)

    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.convert_to_tensor(variable) * gradient)
        if how == "tape":
            tape = hvd.DistributedGradientTape(tape, **options)
        optimizer.apply(tape.gradient(loss, [variable]), [variable])

    (tf.function(step) if compiled else step)()
    return -np.array(variable)


def gradients_as_halves():
    """Compression.fp16 is Horovod's: gradients travel as float16, come back in their own dtype, and no codec encodes
    them, also if the daemon encodes all others."""
    import deft.tensorflow as hvd

    hvd.shutdown()
    hvd.init(job="halves", compression="int8")
    own, exact = large_gradient(hvd.rank()), (large_gradient(0) + large_gradient(1)) / 2
    for how, compiled in WAYS:
        halved = update_of(own, how, compiled, compression=hvd.Compression.fp16)
        np.testing.assert_array_equal(halved, sum_of_halves(before=0.5))
        assert np.abs(update_of(own, how, compiled) - exact).max() > 1e-3, "int8 is not in force"
        summed = update_of(own * 60000, how, compiled, compression=hvd.Compression.fp16, op=hvd.Sum)
        assert np.isinf(summed).any(), "what float16 cannot hold becomes infinite"
        wide = update_of(own.astype(np.float64), how, compiled, compression=hvd.Compression.fp16)
        assert wide.dtype == np.float64
        np.testing.assert_array_equal(wide, sum_of_halves(before=0.5))
    return True


def sparse_updates():
    """By the optimizer: rows of an embedding and a variable without a gradient."""
    for as_dense, compiled in itertools.product((False, True), (False, True)):
        sparse_update(as_dense, compiled)


def sparse_update(as_dense, compiled):
    import deft.tensorflow as hvd

    ids, counts = {0: [1, 3, 3], 1: [3, 5, 1, 0]}[hvd.rank()], np.array([1, 2, 0, 3, 0, 1, 0])
    table, unused = keras.Variable(np.ones((7, 2), np.float32)), keras.Variable(1.0)
    optimizer, kinds = keras.optimizers.SGD(1.0), []
    optimizer.build([table, unused])
    hvd.DistributedOptimizer(optimizer, sparse_as_dense=as_dense)

    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(tf.convert_to_tensor(table), ids))
        gradients = tape.gradient(loss, [table, unused])
        kinds.extend(map(type, gradients))
        optimizer.apply(gradients, [table, unused])

    (tf.function(step) if compiled else step)()
    assert kinds == [tf.IndexedSlices, type(None)]
    np.testing.assert_allclose(table, 1 - counts[:, None] * np.array([1.0, 1.0]) / 2)
    assert float(unused) == 1.0


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


def reduced_by_adasum():
    """Orthogonal gradients are added, and parallel ones averaged, each by itself."""
    import deft.tensorflow as hvd

    rank = hvd.rank()
    first, second, unused = tf.Variable([3.0, 1.0]), tf.Variable([1.0, 2.0]), tf.Variable(1.0)
    factors = tf.constant([[1.0, 0.0], [0.0, 2.0]][rank])

    def gradients():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(first * factors) + tf.reduce_sum(second) * (1.0 + 2.0 * rank)
        tape = hvd.DistributedGradientTape(tape, op=hvd.Adasum)
        return tape.gradient(loss, {"first": first, "second": second, "unused": unused})

    for run in (gradients, tf.function(gradients)):
        found = run()
        np.testing.assert_allclose(found["first"], [1.0, 2.0])
        np.testing.assert_allclose(found["second"], [2.0, 2.0])
        assert found["unused"] is None
    for as_dense in (True, False):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(first, [rank])) * 2.0
        tape = hvd.DistributedGradientTape(tape, op=hvd.Adasum, sparse_as_dense=as_dense)
        if as_dense:
            np.testing.assert_allclose(tape.gradient(loss, first), [2.0, 2.0])
        else:
            with pytest.raises(NotImplementedError, match="sparse_as_dense=True"):
                tape.gradient(loss, first)


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


def squares_of(variables, **options):
    """The averages of the gradients of squares, times 1 on rank 0 and 2 on rank 1."""
    import deft.tensorflow as hvd

    with tf.GradientTape() as tape:
        loss = (1 + hvd.rank()) * sum(tf.reduce_sum(variable * variable) for variable in variables)
    found = hvd.DistributedGradientTape(tape, **options).gradient(loss, variables)
    return [gradient.numpy().tolist() for gradient in found]


def a_step_that_is_interrupted():
    """Rank 0 goes on with the next step. In the one that Ctrl-C ended it counts with zeros for what it had not done."""
    import deft.tensorflow as hvd
    from deft.gradient_group import LateGroup

    variables = [tf.Variable([1.0]), tf.Variable([2.0])]
    assert squares_of(variables) == [[3.0], [6.0]]
    if hvd.rank() == 0:
        with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
            hand_over = LateGroup.hand_over
            patch.setattr(LateGroup, "hand_over", functools.partialmethod(interrupted_at_the_first, hand_over))
            squares_of(variables)
    else:
        assert squares_of(variables) == [[2.0], [6.0]]
    for _ in range(2):
        assert squares_of(variables) == [[3.0], [6.0]]


def interrupted_at_the_first(group, hand_over, run, gradients):
    assert run == [1, 0]
    hand_over(group, run[:1], gradients[:1])
    raise KeyboardInterrupt


def functions_that_choose():
    """A new function in each step that chooses the same makes no new group."""
    import deft

    variables, names = [tf.Variable([1.0]), tf.Variable([2.0])], []
    with pytest.MonkeyPatch.context() as patch:
        declare = deft.Session.declare
        patch.setattr(deft.Session, "declare", lambda *given, **more: names.append(given[1]) or declare(*given, **more))
        for _ in range(3):
            assert squares_of(variables, compression=lambda _name, _variable: deft.Codec("none")) == [[3.0], [6.0]]
        assert len(names) == 1
        squares_of(variables, compression=lambda name, _variable: deft.Codec("fp16"))
        assert len(names) == 2


def two_steps():
    import deft.tensorflow as hvd

    table, dense = tf.Variable(tf.ones((3, 2))), tf.Variable([2.0, 1.0])
    for _ in range(2):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, [1]) * dense)
        hvd.DistributedGradientTape(tape).gradient(loss, [table, dense])


def stages_and_the_end_of_a_session():
    """The oldest group of dense gradients tells the stages, also of a model with sparse ones. A graph that is older
    than the session works in it."""
    import deft
    import deft.tensorflow as hvd
    from deft.world import session

    told = []
    session().stage = lambda stage, step: told.append((stage, step))
    for _ in range(2):  # the next variables' group tells them when these variables are gone
        told.clear()
        two_steps()
        assert told == [(deft.BACKWARD, 0), (deft.FORWARD, 1), (deft.BACKWARD, 1), (deft.FORWARD, 2)]
        gc.collect()
    table, other = tf.Variable(tf.ones((3, 2))), tf.Variable(1.0)

    @tf.function
    def gradient():
        with tf.GradientTape() as tape:
            loss = other * other + tf.reduce_sum(tf.gather(table, [hvd.rank()]))
        found = hvd.DistributedGradientTape(tape).gradient(loss, [other, table])
        return found[0], tf.convert_to_tensor(found[1]), hvd.allgather(other[None])

    def check():
        for found, expected in zip(gradient(), (2.0, [[0.5] * 2, [0.5] * 2, [0.0] * 2], [1.0, 1.0])):
            np.testing.assert_allclose(found, expected)

    check()
    hvd.shutdown()
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"call init\(\) first"):
        gradient()
    hvd.init()
    check()
    return True


def test_stages_and_the_end_of_a_session(start):
    assert all(start(policy="fifo").run(stages_and_the_end_of_a_session))


def test_dtypes_and_options(start):
    assert all(start(policy="fifo").run(train_dtypes_and_options))


def train_everything_else():
    sparse_gradients()
    sparse_updates()
    local_layers()
    reduced_by_adasum()
    two_tapes_and_what_they_watch()
    a_step_that_is_interrupted()
    functions_that_choose()
    return gradients_as_halves()


def test_sparse_gradients_local_layers_and_halves(start):
    assert all(start(policy="fifo").run(train_everything_else))
