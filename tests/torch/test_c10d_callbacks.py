"""backend="deft": what callbacks of futures may do, reductions that a thread of libdeft ends, and groups made anew."""

import datetime
import itertools
import os
import threading
from types import SimpleNamespace

import deft.torch as hvd
import pytest
import torch
import torch.distributed as dist
from c10d_groups import close_group, open_group
from deft.torch import c10d_backend
from deft.torch.c10d_futures import CallbackThreads, Origin, next_name
from deft.torch.c10d_work import DeftWork
from launching import PACKAGE, free_port, run_ranks
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

SOON = datetime.timedelta(seconds=60)  # what would hang for ever ends by then


# ---- without daemons


def test_a_call_that_waits_for_the_next_one_does_not_stop_it():
    threads, ended, all_over = CallbackThreads(), [threading.Event() for _ in range(5)], threading.Event()
    for one, other in itertools.pairwise(ended):
        threads.run(lambda one=one, other=other: other.wait(60) and one.set())
    threads.run(ended[-1].set)
    threads.run(all_over.set)
    assert ended[0].wait(60) and all_over.wait(60)


def test_the_end_of_the_process_waits_for_calls_under_way():
    threads, (began, closes, may_end), order = CallbackThreads(), [threading.Event() for _ in range(3)], []

    def call():
        began.set()
        may_end.wait(60)
        order.append("called")

    def close():
        closes.set()
        threads.close(60)
        order.append("closed")

    threads.run(call)
    closing = threading.Thread(target=close)
    assert began.wait(60)
    closing.start()
    assert closes.wait(60)
    may_end.set()
    closing.join(60)
    assert order == ["called", "closed"]
    threads.run(lambda: order.append("late"))
    assert threads._calls.empty()


def test_what_ends_a_reduction_may_fail():
    work = DeftWork([torch.ones(1)], "all_reduce", 60)
    work.end_after(None, lambda: 1 / 0)
    with pytest.raises(dist.DistBackendError, match="division by zero"):
        work.wait()
    with pytest.raises(RuntimeError, match="division by zero"):
        work.get_future().wait()


def test_reductions_of_callbacks_are_named_after_the_one_that_calls_back():
    """The same, whether a callback runs when its future gets its value, or at once because it has one."""
    names = []
    for value_comes_first in (False, True):
        future, numbers, mine = torch.futures.Future(), itertools.count(7), []
        Origin("first").follow(future)
        if value_comes_first:
            future.set_result(None)
        then = future.then(lambda _, mine=mine, numbers=numbers: mine.append(next_name("main", numbers)))
        then.then(lambda _, mine=mine, numbers=numbers: mine.append(next_name("main", numbers)))
        future.add_done_callback(lambda _, mine=mine, numbers=numbers: mine.append(next_name("main", numbers)))
        if not value_comes_first:
            future.set_result(None)
        mine.append(next_name("main", numbers))
        names.append(sorted(mine))
    assert names == [["first.1", "first.2", "first.3", "main.7"]] * 2


def test_a_group_does_not_see_the_keys_of_an_earlier_one_of_its_name():
    """new_group(use_local_synchronization=True) names a group after its ranks."""
    kept = dist.HashStore()

    def store_of(rank, ranks):
        options = SimpleNamespace(store=kept, group_rank=rank, global_ranks_in_group=ranks)
        return c10d_backend._store_without_the_past(options)

    for ranks in ([], [0, 1]):
        store_of(0, ranks).set("address", "old")
        store_of(1, ranks)
        first, second = store_of(0, ranks), store_of(1, ranks)
        assert not second.check(["address"])
        first.set("address", "new")
        assert second.get("address") == b"new"


# ---- in a job


def averages_in_inference_mode(port):
    open_group(port, timeout=SOON)
    with torch.inference_mode():
        x = torch.full((3,), hvd.rank() + 1.0)
        dist.all_reduce(x, op=dist.ReduceOp.AVG)
    close_group()
    return x.tolist()


def test_an_average_in_inference_mode(start):
    assert start(2).run(averages_in_inference_mode, free_port()) == [[1.5] * 3] * 2


def reduce_in_callbacks(port):
    """Each callback starts a reduction and waits for it, while the main thread starts others."""
    open_group(port, timeout=SOON)
    futures, rounds = [], 20

    def reduce_again(done):
        x = done.value()[0].clone()
        dist.all_reduce(x)
        return dist.all_reduce(x, async_op=True).get_future().wait()[0]

    def reduce_ones(_done):
        return dist.all_reduce(torch.ones(3), async_op=True).get_future().wait()[0][0].item()

    for number in range(rounds):
        empty = dist.all_reduce(torch.empty(0), async_op=True)
        futures.append(empty.get_future().then(reduce_ones))
        work = dist.all_reduce(torch.full((number + 1,), 1.0), async_op=True)
        if number % 5 == hvd.rank():
            work.wait()  # so on this rank alone the future has its value
        futures.append(work.get_future().then(reduce_again).then(lambda done: done.value()[0].item()))
    found = [future.wait() for future in futures]
    close_group()
    return found == [2.0, 8.0] * rounds


def test_a_callback_may_wait_for_another_reduction(start):
    assert start(2).run(reduce_in_callbacks, free_port()) == [True] * 2


def train_by_power_sgd(backend, port, bucket_mb):
    open_group(port, backend, timeout=SOON)
    torch.manual_seed(3)
    layers = torch.nn.Sequential(torch.nn.Linear(20, 90), torch.nn.Tanh(), torch.nn.Linear(90, 50))
    model = torch.nn.parallel.DistributedDataParallel(layers, bucket_cap_mb=bucket_mb)
    model.register_comm_hook(PowerSGDState(None, start_powerSGD_iter=2, min_compression_rate=0.5), powerSGD_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    samples, losses = torch.Generator().manual_seed(hvd.rank()), []
    for _ in range(6):
        optimizer.zero_grad()
        loss = (model(torch.randn(16, 20, generator=samples)) - 1).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    weights = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()]).tolist()
    close_group()
    return losses, weights


def test_power_sgd_gives_the_losses_that_it_gives_over_gloo(start):
    found = start(2).run(train_by_power_sgd, "deft", free_port(), 25)
    expected = start(2).run(train_by_power_sgd, "gloo", free_port(), 25)
    assert found[0][1] == found[1][1], "replicas differ"
    assert [losses for losses, _ in found] == [pytest.approx(losses, rel=1e-4) for losses, _ in expected]


def test_power_sgd_with_several_buckets(start):
    """Their callbacks run while backward starts further reductions."""
    (losses, one), (_, other) = start(2).run(train_by_power_sgd, "deft", free_port(), 0.005)
    assert one == other, "replicas differ"
    assert losses[-1] < losses[0]


# ---- what is not for it


def hook_of_a_pair(port):
    open_group(port, timeout=SOON)
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    hvd.DdpState(dist.group.WORLD)
    with pytest.raises(ValueError, match="all 4 ranks of Deft's job, and the process group has 2"):
        hvd.DdpState(pairs[hvd.rank() // 2])
    dist.barrier()  # rank 0 has the store
    close_group()
    return True


def test_the_hook_is_for_all_ranks(start):
    assert start(2).run(hook_of_a_pair, free_port(), workers=4) == [True] * 4


def backward_after_the_session(port):
    """The reducer of a model lives on; the memory of its gradients' arena does not."""
    open_group(port, timeout=SOON)
    models = [torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4)) for _ in range(2)]
    for _ in range(4):
        for model in models:
            model(torch.ones(4)).sum().backward()
    hvd.shutdown()
    with pytest.raises(RuntimeError, match="the session was closed"):
        models[1](torch.ones(4)).sum().backward()
    return True


def test_a_backward_after_the_session_is_an_error(start):
    assert start(2).run(backward_after_the_session, free_port()) == [True] * 2


# ---- groups made anew


def make_groups_anew(port):
    open_group(port, timeout=SOON)
    counts = []
    for _ in range(12):
        group = dist.new_group([0, 1])
        dist.barrier(group)
        dist.destroy_process_group(group)
        del group
        counts.append(len(os.listdir("/proc/self/fd")))
    close_group()
    return counts[1], counts[-1]


def test_a_destroyed_group_gives_its_connections_back(start):
    for first, last in start(2).run(make_groups_anew, free_port()):
        assert last <= first


ANEW = """
import datetime, sys, torch, torch.distributed as dist
import deft.torch
for round in range(3):
    dist.init_process_group("deft", timeout=datetime.timedelta(seconds=60))
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))  # which keeps its group
    group = dist.new_group([0, 1])
    found = [None] * 2
    dist.all_gather_object(found, (round, dist.get_rank()), group)
    assert found == [(round, 0), (round, 1)], found
    x = torch.ones(3)
    dist.all_reduce(x)
    model(torch.ones(4)).sum().backward()
    dist.destroy_process_group()
print("done")
"""


def test_a_script_may_begin_anew_with_the_same_variables(start, tmp_path):
    """Rank 0's store outlives its groups, with their keys."""
    script = tmp_path / "script.py"
    script.write_text(ANEW)
    assert start(2).run_as_torchrun(script) == [(0, "done\n")] * 2


def fail_to_begin(port):
    """gloo cannot start: nothing of Deft is left, and another try works."""
    hvd.shutdown()
    plain, dist.ProcessGroupGloo = dist.ProcessGroupGloo, None
    store = dist.TCPStore("127.0.0.1", port, 1, is_master=True)
    with pytest.raises(TypeError):
        dist.init_process_group("deft", store=store, rank=0, world_size=1)
    left = hvd.is_initialized(), torch.nn.parallel.distributed._DEFAULT_BUCKET_CAP_MB
    dist.ProcessGroupGloo = plain
    dist.init_process_group("deft", store=store, rank=0, world_size=1)
    assert hvd.is_initialized()
    dist.destroy_process_group()
    return left, hvd.is_initialized()


def test_a_group_that_cannot_begin_leaves_nothing(start):
    assert start(1).run(fail_to_begin, free_port(), workers=1) == [((False, 25), False)]


GIVEN = """
import os, sys, torch, torch.distributed as dist
import deft.torch
rank = int(os.environ["GIVEN_RANK"])
dist.init_process_group("deft", init_method="file://" + sys.argv[1], rank=rank, world_size=2)
x = torch.ones(2)
dist.all_reduce(x)
print(x.tolist(), deft.torch.local_rank(), deft.torch.local_size())
dist.destroy_process_group()
"""


def test_given_ranks_count_if_variables_say_others(start, tmp_path):
    """In the shell of a Slurm job each process has the variables of one task."""
    cluster, script = start(1), tmp_path / "script.py"
    script.write_text(GIVEN)
    environment = {
        **os.environ,
        **cluster.environment,
        "DEFT_SOCKET": cluster.socket(0),
        "DEFT_LEADER": cluster.addresses[0],
        "PYTHONPATH": str(PACKAGE),
        "SLURM_PROCID": "0",
        "SLURM_NTASKS": "1",
        "SLURM_LOCALID": "0",
    }
    given = [environment | {"GIVEN_RANK": str(rank)} for rank in range(2)]
    said = [output for _, output in run_ranks([script, tmp_path / "store"], given)]
    assert said == [f"[2.0, 2.0] {rank} 2\n" for rank in range(2)]
