"""alltoall, reducescatter, grouped and sparse collectives, products; their gradients; what ranks may do wrong."""

import deft.torch as hvd
import pytest
import torch
from deft import world


def rows_sent(source, target):
    """How many rows rank `source` sends to rank `target`; some send none."""
    return (source + 2 * target) % 3


def exchange_rows():
    rank, size = hvd.rank(), hvd.size()
    ranks = range(size)
    for dtype in (torch.float32, torch.float16, torch.int64, torch.bool):
        splits = [rows_sent(rank, other) for other in ranks]
        wanted = [[other, rank] for other in ranks for _ in range(rows_sent(other, rank))]
        given = torch.tensor([[rank, other] for other in ranks for _ in range(splits[other])]).reshape(-1, 2).to(dtype)
        received, counts = hvd.alltoall(given, splits)
        assert received.dtype == dtype
        assert torch.equal(received, torch.tensor(wanted).reshape(-1, 2).to(dtype))
        assert counts.tolist() == [rows_sent(other, rank) for other in ranks]
    even = hvd.alltoall(torch.arange(2 * size) + 100 * rank, name="even")
    assert even.tolist() == [100 * other + 2 * rank + i for other in ranks for i in range(2)]
    handle = hvd.alltoall_async(torch.full((size, 1), float(rank)), torch.ones(size, dtype=torch.int32))
    while not hvd.poll(handle):
        pass
    received, counts = hvd.synchronize(handle)
    assert received.flatten().tolist() == list(ranks) and counts.tolist() == [1] * size
    handle = hvd.alltoall_async(torch.arange(size))
    assert hvd.synchronize(handle).tolist() == [rank] * size
    x = torch.ones(sum(rows_sent(rank, other) for other in ranks), 2, requires_grad=True)
    received, _ = hvd.alltoall(x, [rows_sent(rank, other) for other in ranks])
    (received * (rank + 1)).sum().backward()
    assert x.grad[:, 0].tolist() == [other + 1 for other in ranks for _ in range(rows_sent(rank, other))]
    return True


def reduce_and_scatter():
    rank, size = hvd.rank(), hvd.size()
    for rows in (0, 1, size, 2 * size + 1):
        x = torch.arange(rows * 3.0).reshape(rows, 3)
        each, more = divmod(rows, size)
        first = rank * each + min(rank, more)
        mine = slice(first, first + each + (rank < more))
        assert torch.equal(hvd.reducescatter(x * (rank + 1), op=hvd.Sum), (x * sum(range(size + 1)))[mine])
        assert torch.allclose(hvd.reducescatter(x + rank), (x + (size - 1) / 2)[mine])
        assert torch.equal(hvd.reducescatter(x + rank, op=hvd.Max), (x + size - 1)[mine])
        assert torch.equal(hvd.reducescatter(x, op=hvd.Product), (x**size)[mine])
        halved = hvd.reducescatter(x, op=hvd.Sum, prescale_factor=0.5, compression=hvd.Compression.fp16)
        assert halved.dtype == torch.float32 and torch.allclose(halved, (x * size / 2)[mine])
    handles = [hvd.reducescatter_async(torch.ones(size), op=hvd.Sum, name=f"r{i}") for i in range(3)]
    assert [hvd.synchronize(handle).tolist() for handle in handles] == [[size]] * 3
    pairs = [torch.ones(size, 2), torch.ones(2 * size)]
    for group in (hvd.grouped_reducescatter(pairs, op=hvd.Sum, name="g"), hvd.grouped_reducescatter_async(pairs)()):
        assert [part.shape for part in group] == [(1, 2), (2,)]
    # Horovod multiplies the gradient of a sum by the number of ranks.
    for op, factor in ((hvd.Sum, size), (hvd.Average, 1)):
        x = torch.ones(2 * size, requires_grad=True)
        (hvd.reducescatter(x, op=op) * (rank + 1)).sum().backward()
        assert x.grad.tolist() == [factor * (other + 1) for other in range(size) for _ in range(2)]
    return True


def groups_and_gradients():
    rank, size = hvd.rank(), hvd.size()
    total = sum(range(1, size + 1))
    a, b = torch.ones(3, requires_grad=True), torch.ones(2, 2, dtype=torch.float64, requires_grad=True)
    x, y = hvd.grouped_allreduce([a, b], op=hvd.Sum, name="both")
    ((x * (rank + 1)).sum() + (y * 2 * (rank + 1)).sum()).backward()
    assert a.grad.tolist() == [total] * 3 and b.grad.tolist() == [[2 * total] * 2] * 2
    c = torch.ones(3, requires_grad=True)
    unused = torch.ones(3, requires_grad=True)
    hvd.grouped_allreduce([c, unused])[0].sum().backward()
    assert c.grad.tolist() == [1] * 3 and unused.grad.tolist() == [0] * 3
    d = torch.ones(rank + 1, requires_grad=True)
    gathered, plain = hvd.grouped_allgather([d, torch.tensor([rank])], name="gathers")
    assert len(gathered) == total and plain.tolist() == list(range(size))
    gathered.sum().backward()
    assert d.grad.tolist() == [1] * (rank + 1)
    assert [len(t) for t in hvd.grouped_allgather_async([torch.ones(2), torch.ones(rank)])()] == [
        2 * size,
        sum(range(size)),
    ]
    assert hvd.grouped_allreduce([]) == []
    for dtype in (torch.float32, torch.float16, torch.int32, torch.uint8):
        product = hvd.allreduce(torch.tensor([rank + 1, 2]).to(dtype), op=hvd.Product)
        wanted = torch.tensor([torch.arange(1, size + 1).prod(), 2**size]).to(dtype)
        assert product.dtype == dtype and torch.equal(product, wanted)
    return True


def sparse_sums():
    rank, size = hvd.rank(), hvd.size()
    dense = torch.zeros(5, 2)
    dense[rank] = 1.0
    dense[4] = rank
    sparse = dense.to_sparse(1)
    all_sum = hvd.allgather(dense.unsqueeze(0)).sum(0)
    total = hvd.sparse_allreduce_async(sparse, name="s", op=hvd.Sum)()
    average = hvd.synchronize(hvd.sparse_allreduce_async(sparse, name="a", op=hvd.Average))
    assert total.is_sparse and torch.equal(total.to_dense(), all_sum)
    assert torch.allclose(average.to_dense(), all_sum / size)
    for number in (3, -3):  # of each rank: the average of the sum, not the sum of averages
        whole = torch.sparse_coo_tensor([[0]], torch.tensor([number]), (2,))
        sums = hvd.sparse_allreduce_async(whole, op=hvd.Average)()
        assert sums.dtype == torch.int64 and sums.to_dense().tolist() == [number, 0]
    with pytest.raises(ValueError, match="COO"):
        hvd.sparse_allreduce_async(dense, name="dense")
    return True


@pytest.mark.parametrize(("workers", "nodes"), [(2, 1), (4, 2)])
def test_exchanges(start, workers, nodes):
    cluster = start(nodes)
    for check in (exchange_rows, reduce_and_scatter, groups_and_gradients, sparse_sums):
        assert all(cluster.run(check, workers=workers))


def unlike(a, b):
    return a if hvd.rank() == 0 else b


def sparse_sum(size, op):
    return hvd.sparse_allreduce_async(torch.sparse_coo_tensor([[1]], [1.0], (size,)), "x", op)()


MISTAKES = {
    "splits": lambda: hvd.alltoall(torch.zeros(3), unlike([2, 1], [2, 2]), name="x"),
    "number": lambda: hvd.alltoall(torch.zeros(3), unlike([3], [1, 2]), name="x"),
    "rows": lambda: hvd.alltoall(torch.zeros(2, unlike(3, 4)), name="x"),
    "odd": lambda: hvd.alltoall(torch.zeros(3), name="x"),
    "product": lambda: hvd.allreduce(torch.zeros(unlike(2, 3)), name="x", op=hvd.Product),
    "sparse op": lambda: sparse_sum(3, unlike(hvd.Sum, hvd.Average)),
    "sparse shape": lambda: sparse_sum(unlike(3, 4), hvd.Sum),
    "scatter": lambda: hvd.reducescatter(torch.zeros(unlike((4, 1), (2, 2))), name="x"),
}
TEXTS = {
    "splits": "(torch.float32, rows of shape []) on rank 0 and an allgather of 2 int64 (the splits [2, 2] are not the "
    "3 rows of the tensor) on rank 1",
    "number": "(splits must be 2 integers, one for each rank) on rank 0",
    "rows": "(torch.float32, rows of shape [4]) on rank 1",
    "odd": "alltoall.x: 3 rows cannot be split evenly among 2 ranks; give splits",
    "product": "an allgather of 2 float32 (Product, shape [2]) on rank 0 and an allgather of 3 float32",
    "sparse op": "(rows of torch.float32, shape [] (Average of sparse [3])) on rank 1",
    "sparse shape": "(rows of torch.float32, shape [] (Sum of sparse [4])) on rank 1",
    "scatter": "'allreduce.reducescatter.x' is an allreduce of 4 float32 (sum) (Average, shape [4, 1]",
}


def make_mistakes():
    texts = {}
    for name, mistake in MISTAKES.items():
        with pytest.raises((hvd.HorovodInternalError, ValueError)) as error:
            mistake()
        texts[name] = str(error.value)
        assert hvd.alltoall(torch.arange(2), name="x").tolist() == [hvd.rank()] * 2, "the job goes on"
        assert sparse_sum(3, hvd.Sum).to_dense().tolist() == [0, hvd.size(), 0], "no name is held"
    return texts


def test_mistakes_are_the_same_error_on_all_ranks(start):
    first, second = start(2).run(make_mistakes)
    assert first == second
    for name, text in TEXTS.items():
        assert text in first[name]


def wait_late():
    """One rank waits for an exchange before it does something else with the others, and the other rank after that."""
    rank = hvd.rank()
    sparse = torch.sparse_coo_tensor([[rank]], [1.0], (2,))
    starts = [
        lambda: hvd.allgather_async(torch.full((rank + 1,), rank), name="mine"),
        lambda: hvd.alltoall_async(torch.full((2,), rank)),
        lambda: hvd.sparse_allreduce_async(sparse, op=hvd.Sum),
    ]
    results = []
    for start_one in starts:
        handle = start_one()
        if rank == 0:
            results.append(hvd.synchronize(handle))
        hvd.barrier()
        if rank == 1:
            results.append(hvd.synchronize(handle))
    handles = [start_one() for start_one in starts]
    for handle in handles if rank == 0 else reversed(handles):
        hvd.synchronize(handle)
    assert results[0].tolist() == [0, 1, 1] and results[1].tolist() == [0, 1]
    assert results[2].to_dense().tolist() == [1, 1]
    return True


def test_an_exchange_ends_for_a_rank_though_another_waits_for_it_later(start):
    assert start(2).run(wait_late, stall_timeout="20s") == [True] * 2


def keep_names():
    """A name is taken until somebody has waited for the result, though it may have come."""
    handles = [hvd.allgather_async(torch.ones(2), name="n"), hvd.alltoall_async(torch.ones(2), name="n")]
    while not all(map(hvd.poll, handles)):
        pass
    for begin in (hvd.allgather_async, hvd.alltoall_async):
        with pytest.raises(ValueError, match="a collective of this name is under way"):
            begin(torch.ones(2), name="n")
    for handle in handles:
        hvd.synchronize(handle)
    assert hvd.allgather(torch.ones(2), name="n").shape == (4,)
    del handles[:]
    dropped = hvd.allgather_async(torch.ones(2), name="n")
    while not hvd.poll(dropped):
        pass
    del dropped
    return hvd.allgather(torch.ones(2), name="n").tolist()


def drop_handles():
    """What nobody can wait for is freed when it has ended, and with it the memory of its result."""
    for _ in range(200):
        hvd.allreduce_async(torch.ones(3))
        hvd.allgather_async(torch.ones(3))
        hvd.allreduce(torch.ones(3))
    return len(world.session()._names._running)


def test_handles_that_nobody_waits_for_are_freed(start):
    assert max(start(2).run(drop_handles)) < 100


def test_a_name_is_taken_until_its_result_is_taken(start):
    assert start(2).run(keep_names) == [[1.0] * 4] * 2
