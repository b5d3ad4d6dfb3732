"""What ranks may do wrong in a collective: an error of that collective, the same on all ranks, and the job goes on.

A wait for a collective or a gradient can be interrupted.
"""

import contextlib
import os
import signal
import time
from pathlib import Path

import deft.torch as hvd
import pytest
import torch
from launching import WorkerFailed
from torch.nn.functional import embedding


def unlike(a, b):
    """`a` on rank 0, `b` elsewhere."""
    return a if hvd.rank() == 0 else b


MISTAKES = {
    "count": lambda: hvd.allreduce(torch.zeros(unlike(3, 4)), name="x"),
    "shape": lambda: hvd.allreduce(torch.zeros(unlike((6,), (2, 3))), name="x"),
    "dtype": lambda: hvd.allreduce(torch.zeros(3, dtype=unlike(torch.float32, torch.float64)), name="x"),
    "op": lambda: hvd.allreduce(torch.zeros(3), name="x", op=unlike(hvd.Average, hvd.Sum)),
    "max": lambda: hvd.allreduce(torch.zeros(3), name="x", op=unlike(hvd.Sum, hvd.Max)),
    "factor": lambda: hvd.allreduce(torch.zeros(3), name="x", op=hvd.Sum, prescale_factor=unlike(1.0, 2.0)),
    "nothing": lambda: hvd.allreduce(torch.zeros(unlike(0, 3)), name="x"),
    "root": lambda: hvd.broadcast(torch.zeros(3), unlike(0, 1), name="x"),
    "broadcast": lambda: hvd.broadcast(torch.zeros(unlike((6,), (3, 2))), 0, name="x"),
    "bool": lambda: hvd.broadcast(torch.zeros(8, dtype=unlike(torch.bool, torch.uint8)), 0, name="x"),
    "rows": lambda: hvd.allgather(torch.zeros(2, unlike(3, 4)), name="x"),
    "scalars": lambda: hvd.allgather(torch.zeros(2, dtype=unlike(torch.float32, torch.int32)), name="x"),
}
SUMS = "operation 'allreduce.x': 'allreduce.x' is an allreduce of "
TEXTS = {
    "count": SUMS + "3 float32 (sum) (Average, shape [3], factors 1 and 0.5) on rank 0 and an allreduce of 4 float32 ",
    "shape": SUMS + "6 float32 (sum) (Average, shape [6], factors 1 and 0.5) on rank 0 and an allreduce of 6 float32 "
    "(sum) (Average, shape [2, 3], factors 1 and 0.5) on rank 1 (all ranks must ask for the same)",
    "dtype": "3 float64 (sum) (Average, shape [3], factors 1 and 0.5) on rank 1",
    "op": "3 float32 (sum) (Sum, shape [3]) on rank 1",
    "max": "3 float32 (max) (Max, shape [3]) on rank 1",
    "factor": "(Sum, shape [3], factors 2 and 1) on rank 1",
    "nothing": "'allreduce.x' is a barrier (allreduce, torch.float32, Average, shape [0], factors 1 and 0.5) on rank 0",
    "root": "a broadcast of 3 float32 from rank 0 (torch.float32, shape [3]) on rank 0 and a broadcast of 3 float32 "
    "from rank 1 (torch.float32, shape [3]) on rank 1",
    "broadcast": "(torch.float32, shape [3, 2]) on rank 1",
    "bool": "(torch.bool, shape [8]) on rank 0",
    "rows": "(rows of torch.float32, shape [4]) on rank 1",
    "scalars": "(rows of torch.int32, shape []) on rank 1",
}


def make_mistakes():
    texts = {}
    for name, mistake in MISTAKES.items():
        with pytest.raises(hvd.HorovodInternalError) as error:
            mistake()
        texts[name] = str(error.value)
        assert hvd.allreduce(torch.ones(3), name="x", op=hvd.Sum).tolist() == [hvd.size()] * 3, "the job goes on"
    for _ in range(2):  # all of a group are waited for, so their names are free
        with pytest.raises(hvd.HorovodInternalError, match=r"allreduce\.x\.0of3"):
            hvd.grouped_allreduce([torch.zeros(unlike(3, 4)), torch.zeros(unlike(3, 4)), torch.ones(2)], name="x")
    assert hvd.grouped_allreduce([torch.ones(1)] * 3, name="x", op=hvd.Sum) == [torch.tensor([2.0])] * 3
    hvd.allreduce_async(torch.zeros(unlike(3, 4)), name="x")  # nobody waits for its error
    assert retried(lambda: hvd.allreduce(torch.ones(2), name="x", op=hvd.Sum)).tolist() == [2, 2]
    return texts


def retried(function):
    """What the function gives when it raises no error any more."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with contextlib.suppress(hvd.HorovodInternalError):
            return function()
    raise AssertionError("a collective that has ended, and whose handle is gone, still holds its name")


@pytest.mark.parametrize(("workers", "nodes"), [(2, 1), (2, 2)])
def test_a_mismatch_is_the_same_error_on_all_ranks_and_the_job_goes_on(start, workers, nodes):
    first, second = start(nodes).run(make_mistakes, workers=workers)
    assert first == second
    for name, text in TEXTS.items():
        assert text in first[name]


def use_a_name_twice():
    texts = []
    waiting = hvd.allreduce_async(torch.ones(2), name="x", op=hvd.Sum)
    for start_again in (hvd.allreduce_async, hvd.allreduce_async_):
        with pytest.raises(hvd.HorovodInternalError) as error:
            start_again(torch.ones(2), name="x", op=hvd.Sum)
        assert isinstance(error.value, ValueError), "which Horovod's scripts expect"
        texts.append(str(error.value))
    assert hvd.synchronize(waiting).tolist() == [hvd.size()] * 2
    polled = hvd.allreduce_async(torch.ones(2), name="x", op=hvd.Sum)
    while not hvd.poll(polled):
        pass
    hvd.allreduce(torch.ones(2), name="x")
    assert hvd.synchronize(polled).tolist() == [hvd.size()] * 2
    hvd.allreduce_async(torch.ones(2), name="y")  # nobody waits for it
    hvd.barrier()
    time.sleep(0.1)
    retried(lambda: hvd.allreduce(torch.ones(2), name="y"))
    return texts


def test_a_name_that_is_under_way_is_the_same_error_on_all_ranks(start):
    first, second = start(2).run(use_a_name_twice)
    assert (
        first
        == second
        == [
            "operation 'allreduce.x': a collective of this name is under way; wait for it first, or "
            "give the new one another name"
        ]
        * 2
    )


def leave_while_the_other_waits(leaving):
    hvd.barrier()
    if hvd.rank() == leaving:
        return "left"
    with pytest.raises(hvd.HorovodInternalError) as error:
        hvd.broadcast(torch.ones(3), hvd.rank(), name="x")
    return str(error.value)


@pytest.mark.parametrize("leaving", [0, 1])
def test_a_rank_that_has_left_is_named_by_those_who_wait_for_it(start, leaving):
    texts = start(2).run(leave_while_the_other_waits, leaving)
    assert texts[leaving] == "left"
    assert f"rank {leaving}" in texts[1 - leaving] and "has ended, and 'broadcast.x' needs it" in texts[1 - leaving]


def begin_anew_after_a_loss():
    """Rank 1 dies in training; the others leave the job, and train on in another one."""
    pair = hvd.add_process_set([0, 1])
    models = [torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)]
    optimizers = [
        hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), process_set=ranks)
        for model, ranks in zip(models, (hvd.global_process_set, pair))
    ]
    step_of(models, optimizers)
    if hvd.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    for model in models if hvd.rank() == 0 else models[:1]:
        with pytest.raises(hvd.HorovodInternalError, match="rank 1"):
            model(torch.ones(1, 3)).sum().backward()
    place = hvd.rank() // 2
    hvd.shutdown()
    assert not hvd.is_initialized()
    hvd.init(job="again", rank=place, world_size=2, local_rank=place, local_size=2)
    hvd.broadcast_parameters(models[0].state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(models[0].parameters(), lr=0.1))
    step_of(models[:1], [optimizer])
    found = hvd.allgather_object([param.tolist() for param in models[0].parameters()])
    assert found[0] == found[1]
    return True


def step_of(models, optimizers):
    for model, optimizer in zip(models, optimizers):
        optimizer.zero_grad()
        model(torch.ones(1, 3) + hvd.rank()).square().sum().backward()
        optimizer.step()


def test_the_others_leave_a_job_that_has_lost_a_rank_and_begin_anew(start):
    with pytest.raises(WorkerFailed) as failed:
        start(1).run(begin_anew_after_a_loss, workers=3)
    assert [error is None for error in failed.value.errors] == [True, False, True], failed.value


def broadcast_unlike_models():
    texts = []
    for model in (torch.nn.Linear(3 + hvd.rank(), 2), torch.nn.Linear(3, 2, bias=hvd.rank() == 0)):
        for params in (model.state_dict(), model.parameters()):
            with pytest.raises(ValueError) as error:
                hvd.broadcast_parameters(params)
            texts.append(str(error.value))
    model = torch.nn.Linear(3, 2)
    hvd.broadcast_parameters(model.state_dict())
    assert hvd.allgather_object(model.weight.tolist()) == [model.weight.tolist()] * 2, "the job goes on"
    return texts


def test_unlike_models_are_the_same_error_on_all_ranks(start):
    first, second = start(2).run(broadcast_unlike_models)
    assert first == second
    for text, expected in zip(
        first,
        [
            "rank 1 has weight float32 [2, 4] where rank 0 has weight float32 [2, 3]",
            "rank 1 has parameter 0 float32 [2, 4] where rank 0 has parameter 0 float32 [2, 3]",
            "rank 1 has weight float32 [2, 3] where rank 0 has bias float32 [2]",
            "rank 1 has 1 tensors and rank 0 has 2",
        ],
        strict=True,
    ):
        assert expected in text


def unlike_averages():
    """An average on one rank and a sum on another: of dense gradients and of sparse ones."""
    texts = []
    for parameter, loss in (
        (torch.nn.Parameter(torch.ones(3)), lambda table: table.sum()),
        (torch.nn.Parameter(torch.ones(3, 1)), lambda table: embedding(torch.tensor([1]), table, sparse=True).sum()),
    ):
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([parameter], lr=1.0), op=unlike(hvd.Average, hvd.Sum))
        with pytest.raises(hvd.HorovodInternalError) as error:
            loss(parameter).backward()
            optimizer.step()
        texts.append(str(error.value))
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == 2, "the job goes on"
    return texts


@pytest.mark.parametrize("policy", ["fifo", "knapsack"])
def test_optimizers_that_average_in_different_ways_are_an_error(start, policy):
    first, second = start(2, policy=policy).run(unlike_averages)
    assert first == second
    for text in first:
        assert "(gradients times 0.5, sums times 1) on rank 0" in text
        assert "(gradients times 1, sums times 1) on rank 1" in text


def await_file(path):
    """True if the file has come within so many seconds that the job has not given up."""
    deadline = time.monotonic() + 50
    while not Path(path).exists():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def train(path):
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([parameter], lr=1.0))
    if hvd.rank() == 1:
        assert await_file(path)
    parameter.sum().backward()
    optimizer.step()
    return parameter.tolist()


WAITS = {
    "barrier": lambda path: (hvd.rank() and await_file(path), hvd.barrier()),
    "allreduce": lambda path: (hvd.rank() and await_file(path), hvd.allreduce(torch.ones(2)))[1],
    "gather": lambda path: (hvd.rank() and await_file(path), hvd.allgather(torch.ones(2)))[1],
    "gradient": train,
}


def wait_with_a_signal(path):
    """Rank 1 takes part only when rank 0's signal handler has run while it waits."""
    for name, wait in WAITS.items():
        mark = f"{path}.{name}"
        if hvd.rank() == 0:
            signal.signal(signal.SIGALRM, lambda *_, mark=mark: Path(mark).touch())
            signal.setitimer(signal.ITIMER_REAL, 0.2)
        wait(mark)
        assert Path(mark).exists()
        hvd.barrier()
    return True


def interrupt_a_wait(path):
    handle = hvd.allreduce_async(torch.ones(2), name="late", op=hvd.Sum) if hvd.rank() == 0 else None
    if hvd.rank() == 0:
        signal.signal(signal.SIGALRM, signal.default_int_handler)  # as Ctrl-C
        with pytest.raises(KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            hvd.synchronize(handle)
        Path(path).touch()
    else:
        assert await_file(path)
        handle = hvd.allreduce_async(torch.ones(2), name="late", op=hvd.Sum)
    return hvd.synchronize(handle).tolist()


def test_signals_are_handled_while_a_collective_waits(start, tmp_path):
    cluster = start(2)
    assert all(cluster.run(wait_with_a_signal, str(tmp_path / "mark")))
    assert cluster.run(interrupt_a_wait, str(tmp_path / "interrupted")) == [[2, 2], [2, 2]]
