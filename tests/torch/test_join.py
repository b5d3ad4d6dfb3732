"""join() as Horovod's documentation says it: ranks with less data than others.

A rank that has joined counts as zero in allreduces, and averages are still divided by the number of all ranks. join()
ends when all ranks have joined, and gives the rank that joined last.
"""

import gc

import deft.torch as hvd
import pytest
import torch
import torch.distributed as dist
from c10d_groups import close_group, open_group
from launching import WorkerFailed, free_port

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64)


def reductions_without(first):
    """Rank `first` joins at once, the others after some reductions."""
    size, others = hvd.size(), hvd.size() - 1
    if hvd.rank() == first:
        return hvd.join()
    for dtype in DTYPES:
        value = torch.full((3, 2), 6, dtype=dtype)
        handle = hvd.allreduce_async(value, name="a", op=hvd.Average)
        assert hvd.allreduce(value, op=hvd.Sum).unique().tolist() == [6 * others]
        mean = 6 * others / size if dtype.is_floating_point else 6 * others // size
        assert hvd.synchronize(handle).unique().tolist() == [pytest.approx(mean, rel=1e-2)]
        assert hvd.allreduce(value, name="a").unique().item() == pytest.approx(mean, rel=1e-2), "the name once more"
    handles = [hvd.allreduce_async_(torch.ones(5), op=hvd.Sum, name=f"h{i}") for i in range(10)]
    while not all(map(hvd.poll, handles)):
        pass
    assert all(hvd.synchronize(handle).tolist() == [others] * 5 for handle in handles)
    assert hvd.grouped_allreduce([torch.ones(2), torch.ones(3)], op=hvd.Sum)[1].tolist() == [others] * 3
    assert hvd.allreduce(torch.ones(0)).shape == (0,)
    forgotten = hvd.allreduce_async(torch.ones(4), op=hvd.Sum)  # under way when this rank joins
    last = hvd.join()
    assert hvd.synchronize(forgotten).tolist() == [others] * 4
    return last


def train_uneven(batches_of):
    """Each rank has its own number of batches. Gives the parameters after each update, and who was last."""
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    history = []
    for _ in range(2):
        for step in range(batches_of[hvd.rank()]):
            optimizer.zero_grad()
            batch(model, hvd.rank(), step).backward()
            optimizer.step()
            history.append(hvd.allreduce(torch.ones(1), name="ranks", op=hvd.Sum).item())
        last = hvd.join()
        hvd.broadcast_parameters(model.state_dict(), root_rank=last)
        hvd.broadcast_optimizer_state(optimizer, root_rank=last)
    return torch.cat([p.detach().flatten() for p in model.parameters()]).tolist(), history, last


def batch(model, rank, step):
    inputs = torch.randn(8, 4, generator=torch.Generator().manual_seed(100 * rank + step))
    return model(inputs).square().mean()


def train_alone(batches_of):
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        for step in range(max(batches_of)):
            optimizer.zero_grad()
            here = [rank for rank, count in enumerate(batches_of) if step < count]
            (sum(batch(model, rank, step) for rank in here) / len(batches_of)).backward()
            optimizer.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()


def refusals():
    """What a rank that has joined cannot take part in is the same error on all others, and the job goes on."""
    if hvd.rank() == 0:
        hvd.join()
        return None
    texts = {}
    for name, collective in {
        "allgather": lambda: hvd.allgather(torch.ones(2), name="x"),
        "broadcast": lambda: hvd.broadcast(torch.ones(2), 1, name="x"),
        "max": lambda: hvd.allreduce(torch.ones(2), op=hvd.Max, name="x"),
        "product": lambda: hvd.allreduce(torch.ones(2), op=hvd.Product, name="x"),
        "barrier": lambda: hvd.barrier(name="x"),
    }.items():
        with pytest.raises(
            hvd.HorovodInternalError, match=r"rank 0 has joined; join.* goes with allreduce by Sum or Av"
        ):
            collective()
        texts[name] = name
    assert hvd.allreduce(torch.ones(2), op=hvd.Sum).tolist() == [hvd.size() - 1] * 2
    hvd.join()
    return sorted(texts)


def everything():
    size = hvd.size()
    for first in (0, size - 1):
        last = reductions_without(first)
        assert len(set(hvd.allgather_object(last))) == 1
        assert last != first, "the others have done more"
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == size, "all count again"
    hvd.join()
    hvd.barrier()
    for batches_of in ([3, 5, 2, 5][:size], [1, 4, 4, 4][:size], [4, 4, 4, 4][:size]):
        parameters, history, last = train_uneven(batches_of)
        assert batches_of[last] == max(batches_of)
        mine = batches_of[hvd.rank()]
        assert history == 2 * [float(sum(step < count for count in batches_of)) for step in range(mine)]
        assert parameters == pytest.approx(train_alone(batches_of), abs=1e-6)
    refusals()
    return hvd.allgather_object(hvd.rank())


@pytest.mark.parametrize(("policy", "workers"), [("fifo", 2), ("bytescheduler", 4)])
def test_ranks_that_join_count_as_zero(start, policy, workers):
    assert start(2, policy=policy).run(everything, workers=workers) == [list(range(workers))] * workers


def flush_residuals(first):
    """Rank `first` joins after two of six steps; the gradients of the last one take along what a codec has left out.

    Gives how far all updates together are from the sum of all gradients, relative to that."""
    weight = torch.nn.Parameter(torch.zeros(256, 256))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), [("weight", weight)])
    exact = torch.zeros(256, 256)
    for step in range(2 if hvd.rank() == first else 6):
        gradient = torch.randn(256, 256, generator=torch.Generator().manual_seed(step))
        if step == 5:
            optimizer.flush(residuals=True)
        optimizer.zero_grad()
        (weight * gradient).sum().backward()
        optimizer.step()
        exact += gradient * (1 if step < 2 else 0.5)  # a rank that has joined counts as zero
    optimizer.flush()
    hvd.join()
    return ((weight.detach() + exact).norm() / exact.norm()).item()


@pytest.mark.parametrize("first", [0, 1])
def test_residuals_are_sent_whoever_has_joined(start, first):
    cluster = start(2, policy="bytescheduler", compression="topk/ratio=0.1")
    assert cluster.run(flush_residuals, first)[1 - first] < 1e-6


def joins_before_its_first_step():
    """The rank that joins has never declared its gradients."""
    batches_of = [0, 3, 2]
    parameters, _, last = train_uneven(batches_of)
    assert last == 1
    assert parameters == pytest.approx(train_alone(batches_of), abs=1e-6)
    return True


def test_a_rank_without_any_batch_joins(start):
    assert all(start(1).run(joins_before_its_first_step, workers=3))


def join_with_two_optimizers(batches_of):
    """On several nodes a step begins on all ranks, also on those that have joined."""
    models = [torch.nn.Linear(4, 1) for _ in range(2)]
    optimizers = [hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1)) for model in models]
    for step in range(batches_of[hvd.rank()]):
        for optimizer in optimizers:
            optimizer.zero_grad()
        sum(batch(model, hvd.rank(), step) for model in models).backward()
        for optimizer in optimizers:
            optimizer.step()
    return hvd.join()


def test_ranks_of_several_nodes_join_with_several_optimizers(start):
    assert start(3, policy="fifo").run(join_with_two_optimizers, [1, 4, 2], workers=3) == [1] * 3


class Fails(torch.autograd.Function):
    """Backward ends here with an error."""

    @staticmethod
    def forward(_context, value):
        return value.clone()

    @staticmethod
    def backward(_context, _gradient):
        raise ValueError("amid a backward")


def join_amid_backwards(first_is_reduced):
    """In the last step each rank has other gradients under way when it joins: of a backward that has failed midway, of
    one that nobody follows by step(), and an allreduce that only this rank has begun."""
    rank = hvd.rank()
    models = [torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 1)) for _ in range(3)]
    optimizers = [hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1)) for model in models]
    everything = sum(batch(model, rank, 0) for model in models)
    if first_is_reduced:
        everything.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    handle = hvd.allreduce_async(torch.ones(2), op=hvd.Sum, name=f"of rank {rank} alone")
    first, last = models[rank]
    value = first(torch.ones(2, 4))
    with pytest.raises(ValueError, match="amid a backward"):
        last(Fails.apply(value)).sum().backward()
    ended = hvd.join()
    assert hvd.synchronize(handle).tolist() == [1, 1], "the others count as zero"
    hvd.broadcast_parameters(torch.nn.ModuleList(models).state_dict(), root_rank=ended)
    for optimizer in optimizers:
        optimizer.zero_grad()
    sum(batch(model, rank, 1) for model in models).backward()
    for optimizer in optimizers:
        optimizer.step()
    hvd.join()
    return torch.cat([p.detach().flatten() for model in models for p in model.parameters()]).tolist()


@pytest.mark.parametrize("first_is_reduced", [True, False])
@pytest.mark.parametrize("policy", ["fifo", "bytescheduler"])
def test_ranks_join_after_backwards_that_failed_in_different_optimizers(start, policy, first_is_reduced):
    """None waits for what another one, which joins as well, has not begun."""
    torch.manual_seed(5)
    first, second, third = start(3, policy=policy, timeout="8s").run(join_amid_backwards, first_is_reduced, workers=3)
    assert first == second == third


def joins_with_late_updates():
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([parameter], lr=0.1))
    with pytest.raises(ValueError, match="DEFT_MAX_STALENESS_STEPS=0"):
        hvd.join()
    del optimizer
    gc.collect()
    return hvd.join()


def dies_while_others_have_joined():
    if hvd.rank() == 1:
        raise SystemExit(3)
    hvd.join()


def test_what_join_cannot_do(start):
    assert len(set(start(1, policy="knapsack").run(joins_with_late_updates))) == 1
    with pytest.raises(WorkerFailed) as failure:
        start(1).run(dies_while_others_have_joined)
    assert "DeftError" in failure.value.errors[0] and "rank 1" in failure.value.errors[0]


def join_beside_a_process_group(port):
    """torch.distributed does not see that a rank has joined, so no rank may. Without the group all can."""
    open_group(port)
    dist.all_reduce(torch.ones(2))
    with pytest.raises(ValueError, match=r"join\(\) does not work beside"):
        hvd.join()
    close_group()
    return hvd.join()


def test_a_process_group_over_deft_hinders_join(start):
    first, second = start(2).run(join_beside_a_process_group, free_port())
    assert first == second
