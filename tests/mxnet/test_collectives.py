"""Collectives: values, names, objects, the key-value store's broadcast, and what is refused."""

import numpy as np
import pytest

REDUCIBLE = ["float32", "float64", "float16", "int32", "int64", "uint8", "int8"]


def values():
    import deft.mxnet as hvd
    import mxnet as mx

    rank = hvd.rank()
    base = np.arange(6).reshape(2, 3)
    for dtype in REDUCIBLE:
        x = mx.nd.array(base + rank, dtype=dtype)
        for op, wanted in ((hvd.Sum, 2 * base + 1), (hvd.Min, base), (hvd.Max, base + 1)):
            result = hvd.allreduce(x, op=op)
            assert (result.dtype, result.shape) == (x.dtype, x.shape)
            np.testing.assert_array_equal(result.asnumpy(), wanted)
        halves = (base * 2 + 1) / 2
        np.testing.assert_array_equal(hvd.allreduce(x).asnumpy(), halves if "float" in dtype else np.trunc(halves))
        np.testing.assert_array_equal(hvd.broadcast(x, root_rank=1).asnumpy(), base + 1)
    large = mx.nd.array(np.array([2**53 + 1, -(2**53) - 1]), dtype="int64")
    assert hvd.allreduce(large).asnumpy().tolist() == [2**53 + 1, -(2**53) - 1], "float64 has fewer bits"
    x = mx.nd.array([1.0, 2.0]) * (1 + rank)
    results = hvd.grouped_allreduce([x, 2 * x], prescale_factor=2.0)
    np.testing.assert_allclose([result.asnumpy() for result in results], [[3, 6], [6, 12]])
    big = mx.nd.full(3, 50000.0, dtype="float16")
    assert hvd.allreduce(big).asnumpy().tolist() == [big.asnumpy()[0]] * 3  # the sum would not fit
    halves = mx.nd.array(np.linspace(-50.0, 50.0, 101), dtype="float16")
    for op, count in ((hvd.Max, 1), (hvd.Sum, 2)):
        scaled = (halves.asnumpy().astype(np.float32) * np.float32(0.19151945)).astype(np.float16)
        found = hvd.allreduce(halves, op=op, prescale_factor=0.19151945)  # the factor itself is not rounded
        np.testing.assert_array_equal(found.asnumpy(), scaled * count)
    y = x.copy()
    assert hvd.allreduce_(y, average=False) is y and y.asnumpy().tolist() == [3, 6]
    assert hvd.broadcast_(y, 1, name="y") is y and y.asnumpy().tolist() == [3, 6]
    flags = mx.nd.array([rank == 0, rank == 1], dtype="bool")
    assert hvd.broadcast(flags, 1).asnumpy().tolist() == [False, True]
    hvd.barrier()


def rows():
    import deft.mxnet as hvd
    import mxnet as mx

    rank, size = hvd.rank(), hvd.size()
    gathered = hvd.allgather(mx.nd.full((rank + 1, 2), rank), name="rows")
    np.testing.assert_allclose(gathered.asnumpy(), [[0, 0], [1, 1], [1, 1]])
    x = mx.nd.array([[1.0], [2.0], [3.0], [4.0]]) * 10.0**rank
    np.testing.assert_allclose(hvd.alltoall(x).asnumpy()[:, 0], [[1, 2, 10, 20], [3, 4, 30, 40]][rank])
    received, counts = hvd.alltoall(x, splits=[3 - 2 * rank, 1 + 2 * rank], name="uneven")
    np.testing.assert_allclose(received.asnumpy()[:, 0], [[1, 2, 3, 10], [4, 20, 30, 40]][rank])
    assert counts.asnumpy().tolist() == [[3, 1], [1, 3]][rank]
    np.testing.assert_allclose(hvd.reducescatter(x, op=hvd.Sum).asnumpy()[:, 0], [[11, 22], [33, 44]][rank])
    assert hvd.reducescatter(x[:3]).shape == ((2, 1) if rank == 0 else (1, 1))
    assert hvd.broadcast_object({"rank": rank}, root_rank=1) == {"rank": 1}
    assert hvd.allgather_object("x" * rank) == ["x" * other for other in range(size)]


def parameters():
    import deft.mxnet as hvd
    import mxnet as mx

    rank = hvd.rank()
    hvd.broadcast_parameters({"a": mx.nd.full(2, rank)}, prefix="plain.")
    net = mx.gluon.nn.Dense(2)
    net.initialize(mx.init.One())
    net.collect_params()["dense0_bias"].set_data(mx.nd.full(2, rank))
    hvd.broadcast_parameters(net.collect_params(), root_rank=1)
    net(mx.nd.ones((1, 3)))
    assert net.bias.data().asnumpy().tolist() == [1.0, 1.0]
    with pytest.raises(ValueError, match="takes a dict"):
        hvd.broadcast_parameters([net.weight])
    store = mx.kv.create("deft")
    assert type(mx.kv.create("dist_deft")) is type(store)
    outs = [mx.nd.zeros(3), mx.nd.zeros(3)]
    store.broadcast("w", mx.nd.full(3, 7 + rank), outs)
    assert [out.asnumpy().tolist() for out in outs] == [[7.0] * 3] * 2
    store.pushpull(["w", "v"], [[mx.nd.ones(3), mx.nd.ones(3)], mx.nd.ones(1)], [outs, [outs[0][:1]]])
    assert outs[1].asnumpy().tolist() == [4.0] * 3 and outs[0].asnumpy().tolist() == [2.0, 4.0, 4.0]
    assert (store.rank, store.num_workers) == (rank, 2) and not store.is_capable("optimizer")


def deferred_values_come_from_the_root():
    import deft.mxnet as hvd
    import mxnet as mx

    net = mx.gluon.nn.Dense(2)
    net.initialize(mx.init.Constant(1.0 + hvd.rank()))
    hvd.broadcast_parameters(net.collect_params(), root_rank=1, prefix="deferred.")
    assert net(mx.nd.ones((1, 3))).asnumpy().tolist() == [[6.0, 6.0]]
    if hvd.rank() == 0:  # moving a parameter is no collective
        net.collect_params().reset_ctx(mx.cpu(1))
        assert net.weight.data(mx.cpu(1)).asnumpy().tolist() == [[2.0] * 3] * 2


def no_gradients_flow():
    import deft.mxnet as hvd
    import mxnet as mx

    for call in (
        lambda x: hvd.allreduce(x, op=hvd.Sum, postscale_factor=0.5),
        lambda x: hvd.allreduce(x, op=hvd.Product),
        lambda x: hvd.broadcast(x, 0),
        lambda x: hvd.reducescatter(x, op=hvd.Sum),
    ):
        x = mx.nd.array([1.0, 2.0])
        x.attach_grad()
        with mx.autograd.record():
            loss = (2 * call(x)).sum() + (3 * x).sum()
        loss.backward()
        assert x.grad.asnumpy().tolist() == [3.0, 3.0]


def refusals():
    """A call that the ranks make differently is an error of that call on all ranks, and the job goes on."""
    import deft.mxnet as hvd
    import mxnet as mx

    rank, error = hvd.rank(), mx.base.MXNetError
    for call, text in (
        (
            lambda: hvd.allreduce(mx.nd.ones(2 + rank), name="wrong"),
            r"allreduce of 2 float32 .* 3 float32 .* on rank 1",
        ),
        (lambda: hvd.allreduce_(mx.nd.ones(2), name="wrong", op=hvd.Sum if rank else hvd.Average), r"Average.*Sum"),
        (lambda: hvd.broadcast(mx.nd.ones((2 + rank, 3 - rank)), 0, name="wrong"), r"shape \[2, 3\].*shape \[3, 2\]"),
    ):
        with pytest.raises(error, match=text):
            call().wait_to_read()
    with pytest.raises(error, match=r"shape \[2\].* rank 0.*shape \[3\].* rank 1"):
        hvd.allgather(mx.nd.ones((1, 2 + rank)), name="wrong")
    for _ in range(2):  # all of a group are waited for, so their names are free
        with pytest.raises(error, match=r"allgather\.group\.0of2") as caught:
            hvd.grouped_allgather([mx.nd.ones((1, 2 + rank)), mx.nd.ones((1, 2))], name="group")
    assert caught.value is not None
    for kind in (ValueError, hvd.HorovodInternalError):  # it is both
        with pytest.raises(kind, match=r"rank 1 splits 3 rows into \[3, 1\]"):
            hvd.alltoall(mx.nd.ones((4 - rank, 1)), splits=[4 - rank, rank], name="wrong")
    with pytest.raises(RuntimeError, match=r"rank 0 splits 3 rows into \[1, 1\]"):
        hvd.alltoall(mx.nd.ones(3))
    with pytest.raises(ValueError, match="must be integers"):
        hvd.alltoall(mx.nd.ones(2), splits=mx.nd.ones(2))
    param = mx.gluon.Parameter("weight", shape=(2,))
    param.initialize()
    trainer = hvd.DistributedTrainer([param], "sgd", gradient_predivide_factor=1.0 + rank)
    with mx.autograd.record():
        loss = param.data().sum()
    loss.backward()
    with pytest.raises(error, match=r"gradients times 1, .* on rank 0 .*gradients times 0\.5, .* on rank 1"):
        trainer.step(1)
    for call, text in (
        (lambda: hvd.allreduce(mx.nd.ones(1), op="sum"), "give one of Average"),
        (lambda: hvd.allreduce(mx.nd.ones(1), op=hvd.Sum, average=True), "either op or average"),
        (lambda: hvd.broadcast(mx.nd.ones(1), root_rank=7), "ranks 0 to 1"),
        (lambda: hvd.reducescatter(mx.nd.array(3.0)), "one dimension or more"),
    ):
        with pytest.raises(ValueError, match=text):
            call()
    last = hvd.allreduce(mx.nd.ones(2))
    hvd.shutdown()
    np.testing.assert_allclose(last.asnumpy(), 1)
    with pytest.raises(ValueError, match=r"call init\(\) first"):
        hvd.allreduce(mx.nd.ones(1))


def names_of_all_frameworks():
    import deft.mxnet as hvd
    from deft import horovod

    assert all(getattr(hvd, name) is getattr(horovod, name) for name in horovod.__all__)
    assert all(hasattr(hvd, name) for name in hvd.__all__) and set(horovod.__all__) <= set(hvd.__all__)


def everything():
    names_of_all_frameworks()
    values()
    rows()
    parameters()
    deferred_values_come_from_the_root()
    no_gradients_flow()
    refusals()
    return True


def test_collectives(start):
    assert all(start(policy="fifo").run(everything))
