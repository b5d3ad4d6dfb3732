"""Collectives, in eager mode and in graphs: values, gradients, names, objects, and what is refused."""

import numpy as np
import pytest
import tensorflow as tf

MISMATCH = [tf.errors.FailedPreconditionError, tf.errors.InvalidArgumentError]  # in eager mode, and in a graph
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
    for dtype in (tf.float16, tf.bfloat16):
        halves = tf.cast(tf.linspace(-50.0, 50.0, 101), dtype)
        scaled = tf.cast(tf.cast(halves, tf.float32) * 0.19151945, dtype)  # the factor itself is not rounded
        found = hvd.allreduce(halves, op=hvd.Max, prescale_factor=0.19151945)
        np.testing.assert_array_equal(tf.cast(found, tf.float32), tf.cast(scaled, tf.float32))
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
    for run in in_both_modes(lambda x: hvd.grouped_allreduce([x, slices, x], op=hvd.Sum, name="mixed")):
        first, sparse, last = run(x)
        assert isinstance(sparse, tf.IndexedSlices)
        np.testing.assert_allclose(tf.convert_to_tensor(sparse), [[1.0] * 2] * 2 + [[0] * 2] * 2)
        np.testing.assert_allclose([first, last], [[3, 6]] * 2)
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
    unknown = tf.function(hvd.alltoall, input_signature=[tf.TensorSpec(None, tf.float32)])  # a tensor of any rank
    np.testing.assert_allclose(unknown(x)[:, 0], [[1, 2, 10, 20], [3, 4, 30, 40]][rank])
    weights = tf.constant([[1.0], [2.0]]) * (1 + rank)
    for call, expected in (
        (lambda x: hvd.alltoall(x)[:2] * weights + hvd.alltoall(x)[2:] * weights, [1, 2, 2, 4]),
        (lambda x: hvd.reducescatter(x) * weights, [1, 2, 2, 4]),
        (lambda x: hvd.reducescatter(x, op=hvd.Sum, prescale_factor=0.5) * weights, [1, 2, 2, 4]),
        (lambda x: hvd.grouped_reducescatter([x], op=hvd.Sum, name="group")[0] * weights, [2, 4, 4, 8]),
    ):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(call(x))
        np.testing.assert_allclose(tape.gradient(loss, x)[:, 0], expected)
    for run in in_both_modes(lambda x: hvd.alltoall(x, splits=[4 - rank, rank], name="wrong")):
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"rank 1 splits 3 rows into \[3, 1\]"):
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
    for run, error in zip(in_both_modes(lambda x: hvd.allreduce(x, name="wrong")), MISMATCH):
        with pytest.raises(error, match=r"allreduce of 2 float32 .* 3 float32 .* on rank 1"):
            run(tf.ones(2 + rank))
    for run, error in zip(in_both_modes(lambda x: hvd.allgather(x, name="wrong")), MISMATCH):
        with pytest.raises(error, match=r"shape \[2\].* rank 0.*shape \[3\].* rank 1"):
            run(tf.ones((1, 2 + rank)))
    for run, error in zip(in_both_modes(lambda x: hvd.broadcast(x, 0, name="wrong")), MISMATCH):
        with pytest.raises(error, match=r"shape \[2, 3\].*shape \[3, 2\]"):
            run(tf.ones((2 + rank, 3 - rank)))
    for run, error in zip(
        in_both_modes(lambda x: hvd.allreduce(x, name="wrong", op=hvd.Sum if rank else hvd.Average)), MISMATCH
    ):
        with pytest.raises(error, match=r"Average.*Sum"):
            run(tf.ones(2))
    for call, text in (
        (lambda: hvd.allreduce(tf.ones(1, tf.int32), op=hvd.Adasum), "floating-point numbers, not of int32"),
        (lambda: hvd.allreduce(tf.ones(1), op=hvd.Sum, average=True), "either op or average"),
        (lambda: hvd.allreduce(tf.constant(["text"])), "cannot be reduced"),
        (lambda: hvd.broadcast(tf.ones(1), root_rank=7), "ranks 0 to 1"),
        (lambda: hvd.broadcast(tf.constant(["text"]), root_rank=0), "holds strings"),
        (lambda: hvd.broadcast(tf.constant("text"), root_rank=0), "holds strings"),
        (lambda: hvd.allgather(tf.constant(["text"])), "holds strings"),
        (lambda: hvd.alltoall(tf.ones(2), splits=[1.0, 1.0]), "must be integers"),
    ):
        with pytest.raises(ValueError, match=text):
            call()
    refusals_of_sparse_ones_and_of_tapes()
    slices = tf.IndexedSlices(tf.ones((1, 2)), tf.constant([rank]), tf.constant([4, 2]))
    for options in ({"op": hvd.Max}, {"prescale_factor": 2.0}, {"postscale_factor": 2.0}):
        with pytest.raises(NotImplementedError, match=r"tf\.IndexedSlices"):
            hvd.allreduce(slices, **options)
        with pytest.raises(NotImplementedError, match=r"tf\.IndexedSlices"):
            hvd.grouped_allreduce([slices], **options)
    with pytest.raises(ValueError, match=r"XLA cannot compile .* say jit_compile=False"):
        tf.function(hvd.allreduce, jit_compile=True)(tf.ones(2))
    with pytest.raises(RuntimeError, match="call broadcast_variables"):
        hvd.broadcast_global_variables(0)
    np.testing.assert_allclose(hvd.allreduce(tf.ones(2)), 1)


def refusals_of_sparse_ones_and_of_tapes():
    import deft.tensorflow as hvd

    rank = hvd.rank()
    op = hvd.Sum if rank else hvd.Average

    def sparse(rows, op):
        return hvd.allreduce(
            tf.IndexedSlices(tf.ones((1, 2)), tf.constant([0]), tf.stack([rows, 2])), name="wrong", op=op
        )

    def tape(table, find):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(find(table))
        return hvd.DistributedGradientTape(tape, op=op).gradient(loss, table)

    dense, table = tf.Variable(tf.ones((3, 1))), tf.Variable(tf.ones((3, 1)))
    for call, argument, text in (
        (lambda rows: sparse(rows, op), 4, r"Average of tf\.IndexedSlices \[4, 2\]\) on rank 0.* Sum of tf\.Indexed"),
        (
            lambda rows: sparse(rows, hvd.Sum),
            4 + rank,
            r"IndexedSlices \[4, 2\]\) on rank 0.*Slices \[5, 2\]\) on rank 1",
        ),
        (lambda one: tape(dense, lambda x: x * one), 1.0, "gradients times 0.5, sums times 1.* times 1, .* on rank 1"),
        (lambda _: tape(table, lambda x: tf.gather(x, [0])), 0, r"Average of gradients of \[3, 1\].* Sum of gradients"),
    ):
        for run, error in zip(in_both_modes(call), MISMATCH):
            with pytest.raises(error, match=text):
                run(tf.constant(argument))


def numbers_and_variables():
    """What a graph asks for when it runs, variables in place, and compressors."""
    import deft.tensorflow as hvd
    from deft import compression

    rank = hvd.rank()
    alone = hvd.add_process_set([1])
    for run, expected in (
        (hvd.rank_op, rank),
        (hvd.local_rank_op, 0),
        (hvd.local_size_op, 1),
        (hvd.size_op, 2),
        (lambda: hvd.size_op(alone.process_set_id), 1),
        (lambda: hvd.process_set_included_op(alone.process_set_id), rank),
        (lambda: hvd.process_set_included_op(99), -3),
    ):
        for call in in_both_modes(run):
            found = call()
            assert found.dtype == tf.int32 and int(found) == expected
    hvd.remove_process_set(alone)
    variables = [tf.Variable([1.0 + rank]), tf.Variable(rank)]
    for run in in_both_modes(lambda: hvd.broadcast_(variables, 1, name="state")):
        assert [value.numpy().tolist() for value in run()] == [[2.0], 1]
        assert [value.numpy().tolist() for value in variables] == [[2.0], 1]
    assert hvd.broadcast_object_fn(root_rank=1)({"rank": rank}) == {"rank": 1}
    assert issubclass(hvd.Compression.fp16, compression.FP16Compressor), "one for all frameworks"
    for dtype in (tf.float32, tf.float64, tf.bfloat16, tf.int32, tf.bool):
        tensor = tf.ones(3, dtype)
        wire, context = hvd.Compression.fp16.compress(tensor)
        assert wire.dtype == (tf.float16 if dtype in (tf.float32, tf.float64) else dtype)
        assert hvd.Compression.fp16.decompress(wire, context).dtype == dtype


def sync_batch_norm():
    """Outputs, gradients and moving statistics are those of one process that has the whole batch."""
    import deft.tensorflow as hvd
    import keras

    rank, rows = hvd.rank(), [2, 3]  # ranks may have different batches
    here = slice(sum(rows[:rank]), sum(rows[: rank + 1]))
    for axis, shape in ((-1, (4, 3)), (1, (3, 2, 2))):
        mine, whole = hvd.SyncBatchNormalization(axis=axis), keras.layers.BatchNormalization(axis=axis)
        rng = np.random.default_rng(len(shape))
        for _ in range(2):
            x = tf.constant(3 + 2 * rng.standard_normal((sum(rows), *shape)), tf.float32)
            factors = tf.constant(rng.standard_normal(x.shape), tf.float32)

            def normalized(layer, x, factors):
                with tf.GradientTape() as tape:
                    tape.watch(x)
                    output = layer(x, training=True)
                    loss = tf.reduce_sum(output * factors)
                return output, tape.gradient(loss, x)

            for run in in_both_modes(normalized):
                expected = normalized(whole, x, factors)
                for found, wanted in zip(run(mine, x[here], factors[here]), expected):
                    np.testing.assert_allclose(found, wanted[here], atol=1e-4)
        np.testing.assert_allclose(mine.moving_mean, whole.moving_mean, atol=1e-4)
        np.testing.assert_allclose(mine.moving_variance, whole.moving_variance, atol=1e-4)
        np.testing.assert_allclose(mine(x), whole(x), atol=1e-4)
    masked, plain = hvd.SyncBatchNormalization(), keras.layers.BatchNormalization()
    x = tf.constant(np.arange(12.0).reshape(2, 3, 2), tf.float32)
    mask = tf.constant([[True, rank == 0, False], [True, True, False]])
    result = masked(x, training=True, mask=mask)
    everything = tf.concat([x, x], 0), tf.constant([[True, True, False], [True, True, False]] * 2)
    every_mask = tf.tensor_scatter_nd_update(everything[1], [[2, 1]], [False])
    np.testing.assert_allclose(result, plain(everything[0], training=True, mask=every_mask)[:2], atol=1e-4)
    copied = keras.layers.deserialize(keras.layers.serialize(mine))
    assert type(copied) is hvd.SyncBatchNormalization and copied.axis == 1
    with pytest.raises(ValueError, match="fused=True"):
        hvd.SyncBatchNormalization(fused=True)


def everything():
    values()
    numbers_and_variables()
    sync_batch_norm()
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
