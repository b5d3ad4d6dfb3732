"""Collectives, in eager mode and in graphs: values, gradients, names, objects, and what is refused."""

import numpy as np
import pytest
import tensorflow as tf

REDUCIBLE = ["float32", "float64", "float16", "bfloat16", "int32", "int64", "uint8", "int8"]


def in_both_modes(function):
    return [function, tf.function(function)]


def values():
    import deft.tensorflow as hvd

    rank, size = hvd.rank(), hvd.size()
    for dtype in REDUCIBLE:
        x = tf.cast(tf.reshape(tf.range(6), (2, 3)) + rank, dtype)
        for allreduce in in_both_modes(lambda x, op: hvd.allreduce(x, op=op)):
            for op, expected in ((hvd.Sum, 1), (hvd.Min, 0), (hvd.Max, 1)):
                base = np.arange(6).reshape(2, 3)
                wanted = 2 * base + expected if op is hvd.Sum else base + expected
                result = allreduce(x, op)
                assert result.dtype == x.dtype and result.shape == x.shape
                np.testing.assert_array_equal(tf.cast(result, tf.float64), wanted)
    x = tf.constant([1.0, 2.0]) * (1 + rank)
    for run in in_both_modes(lambda x: hvd.grouped_allreduce([x, 2 * x], prescale_factor=2.0)):
        np.testing.assert_allclose(run(x), [[3, 6], [6, 12]])
    for run in in_both_modes(lambda x: hvd.allreduce(x, average=False, compression=hvd.Compression.fp16)):
        np.testing.assert_allclose(run(x), [3, 6])
    for run in in_both_modes(lambda x: hvd.allgather(x, name="rows")):
        np.testing.assert_allclose(run(tf.fill((rank + 1, 2), float(rank))), [[0, 0], [1, 1], [1, 1]])
        assert run(tf.zeros((0, 2))).shape == (0, 2)
    for run in in_both_modes(lambda x: hvd.broadcast(x, root_rank=1)):
        assert run(tf.constant([rank == 0, rank == 1])).numpy().tolist() == [False, True]
        np.testing.assert_allclose(run(x), [2, 4])
    slices = tf.IndexedSlices(tf.ones((1, 2)), tf.constant([rank]), tf.constant([4, 2]))
    np.testing.assert_allclose(tf.convert_to_tensor(hvd.allreduce(slices)), [[0.5] * 2] * 2 + [[0] * 2] * 2)
    variables = [tf.Variable([1.0 + rank]), tf.Variable(rank), tf.Variable([rank == 0])]
    for run in in_both_modes(lambda: hvd.broadcast_variables(variables, root_rank=1)):
        run()
        assert [v.numpy().tolist() for v in variables] == [[2.0], 1, [False]]
    assert hvd.broadcast_object({"rank": rank}, root_rank=1) == {"rank": 1}
    assert hvd.allgather_object("x" * rank) == ["x" * other for other in range(size)]
    hvd.barrier()


def exchanges():
    import deft.tensorflow as hvd

    rank = hvd.rank()
    x = tf.constant([[1.0], [2.0], [3.0], [4.0]]) * 10.0**rank
    for run in in_both_modes(hvd.alltoall):
        np.testing.assert_allclose(run(x)[:, 0], [[1, 2, 10, 20], [3, 4, 30, 40]][rank])
    for run in in_both_modes(lambda x: hvd.alltoall(x, splits=[3 - 2 * rank, 1 + 2 * rank], name="uneven")):
        received, counts = run(x)
        np.testing.assert_allclose(received[:, 0], [[1, 2, 3, 10], [4, 20, 30, 40]][rank])
        assert counts.numpy().tolist() == [[3, 1], [1, 3]][rank]
    for run in in_both_modes(lambda x: hvd.reducescatter(x, op=hvd.Sum)):
        np.testing.assert_allclose(run(x)[:, 0], [[11, 22], [33, 44]][rank])
        assert run(x[:3]).shape == ([2, 1] if rank == 0 else [1, 1])
    weights = tf.constant([[1.0], [2.0]]) * (1 + rank)
    for call, expected in (
        (lambda x: hvd.alltoall(x)[:2] * weights + hvd.alltoall(x)[2:] * weights, [1, 2, 2, 4]),
        (lambda x: hvd.reducescatter(x) * weights, [0.5, 1, 1, 2]),
    ):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(call(x))
        np.testing.assert_allclose(tape.gradient(loss, x)[:, 0], expected)
    for run in in_both_modes(lambda x: hvd.alltoall(x, splits=[4 - rank, rank], name="wrong")):
        with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match=r"rank 1 splits 3 rows into \[3, 1\]"):
            run(x[: 4 - rank])


def gradients():
    """Horovod's: of an allreduce reduced as it was; of allgather and broadcast averaged."""
    import deft.tensorflow as hvd

    rank = hvd.rank()
    weights = tf.constant([1.0, 2.0]) * (1 + rank)  # the sum over ranks is [3, 6]
    calls = [
        (lambda x: hvd.allreduce(x) * weights, [1.5, 3.0]),
        (lambda x: hvd.allreduce(x, op=hvd.Sum, name="named") * weights, [3.0, 6.0]),
        (lambda x: hvd.grouped_allreduce([x, x], op=hvd.Sum)[1] * weights, [3.0, 6.0]),
        (lambda x: hvd.allgather(x) * tf.range(4.0), [2.0 * rank, 2.0 * rank + 1]),
        (lambda x: hvd.broadcast(x, 1) * weights, [1.5, 3.0] if rank == 1 else [0.0, 0.0]),
    ]
    for call, expected in calls:

        def gradient(x, call=call):
            with tf.GradientTape() as tape:
                tape.watch(x)
                loss = tf.reduce_sum(call(x))
            return tape.gradient(loss, x)

        for run in in_both_modes(gradient):
            np.testing.assert_allclose(run(tf.constant([1.0, 1.0])), expected)


def refusals():
    """A call that the ranks make differently is an error of that call on all ranks, and the job goes on."""
    import deft.tensorflow as hvd

    rank = hvd.rank()
    for run in in_both_modes(lambda x: hvd.allreduce(x, name="wrong")):
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"allreduce of 2 float32 .* 3 float32 .* on rank 1"):
            run(tf.ones(2 + rank))
    for run in in_both_modes(lambda x: hvd.allgather(x, name="wrong")):
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"shape \[2\].* rank 0.*shape \[3\].* rank 1"):
            run(tf.ones((1, 2 + rank)))
    for run in in_both_modes(lambda x: hvd.broadcast(x, 0, name="wrong")):
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"shape \[2, 3\].*shape \[3, 2\]"):
            run(tf.ones((2 + rank, 3 - rank)))
    for run in in_both_modes(lambda x: hvd.allreduce(x, name="wrong", op=hvd.Sum if rank else hvd.Average)):
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"Average.*Sum"):
            run(tf.ones(2))
    for call, text in (
        (lambda: hvd.allreduce(tf.ones(1), op=hvd.Adasum), "Adasum is not offered"),
        (lambda: hvd.allreduce(tf.ones(1), op=hvd.Sum, average=True), "either op or average"),
        (lambda: hvd.allreduce(tf.constant(["text"])), "cannot be reduced"),
        (lambda: hvd.broadcast(tf.ones(1), root_rank=7), "ranks 0 to 1"),
        (lambda: hvd.broadcast(tf.constant(["text"]), root_rank=0), "holds strings"),
        (lambda: hvd.broadcast(tf.constant("text"), root_rank=0), "holds strings"),
        (lambda: hvd.allgather(tf.constant(["text"])), "holds strings"),
    ):
        with pytest.raises(ValueError, match=text):
            call()
    np.testing.assert_allclose(hvd.allreduce(tf.ones(2)), 1)


def everything():
    values()
    exchanges()
    gradients()
    refusals()
    return True


def test_collectives(start):
    assert all(start(policy="fifo").run(everything))


def without_init():
    import deft.tensorflow as hvd

    hvd.shutdown()
    for call in (hvd.rank, lambda: hvd.allreduce(tf.ones(1))):
        with pytest.raises(ValueError, match=r"call init\(\) first"):
            call()
    assert not hvd.is_initialized()
    return True


def test_without_init(start):
    assert all(start(policy="fifo").run(without_init, workers=2))
