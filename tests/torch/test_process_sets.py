"""Process sets as Horovod's documentation says them: subsets of the ranks that run collectives of their own."""

import deft
import deft.torch as hvd
import pytest
import torch
from launching import WorkerFailed

EVEN, ODD = [0, 2], [1, 3]


def everything_in_a_set(mine, others):
    """Every collective in the process set of this rank, while the other ranks do the same in theirs."""
    rank, place, ranks = hvd.rank(), mine.rank(), mine.ranks
    value = torch.full((3,), float(rank))
    total, mean = float(sum(ranks)), sum(ranks) / 2
    one = {"process_set": mine}
    assert hvd.allreduce(value, **one).tolist() == [mean] * 3
    assert hvd.allreduce(value, op=hvd.Sum, name="named", **one).tolist() == [total] * 3
    assert hvd.allreduce(value, op=hvd.Max, **one).tolist() == [float(max(ranks))] * 3
    assert hvd.allreduce(value + 1, op=hvd.Product, **one).tolist() == [(ranks[0] + 1.0) * (ranks[1] + 1.0)] * 3
    assert hvd.synchronize(hvd.allreduce_async(value, **one)).tolist() == [mean] * 3
    assert hvd.allreduce_(value.clone(), **one).tolist() == [mean] * 3
    assert [t.tolist() for t in hvd.grouped_allreduce([value, 2 * value], **one)] == [[mean] * 3, [2 * mean] * 3]
    assert hvd.grouped_allreduce_([value.clone()], **one)[0].tolist() == [mean] * 3
    assert hvd.allgather(torch.full((place + 1,), rank), **one).tolist() == [ranks[0], ranks[1], ranks[1]]
    assert [t.tolist() for t in hvd.grouped_allgather([torch.tensor([rank])], **one)] == [ranks]
    assert hvd.broadcast(value, ranks[1], **one).tolist() == [float(ranks[1])] * 3, "a root is a rank of the job"
    assert hvd.broadcast_(value.clone(), ranks[0], **one).tolist() == [float(ranks[0])] * 3
    received, splits = hvd.alltoall(torch.tensor([rank, rank, 10 + rank]), splits=[1, 2] if place else [2, 1], **one)
    assert splits.tolist() == ([1, 2] if place else [2, 1])
    assert len(received) == 3
    assert hvd.reducescatter(torch.arange(4.0), op=hvd.Sum, **one).tolist() == [4.0 * place, 4.0 * place + 2]
    assert hvd.grouped_reducescatter([torch.arange(2.0)], **one)[0].tolist() == [float(place)]
    rows = torch.sparse_coo_tensor([[place]], [1.0], (2,))
    assert hvd.sparse_allreduce_async(rows, op=hvd.Sum, **one)().to_dense().tolist() == [1.0, 1.0]
    assert hvd.broadcast_object({"from": rank}, ranks[1], **one) == {"from": ranks[1]}
    assert hvd.allgather_object(rank, **one) == ranks
    hvd.barrier(process_set=mine)
    differentiable = torch.ones(2, requires_grad=True)
    hvd.allgather(differentiable, **one).mul(float(rank + 1)).sum().backward()
    assert differentiable.grad.tolist() == [mean + 1] * 2, "the average over the set's ranks"
    for wrong in (
        lambda: hvd.allreduce(value, process_set=others),
        lambda: hvd.broadcast(value, others.ranks[0], **one),
    ):
        with pytest.raises(ValueError, match=r"is not in ProcessSet|the process set has the ranks"):
            wrong()
    with pytest.raises(hvd.HorovodInternalError, match="rank 1") as error:  # ranks are those of the set
        hvd.allreduce(torch.zeros(3 + place), name="shapes", **one)
    assert hvd.allreduce(value).tolist() == [1.5] * 3, "all ranks, in the middle of it"
    return str(error.value)


def train(process_set, steps=4, **options):
    """Gives the parameters after some steps; each rank has samples of its own."""
    torch.manual_seed(5 + hvd.rank())
    model = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.ReLU(), torch.nn.Linear(5, 2))
    if process_set.included():
        hvd.broadcast_parameters(model.state_dict(), process_set.ranks[-1], process_set=process_set)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if process_set.included():
        hvd.broadcast_optimizer_state(optimizer, process_set.ranks[-1], process_set=process_set)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), process_set=process_set, **options)
    inputs = torch.randn(steps, 8, 4, generator=torch.Generator().manual_seed(hvd.rank()))
    for batch in inputs:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.synchronize()
        with optimizer.skip_synchronize():
            optimizer.step()
    optimizer.flush()
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def alone(ranks, start, steps=4):
    """One process with the samples of `ranks`, from the parameters that `start` seeds."""
    torch.manual_seed(5 + start)
    model = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.ReLU(), torch.nn.Linear(5, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    inputs = [torch.randn(steps, 8, 4, generator=torch.Generator().manual_seed(rank)) for rank in ranks]
    for step in range(steps):
        optimizer.zero_grad()
        (sum(model(of_rank[step]).square().mean() for of_rank in inputs) / len(ranks)).backward()
        optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def use_sets():
    even, odd = hvd.add_process_set(EVEN), hvd.add_process_set(hvd.ProcessSet(reversed(ODD)))
    mine, others = (even, odd) if hvd.rank() in EVEN else (odd, even)
    assert str(even) == "ProcessSet(process_set_id=1, ranks=[0, 2], mpi_comm=None)"
    assert hvd.global_process_set.ranks == [0, 1, 2, 3]
    assert (mine.included(), others.included()) == (True, False)
    assert (mine.size(), mine.rank(), others.size()) == (2, hvd.rank() // 2, 2)
    text = everything_in_a_set(mine, others)

    trained = train(mine)
    assert torch.allclose(trained, alone(mine.ranks, mine.ranks[-1]), atol=1e-6)
    assert len({tuple(p.tolist()) for p in hvd.allgather_object(trained, process_set=mine)}) == 1
    by_even = train(even)
    expected = alone(EVEN, 2) if even.included() else alone([hvd.rank()], hvd.rank())
    assert torch.allclose(by_even, expected, atol=1e-6), "a rank outside its set trains alone"
    assert torch.allclose(train(hvd.global_process_set), alone([0, 1, 2, 3], 3), atol=1e-6)

    three = hvd.add_process_set([0, 1, 3])
    assert three.process_set_id == 3
    with pytest.raises(ValueError, match="added before"):
        hvd.add_process_set(three)
    if three.included():
        assert hvd.allreduce(torch.ones(1), op=hvd.Sum, process_set=three).item() == 3
        with pytest.raises(NotImplementedError, match=r"Adasum needs a number of ranks that is a power of two.* has 3"):
            hvd.allreduce(torch.ones(1), op=hvd.Adasum, process_set=three)
    assert hvd.remove_process_set(even) is True
    assert hvd.remove_process_set(even) is False, "it is not in use"
    assert hvd.remove_process_set(hvd.global_process_set) is False
    with pytest.raises(ValueError, match="is not in use"):
        hvd.allreduce(torch.ones(1), process_set=even)
    again = hvd.add_process_set(EVEN)
    if again.included():
        assert hvd.allreduce(torch.ones(1), op=hvd.Sum, process_set=again).item() == 2
    return text


def test_sets_on_two_nodes(start):
    texts = start(2).run(use_sets, workers=4)
    assert texts[0] == texts[2] and texts[1] == texts[3], "the same error on all ranks of a set"


def sets_from_the_start():
    """init(process_sets=...), twice; sets end with shutdown()."""
    for _ in range(2):
        hvd.shutdown()
        first, last = hvd.ProcessSet([0]), hvd.ProcessSet([2, 1])
        hvd.init(process_sets=[first, last])
        assert (first.process_set_id, last.process_set_id) == (1, 2)
        assert first.included() == (hvd.rank() == 0) and last.included() == (hvd.rank() > 0)
        mine = last if last.included() else first
        assert hvd.allreduce(torch.ones(2), op=hvd.Sum, process_set=mine).tolist() == [mine.size()] * 2
        found = train(mine, steps=12)
        if not deft.policy_traits().delays_updates:
            assert torch.allclose(found, alone(mine.ranks, mine.ranks[-1], steps=12), atol=1e-5)
        assert len({tuple(p.tolist()) for p in hvd.allgather_object(found, process_set=mine)}) == 1
    hvd.shutdown()
    with pytest.raises(ValueError, match="is not in use"):
        hvd.allreduce(torch.ones(2), process_set=mine)
    for wrong in ("static", [[0, 2], [1, 3]]):
        with pytest.raises(ValueError, match="give a list of ProcessSet, or 'dynamic'"):
            hvd.init(process_sets=wrong)
    assert not hvd.is_initialized()
    hvd.init(process_sets="dynamic")
    for ranks in ([0, 1, 2], [1]):
        mine = hvd.ProcessSet(ranks)
        assert (mine.size(), mine.rank(), mine.included()) == (None, None, hvd.rank() in ranks), "not in use"
        if ranks == [0, 1, 2]:
            with pytest.raises(ValueError, match=r"ProcessSet\(process_set_id=0, .* has the same ranks"):
                hvd.add_process_set(mine)
    assert hvd.add_process_set(mine) is mine
    with pytest.raises(ValueError, match=r"ProcessSet\(process_set_id=1, .* has the same ranks"):
        hvd.add_process_set([1])
    with pytest.raises(ValueError, match="start the job with these ranks"):
        hvd.init([0, 1])
    return mine.process_set_id


@pytest.mark.parametrize("policy", ["knapsack", "bytescheduler"])
def test_sets_from_the_start(start, policy):
    assert start(3, policy=policy).run(sets_from_the_start, workers=3) == [1, 1, 1]


def misuse():
    texts = {}
    for ranks in ([], [0, 0], [0, 7]):
        with pytest.raises(ValueError, match=r"different ranks, one at least|a rank of ProcessSet"):
            hvd.add_process_set(ranks)
    with pytest.raises(ValueError, match="give it to init"):
        hvd.allreduce(torch.ones(1), process_set=hvd.ProcessSet([0, 1]))
    with pytest.raises(hvd.HorovodInternalError) as error:
        hvd.add_process_set([0, 1] if hvd.rank() == 0 else [1])
    texts["other"] = str(error.value)
    assert hvd.allreduce(torch.ones(1)).item() == 1, "the job goes on"
    pair = hvd.ProcessSet([0, 1])
    if hvd.rank() != 2:
        with pytest.raises(hvd.HorovodInternalError) as error:
            hvd.add_process_set(pair)
        texts["missing"] = str(error.value)
    hvd.barrier()
    for _ in range(2):  # the late rank comes, and the others call again
        hvd.init(process_sets=[pair])
        assert not pair.included() or hvd.allreduce(torch.ones(1), op=hvd.Sum, process_set=pair).item() == 2
    return texts


def test_a_set_that_not_all_ranks_create_is_an_error_that_names_them(start):
    results = start(1, timeout="6s").run(misuse, workers=3)
    for texts in results:
        assert texts["other"] == (
            "add_process_set: the process set is [0, 1] on rank 0 and [1] on rank 1; all ranks give the same sets, in "
            "the same order"
        )
    for texts in results[:2]:
        assert texts["missing"] == (
            "add_process_set([0, 1]): rank 2 did not call it within 6 s; all ranks of the job call it, also those "
            "outside the set, and in the same order"
        )


def dies_in_a_set():
    last = hvd.add_process_set([1, 2])  # none of node 0: the daemon of node 1 leads
    assert not last.included() or hvd.allreduce(torch.ones(1), op=hvd.Sum, process_set=last).item() == 2
    hvd.barrier()
    if hvd.rank() == 2:
        raise SystemExit(3)
    if last.included():
        hvd.allreduce(torch.ones(1), process_set=last)
    else:
        hvd.allreduce(torch.ones(1))


def test_a_lost_rank_is_an_error_in_its_sets(start):
    with pytest.raises(WorkerFailed) as failure:
        start(3).run(dies_in_a_set, workers=3)
    assert "DeftError" in failure.value.errors[1] and "rank" in failure.value.errors[1]
