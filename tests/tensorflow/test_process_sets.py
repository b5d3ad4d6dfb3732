"""Process sets, Product and Adasum, in eager mode and in graphs; join()."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow_jobs import small_model, weights_of
from training_checks import assert_same_everywhere, batches


def in_both_modes(function):
    return [function, tf.function(function)]


def collectives():
    import deft.tensorflow as hvd

    rank = hvd.rank()
    both, alone = hvd.add_process_set([0, 2]), hvd.add_process_set([1])
    mine = both if both.included() else alone
    ranks = mine.ranks
    total, mean = float(sum(ranks)), sum(ranks) / len(ranks)
    one = {"process_set": mine}
    x = tf.fill((2,), float(rank))
    for run, expected in (
        (lambda x: hvd.allreduce(x, **one), [mean] * 2),
        (lambda x: hvd.grouped_allreduce([x], op=hvd.Sum, **one)[0], [total] * 2),
        (lambda x: hvd.allreduce(x + 1, op=hvd.Product, **one), [np.prod([r + 1.0 for r in ranks])] * 2),
        (lambda x: hvd.allreduce(x + 1, op=hvd.Adasum, **one), [2.0, 2.0] if len(ranks) == 2 else [2.0] * 2),
        (lambda x: hvd.allgather(x[:1], **one), ranks),
        (lambda x: hvd.grouped_allgather([x[:1]], **one)[0], ranks),
        (lambda x: hvd.broadcast(x, ranks[-1], **one), [float(ranks[-1])] * 2),
        (lambda x: hvd.alltoall(tf.fill((len(ranks),), x[0]), **one), ranks),
        (lambda x: hvd.reducescatter(tf.fill((len(ranks),), x[0]), op=hvd.Sum, **one), [total]),
        (lambda x: hvd.grouped_reducescatter([tf.fill((len(ranks),), x[0])], op=hvd.Sum, **one)[0], [total]),
    ):
        for call in in_both_modes(run):
            np.testing.assert_allclose(call(x), expected)
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_sum(hvd.allgather(x, **one)) * (rank + 1.0)
    np.testing.assert_allclose(tape.gradient(loss, x), [mean + 1] * 2)
    assert hvd.broadcast_object(rank, ranks[-1], **one) == ranks[-1]
    assert hvd.allgather_object(rank, **one) == ranks
    hvd.barrier(process_set=mine)
    return both


def training(process_set, wrap):
    """Ranks 0 and 2 train together, rank 1 alone: as one process does with the batches of the set's ranks."""
    import deft.tensorflow as hvd
    import keras

    model, expected = small_model(), small_model()
    optimizer, reference = keras.optimizers.SGD(0.1, 0.9), keras.optimizers.SGD(0.1, 0.9)
    ranks = process_set.ranks if process_set.included() else [hvd.rank()]

    def gradients_of(network, x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((network(x) - y) ** 2)
        return tape, loss

    if wrap == "optimizer":
        optimizer = hvd.DistributedOptimizer(optimizer, process_set=process_set)
    if process_set.included():
        hvd.broadcast_variables(model.variables, ranks[-1], process_set=process_set)
    for x, y in batches(4, rows=9):
        tape, loss = gradients_of(model, x[hvd.rank() :: 3], y[hvd.rank() :: 3])
        if wrap == "tape":
            tape = hvd.DistributedGradientTape(tape, process_set=process_set)
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        every = np.concatenate([x[r::3] for r in ranks]), np.concatenate([y[r::3] for r in ranks])
        tape, loss = gradients_of(expected, *every)
        gradients = tape.gradient(loss, expected.trainable_variables)
        reference.apply_gradients(zip(gradients, expected.trainable_variables))
    for found, wanted in zip(weights_of(model), weights_of(expected)):
        np.testing.assert_allclose(found, wanted, atol=1e-5)


def everything():
    import deft.tensorflow as hvd

    both = collectives()
    training(both, "optimizer")
    training(both, "tape")
    training(hvd.global_process_set, "optimizer")
    assert hvd.remove_process_set(both)
    x = tf.ones(2) * hvd.allreduce(float(hvd.rank()))
    assert_same_everywhere([x.numpy()])
    hvd.shutdown()
    last = hvd.ProcessSet([1, 2])
    hvd.init(process_sets=[last])
    if last.included():
        np.testing.assert_allclose(hvd.allreduce(tf.ones(1), op=hvd.Sum, process_set=last), [2.0])
    return str(last)


def test_process_sets(start):
    results = start(1, policy="fifo").run(everything, workers=3)
    assert results == ["ProcessSet(process_set_id=1, ranks=[1, 2], mpi_comm=None)"] * 3


def uneven(as_graph):
    """Rank 0 has no batch in the first epoch and 2 in the second, rank 1 has 4; who has joined counts as zero."""
    import deft.tensorflow as hvd
    import keras

    model, expected = small_model(), small_model()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
    reference = keras.optimizers.SGD(0.1)

    def gradients_of(network, x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((network(x) - y) ** 2)
        return tape.gradient(loss, network.trainable_variables)

    def step(x, y):
        present = hvd.allreduce(1.0, op=hvd.Sum, name="ranks")  # before the gradients: rank 0 makes its graph later
        optimizer.apply_gradients(zip(gradients_of(model, x, y), model.trainable_variables))
        return present

    call = tf.function(step) if as_graph else step
    for counts in ([0, 4], [2, 4]):
        present = [float(call(x[hvd.rank() :: 2], y[hvd.rank() :: 2])) for x, y in batches(counts[hvd.rank()])]
        assert present == [2.0 if place < counts[0] else 1.0 for place in range(counts[hvd.rank()])]
        assert hvd.join() == 1, "the last one"
        hvd.broadcast_variables(model.variables, root_rank=1)
        for place, (x, y) in enumerate(batches(4)):
            every = [gradients_of(expected, x[r::2], y[r::2]) for r in range(2) if place < counts[r]]
            means = [sum(of_ranks) / 2 for of_ranks in zip(*every)]
            reference.apply_gradients(zip(means, expected.trainable_variables))
    for found, wanted in zip(weights_of(model), weights_of(expected)):
        np.testing.assert_allclose(found, wanted, atol=1e-5)
    assert_same_everywhere(weights_of(model))


def joins():
    import deft.tensorflow as hvd

    uneven(as_graph=False)
    uneven(as_graph=True)
    if hvd.rank() == 1:
        with pytest.raises(tf.errors.FailedPreconditionError, match="rank 0 has joined"):
            hvd.allgather(tf.ones(2))
    return hvd.join()


def test_join(start):
    assert start(policy="fifo").run(joins) == [1, 1]
