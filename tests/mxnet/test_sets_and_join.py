"""Process sets, Product and Adasum; join()."""

import pickle

import numpy as np
import pytest
from mxnet_jobs import WAYS, backward, make_step, small_net, weights_of
from training_checks import assert_close, assert_same_everywhere, batches


def collectives():
    import deft.mxnet as hvd
    import mxnet as mx

    rank = hvd.rank()
    both, alone = hvd.add_process_set([0, 2]), hvd.add_process_set([1])
    mine = both if both.included() else alone
    ranks = mine.ranks
    total, mean = float(sum(ranks)), sum(ranks) / len(ranks)
    one = {"process_set": mine}
    x = mx.nd.full(2, rank)
    shares = mx.nd.full(len(ranks), rank)
    for result, expected in (
        (hvd.allreduce(x, **one), [mean] * 2),
        (hvd.allreduce_(x.copy(), **one), [mean] * 2),
        (hvd.grouped_allreduce([x], op=hvd.Sum, **one)[0], [total] * 2),
        (hvd.grouped_allreduce_([x.copy()], op=hvd.Sum, **one)[0], [total] * 2),
        (hvd.allreduce(x + 1, op=hvd.Product, **one), [np.prod([r + 1.0 for r in ranks])] * 2),
        (hvd.allreduce(x + 1, op=hvd.Adasum, **one), [2.0] * 2),
        (hvd.allgather(x[:1], **one), ranks),
        (hvd.grouped_allgather([x[:1]], **one)[0], ranks),
        (hvd.broadcast(x, ranks[-1], **one), [float(ranks[-1])] * 2),
        (hvd.broadcast_(x.copy(), ranks[-1], **one), [float(ranks[-1])] * 2),
        (hvd.alltoall(shares, **one), ranks),
        (hvd.reducescatter(shares, op=hvd.Sum, **one), [total]),
        (hvd.grouped_reducescatter([shares], op=hvd.Sum, **one)[0], [total]),
    ):
        np.testing.assert_allclose(result.asnumpy(), expected)
    assert hvd.broadcast_object(rank, ranks[-1], **one) == ranks[-1]
    assert hvd.allgather_object(rank, **one) == ranks
    hvd.barrier(process_set=mine)
    with pytest.raises(NotImplementedError, match="power of two"):
        hvd.allreduce(x, op=hvd.Adasum)
    with pytest.raises(ValueError, match="floating-point"):
        hvd.allreduce(x.astype("int32"), op=hvd.Adasum, **one)
    return both


def products_and_adasum():
    """As numpy computes them, of every dtype; in place, with factors, and of values that the ranks make differently."""
    import deft.mxnet as hvd
    import mxnet as mx

    own, other = mx.nd.array([3.0, 4.0, 0.0]), mx.nd.array([3.0, 0.0, 1.0])
    mine = own if hvd.rank() == 0 else other
    if hvd.rank() == 2:
        mine = mx.nd.ones(3)
    for dtype in ("float32", "float64", "float16", "int32", "int64"):
        product = hvd.allreduce(mine.astype(dtype), op=hvd.Product)
        assert product.dtype == np.dtype(dtype) and product.asnumpy().tolist() == [9.0, 0.0, 0.0]
    assert hvd.allreduce(mine, op=hvd.Product, prescale_factor=2.0, postscale_factor=0.5).asnumpy()[0] == 36.0
    pair = hvd.add_process_set([0, 1])
    if pair.included():
        a, b = own.asnumpy(), other.asnumpy()
        both = float(a @ b)
        expected = a * (1 - both / (2 * (a @ a))) + b * (1 - both / (2 * (b @ b)))
        for dtype, tolerance in (("float32", 1e-6), ("float16", 2e-3)):
            result = hvd.allreduce(mine.astype(dtype), op=hvd.Adasum, process_set=pair)
            np.testing.assert_allclose(result.asnumpy(), expected, rtol=tolerance)
    hvd.remove_process_set(pair)


def training(process_set, way):
    """Ranks 0 and 2 train together, rank 1 alone: as one process does with the batches of the set's ranks."""
    import deft.mxnet as hvd

    net, expected = small_net(seed=3 + hvd.rank()), small_net(seed=5 if process_set.included() else 4)
    step, reference = make_step(way, net, process_set=process_set), make_step("", expected)
    ranks = process_set.ranks if process_set.included() else [hvd.rank()]
    if process_set.included():
        hvd.broadcast_parameters(net.collect_params(), ranks[-1], prefix=way, process_set=process_set)
    for x, y in batches(4, rows=9):
        backward(net, x[hvd.rank() :: 3], y[hvd.rank() :: 3])
        step(3)
        backward(expected, *(np.concatenate([array[r::3] for r in ranks]) for array in (x, y)))
        reference(3 * len(ranks))
    assert_close(weights_of(net), weights_of(expected))


def everything():
    import deft.mxnet as hvd
    import mxnet as mx

    both = collectives()
    products_and_adasum()
    training(both, "trainer")
    training(both, "optimizer")
    training(hvd.global_process_set, "trainer")
    last = hvd.allreduce(mx.nd.ones(1), op=hvd.Sum, process_set=both) if both.included() else mx.nd.full(1, 2.0)
    optimizer = hvd.DistributedOptimizer(mx.optimizer.create("sgd"), process_set=both)
    written = pickle.dumps(optimizer)
    assert pickle.loads(written)._process_set is both
    assert hvd.remove_process_set(both)
    with pytest.raises(ValueError, match=r"no process set with the ranks \[0, 2\] is in use"):
        pickle.loads(written)
    assert last.asscalar() == 2.0
    hvd.shutdown()
    last = hvd.ProcessSet([1, 2])
    hvd.init(process_sets=[last])
    if last.included():
        assert hvd.allreduce(mx.nd.ones(1), op=hvd.Sum, process_set=last).asscalar() == 2.0
    else:
        with pytest.raises(ValueError, match="rank 0 is not in"):
            hvd.allreduce(mx.nd.ones(1), process_set=last)
    return str(last)


def test_process_sets(start):
    results = start(1, policy="fifo").run(everything, workers=3)
    assert results == ["ProcessSet(process_set_id=1, ranks=[1, 2], mpi_comm=None)"] * 3


def uneven(way, first):
    """Rank `first` has no batch, then 1 an epoch, the other has 4; a rank that has joined counts as zero."""
    import deft.mxnet as hvd
    import mxnet as mx

    net, expected = small_net(), small_net()
    plain = {"learning_rate": 0.05}  # a momentum would differ on the rank that misses updates
    step, reference = make_step(way, net, plain), make_step("", expected, plain)
    counts = [4, 4]
    for few in (1, 1) if way == "kvstore" else (0, 1, 1):  # in its first step gluon's Trainer has the store broadcast
        counts[first] = few
        mine, present = counts[hvd.rank()], []
        for x, y in batches(mine):
            backward(net, x[hvd.rank() :: 2], y[hvd.rank() :: 2])
            step(4)
            present.append(hvd.allreduce(mx.nd.ones(1), op=hvd.Sum, name="ranks").asscalar())
        assert present == [2.0 if place < few else 1.0 for place in range(mine)]
        assert hvd.join() == 1 - first, "the last one"
        hvd.broadcast_parameters(net.collect_params(), root_rank=1 - first)
        for place, (x, y) in enumerate(batches(4)):
            rows = [r for r in range(2) if place < counts[r]]
            backward(expected, *(np.concatenate([array[r::2] for r in rows]) for array in (x, y)))
            reference(8)
    assert_close(weights_of(net), weights_of(expected))
    assert_same_everywhere(weights_of(net))


def joins():
    import deft.mxnet as hvd
    import mxnet as mx

    for number, way in enumerate(WAYS):
        uneven(way, number % 2)
    if hvd.rank() == 1:
        with pytest.raises(mx.base.MXNetError, match="rank 0 has joined"):
            hvd.allgather(mx.nd.ones(2))
        with pytest.raises(mx.base.MXNetError, match="rank 0 has joined"):
            hvd.allreduce(mx.nd.ones(2), op=hvd.Max).wait_to_read()
    return hvd.join()


def test_join(start):
    assert start(policy="fifo").run(joins) == [1, 1]


def steps_that_end_midway():
    """As by an exception between two updates: the ranks join, and the next step is as any other."""
    import deft.mxnet as hvd
    import mxnet as mx

    optimizer = hvd.DistributedOptimizer(mx.optimizer.SGD(learning_rate=1.0))
    weights, gradient = [mx.nd.zeros(4) for _ in range(3)], mx.nd.full(4, hvd.rank() + 1)

    def update(keys):
        for key in keys:
            optimizer.update(key, weights[key], gradient.copy(), None)

    for _ in range(3):
        update(range(3))
    for keys in (([0], []), ([], [2]), ([0], [1])):  # of each rank
        update(keys[hvd.rank()])
        hvd.join()
        for weight in weights:
            weight[:] = 0
        update(range(3))
        np.testing.assert_allclose([weight.asnumpy() for weight in weights], np.full((3, 4), -1.5))
    return True


def test_ranks_join_after_steps_that_ended_midway(start):
    assert all(start(policy="fifo").run(steps_that_end_midway))
