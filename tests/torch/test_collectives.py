"""Collectives on tensors and objects, with Horovod's names and rules."""

import deft.torch as hvd
import pytest
import torch
from deft.arrays import scaled as scale_array
from deft.torch.collectives import _scale as scale_tensor


@pytest.mark.parametrize("dtype", [torch.int64, torch.int8])
def test_averages_of_integers_are_exact(dtype):
    values = torch.tensor([49, 98, -98, -50], dtype=dtype)
    for factor, expected in ((1 / 49, [1, 2, -2, -1]), (1 / 200, [0] * 4), (0.5, [24, 49, -49, -25])):
        assert scale_tensor(values.clone(), factor).tolist() == expected
        assert scale_array(values.numpy(), factor).tolist() == expected
    large = torch.tensor([2**53 + 1, -(2**53) - 1]) * 2  # float64 has fewer bits
    for half in (scale_tensor(large.clone(), 0.5), scale_array(large.numpy(), 0.5)):
        assert half.tolist() == [2**53 + 1, -(2**53) - 1]


def reductions():
    rank, size = hvd.rank(), hvd.size()
    sum_of_ranks = sum(range(size))
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        for shape in ((), (1,), (7,), (3, 5, 2), (65537,)):
            x = torch.full(shape, rank + 1.0, dtype=dtype)
            assert torch.equal(hvd.allreduce(x), torch.full(shape, sum_of_ranks / size + 1, dtype=dtype))
            assert torch.equal(hvd.allreduce(x, op=hvd.Sum), torch.full(shape, sum_of_ranks + size, dtype=dtype))
            assert torch.equal(hvd.allreduce(x, op=hvd.Min), torch.ones(shape, dtype=dtype))
            assert torch.equal(hvd.allreduce(x, op=hvd.Max), torch.full(shape, float(size), dtype=dtype))
            assert (x == rank + 1).all(), "the argument was changed"
    for dtype in (torch.int32, torch.int64, torch.uint8, torch.int8):
        x = torch.arange(5, dtype=dtype) + rank
        assert torch.equal(hvd.allreduce(x, op=hvd.Sum), torch.arange(5, dtype=dtype) * size + sum_of_ranks)
        assert torch.equal(hvd.allreduce(x, average=False), torch.arange(5, dtype=dtype) * size + sum_of_ranks)
        assert torch.equal(hvd.allreduce(x, op=hvd.Max), torch.arange(5, dtype=dtype) + size - 1)
    for large in (2**53 + 1, -(2**53) - 1):
        assert hvd.allreduce(torch.tensor([large, 7, -7])).tolist() == [large, 7, -7], "float64 has fewer bits"
    big = torch.full((3,), 60000.0, dtype=torch.float16)
    assert torch.equal(hvd.allreduce(big), big), "an average of halves must not overflow"
    return True


def ways_to_call():
    rank, size = hvd.rank(), hvd.size()
    x = torch.arange(6.0).reshape(2, 3) + rank
    mean = torch.arange(6.0).reshape(2, 3) + (size - 1) / 2
    y = x.clone()
    assert hvd.allreduce_(y, name="in place") is y and torch.equal(y, mean)
    transposed = x.clone().t()
    hvd.allreduce_(transposed)
    assert torch.equal(transposed, mean.t())
    handles = [hvd.allreduce_async(x + i, name=f"async {i}") for i in range(20)]
    for i in reversed(range(20)):
        assert torch.allclose(hvd.synchronize(handles[i]), mean + i)
        assert hvd.poll(handles[i])
    z = x.clone()
    handle = hvd.allreduce_async_(z, op=hvd.Sum)
    while not hvd.poll(handle):
        pass
    assert hvd.synchronize(handle) is z and torch.equal(z, mean * size)
    assert torch.allclose(hvd.allreduce(x, prescale_factor=0.5, postscale_factor=4.0), mean * 2)
    compressed = hvd.allreduce(x, compression=hvd.Compression.fp16)
    assert compressed.dtype == x.dtype and torch.allclose(compressed, mean, atol=1e-2)
    both = hvd.grouped_allreduce([x, x.double()], name="both")
    assert both[1].dtype == torch.float64 and torch.equal(both[0], mean) and torch.equal(both[1], mean.double())
    group = [x.clone(), x.clone() + 1]
    hvd.grouped_allreduce_(group)
    assert torch.equal(group[1], mean + 1)
    # Named operations match by name, not by order.
    names = ["a", "b", "c"] if rank % 2 else ["c", "a", "b"]
    pending = {name: hvd.allreduce_async(torch.tensor([float(ord(name))]), name=name) for name in names}
    for name, handle in pending.items():
        assert hvd.synchronize(handle).item() == ord(name)
    with pytest.raises(ValueError, match="give either op or average"):
        hvd.allreduce(x, average=True, op=hvd.Sum)
    with pytest.raises(ValueError, match="complex64"):
        hvd.allreduce(torch.zeros(2, dtype=torch.complex64))
    return True


def gathers_and_broadcasts():
    rank, size = hvd.rank(), hvd.size()
    rows = hvd.allgather(torch.full((rank, 3), float(rank)))  # rank 0 gives none
    assert rows.shape == (sum(range(size)), 3)
    assert rows[:, 0].tolist() == [float(r) for r in range(size) for _ in range(r)]
    assert hvd.allgather(torch.tensor(rank)).tolist() == list(range(size))
    assert hvd.allgather(torch.tensor([rank % 2 == 0])).tolist() == [r % 2 == 0 for r in range(size)]
    handles = [hvd.allgather_async(torch.full((rank + 1,), i), name=f"g{i}") for i in range(4)]
    while not hvd.poll(handles[3]):
        pass
    for i, handle in enumerate(handles):
        assert hvd.synchronize(handle).tolist() == [i] * sum(range(1, size + 1))
    root = size - 1
    for dtype in (torch.float32, torch.float16, torch.int64, torch.bool, torch.complex64, torch.int16):
        x = (torch.arange(11) * (rank + 1)).to(dtype)
        assert torch.equal(hvd.broadcast(x, root), (torch.arange(11) * size).to(dtype))
    y = torch.full((4, 4), float(rank)).t()
    assert hvd.broadcast_(y, 0, name="y") is y and (y == 0).all()
    assert hvd.synchronize(hvd.broadcast_async(torch.tensor([rank]), 1)).item() == 1
    assert hvd.broadcast_object({"rank": rank, "text": "x" * 10000}, root) == {"rank": root, "text": "x" * 10000}
    assert hvd.allgather_object("y" * rank) == ["y" * r for r in range(size)]
    hvd.barrier()
    with pytest.raises(ValueError, match="root_rank is 99"):
        hvd.broadcast(y, 99)
    return True


def gradients_of_collectives():
    rank, size = hvd.rank(), hvd.size()
    x = torch.ones(3, requires_grad=True)
    (hvd.allreduce(x, op=hvd.Sum) * (rank + 1)).sum().backward()
    assert x.grad.tolist() == [sum(range(1, size + 1))] * 3
    x = torch.ones(3, requires_grad=True)
    (hvd.allreduce(x) * (rank + 1)).sum().backward()
    assert x.grad.tolist() == [sum(range(1, size + 1)) / size] * 3
    x = torch.ones(rank + 1, 2, requires_grad=True)
    gathered = hvd.allgather(x)
    (gathered * torch.arange(len(gathered)).unsqueeze(1)).sum().backward()
    first = sum(range(1, rank + 1))
    assert x.grad[:, 0].tolist() == [first + i for i in range(rank + 1)], "Horovod averages here"
    x = torch.ones(2, requires_grad=True)
    hvd.broadcast(x, 0).sum().backward()
    assert x.grad.tolist() == ([1, 1] if rank == 0 else [0, 0]), "Horovod averages here"
    return True


def world():
    return {
        name: getattr(hvd, name)()
        for name in ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size", "is_homogeneous")
    }


@pytest.mark.parametrize(("workers", "nodes"), [(2, 1), (4, 2)])
def test_collectives(start, workers, nodes):
    cluster = start(nodes)
    for check in (reductions, ways_to_call, gathers_and_broadcasts, gradients_of_collectives):
        assert all(cluster.run(check, workers=workers))


def test_the_world_is_what_the_launcher_said(start):
    answers = start(2).run(world, workers=4)
    assert [a["rank"] for a in answers] == [0, 1, 2, 3]
    assert [a["local_rank"] for a in answers] == [0, 1, 0, 1]
    assert [a["cross_rank"] for a in answers] == [0, 0, 1, 1]
    assert all(a["size"] == 4 and a["local_size"] == 2 and a["cross_size"] == 2 for a in answers)
    assert all(a["is_homogeneous"] for a in answers)
