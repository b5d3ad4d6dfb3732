"""Arrays of mx.np: networks after npx.set_np(), and collectives."""

import numpy as np
import pytest
from mxnet_jobs import assert_ways_agree, small_net
from training_checks import batches


def collectives_keep_the_kind_of_array():
    import deft.mxnet as hvd
    import mxnet as mx

    rank, size = hvd.rank(), hvd.size()
    for dtype in ("float32", "float16", "int64", "int8"):
        x = mx.np.array([[1, 2], [3, 4]], dtype=dtype) + rank
        everything = np.stack([np.array([[1, 2], [3, 4]]) + other for other in range(size)])
        for result, expected in (
            (hvd.allreduce(x, op=hvd.Sum), everything.sum(0)),
            (hvd.allreduce(x, op=hvd.Product), everything.prod(0)),
            (hvd.allreduce_(x.copy(), op=hvd.Max, prescale_factor=2.0), 2 * everything.max(0)),
            (hvd.broadcast(x, 1), everything[1]),
            (hvd.broadcast_(x.copy(), 1), everything[1]),
            (hvd.allgather(x), everything.reshape(-1, 2)),
            (hvd.alltoall(x), everything[:, rank]),
            (hvd.reducescatter(x, op=hvd.Sum), everything.sum(0)[rank : rank + 1]),
        ):
            assert type(result) is mx.np.ndarray and result.dtype == x.dtype, dtype
            np.testing.assert_array_equal(result.asnumpy(), expected)
    received, counts = hvd.alltoall(mx.np.arange(3), splits=[1 + rank, 2 - rank])
    assert type(received) is type(counts) is mx.np.ndarray
    assert counts.tolist() == [[1, 2], [2, 1]][rank]
    with pytest.raises(mx.base.MXNetError, match=r"shape \[2\].*shape \[3\].* on rank 1"):
        hvd.allreduce(mx.np.ones(2 + rank), name="unlike").asnumpy()


def scalars():
    import deft.mxnet as hvd
    import mxnet as mx

    x = mx.np.array(1.5) * (1 + hvd.rank())
    total = hvd.allreduce(x, op=hvd.Sum)
    assert total.shape == () and total.item() == 4.5
    assert hvd.allreduce_(x, op=hvd.Product) is x and x.item() == 4.5
    assert hvd.broadcast(mx.np.array(hvd.rank()), 1).item() == 1
    assert hvd.allgather(mx.np.array(hvd.rank())).tolist() == [0, 1]


def small_net_of_numpy(hybrid):
    """A network whose parameters are arrays of mx.np."""
    net = small_net(hybrid)
    assert type(next(iter(net.collect_params().values())).data()).__module__ == "mxnet.numpy"
    return net


def batches_of_numpy():
    return batches(6)


def trainings():
    for hybrid in (False, True):
        assert_ways_agree(lambda hybrid=hybrid: small_net_of_numpy(hybrid), batches_of_numpy)


def with_arrays_of_numpy():
    import mxnet as mx

    mx.npx.set_np()
    try:
        collectives_keep_the_kind_of_array()
        scalars()
        trainings()
    finally:
        mx.npx.reset_np()
    return True


def test_arrays_of_numpy(start):
    assert all(start(policy="bytescheduler").run(with_arrays_of_numpy))
