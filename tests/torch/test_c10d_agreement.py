"""What ranks ask gloo for through the backend "deft": if they differ, all get the same error, and the job goes on."""

import datetime
import os
import re
import signal

import pytest
import torch
import torch.distributed as dist
from c10d_groups import close_group, open_group
from deft.torch.c10d_gloo import GlooWork
from launching import WorkerFailed, free_port


def unlike(a, b):
    """`a` on rank 0, `b` elsewhere."""
    return a if dist.get_rank() == 0 else b


def call_unlike(first, other):
    unlike(first, other)()


def zeros(*counts):
    return [torch.zeros(count) for count in counts]


def at_root(root, tensors):
    return tensors if dist.get_rank() == root else None


def exchange(sends, takes):
    """all_to_all_single with these rows for and from each rank."""
    dist.all_to_all_single(torch.zeros(sum(takes), 2), torch.zeros(sum(sends), 2), takes, sends)


SPARSE = torch.sparse_coo_tensor([[1]], [1.0], (3,), check_invariants=True)
# What ranks do, and what the error says of rank 0 and of rank 1.
MISTAKES = {
    "broadcast, size": (
        lambda: dist.broadcast(torch.zeros(unlike(6, 4)), 0),
        "broadcast of 6 float32, root 0",
        "of 4 f",
    ),
    "broadcast, root": (lambda: dist.broadcast(torch.zeros(3), unlike(0, 1)), "root 0", "root 1"),
    "broadcast, dtype": (
        lambda: dist.broadcast(torch.zeros(3, dtype=unlike(torch.float32, torch.int32)), 0),
        "3 float32",
        "3 int32",
    ),
    "reduce, size": (lambda: dist.reduce(torch.zeros(unlike(2, 3)), 1), "reduce of 2 float32, SUM, root 1", "of 3 f"),
    "reduce, op": (
        lambda: dist.reduce(torch.zeros(2), 0, unlike(dist.ReduceOp.SUM, dist.ReduceOp.MAX)),
        "SUM, root 0",
        "MAX, root 0",
    ),
    "all_gather": (
        lambda: dist.all_gather(zeros(*[unlike(2, 3)] * 2), torch.zeros(unlike(2, 3))),
        "all_gather of 2 float32",
        "all_gather of 3 float32",
    ),
    "all_gather, too little room on one rank": (
        lambda: dist.all_gather(zeros(*unlike((2, 2), (2, 1))), torch.zeros(2)),
        "all_gather of 2 float32",
        "all_gather of 2 float32 for 3 elements in all",
    ),
    "all_gather_into_tensor": (
        lambda: dist.all_gather_into_tensor(torch.zeros(unlike(4, 6)), torch.zeros(unlike(2, 3))),
        "all_gather_into_tensor of 2",
        "all_gather_into_tensor of 3",
    ),
    "gather, size": (
        lambda: dist.gather(torch.zeros(unlike(2, 3)), at_root(0, zeros(2, 2))),
        "gather of 2 float32, root 0",
        "gather of 3 float32, root 0",
    ),
    "gather, root": (
        lambda: dist.gather(torch.zeros(2), zeros(2, 2), unlike(0, 1)),
        "root 0",
        "root 1",
    ),
    "scatter": (
        lambda: dist.scatter(torch.zeros(unlike(2, 3)), at_root(0, zeros(2, 2))),
        "scatter of 2 float32, root 0",
        "scatter of 3 float32, root 0",
    ),
    "reduce_scatter": (
        lambda: dist.reduce_scatter(torch.zeros(unlike(2, 3)), zeros(*[unlike(2, 3)] * 2)),
        "reduce_scatter of 2 float32 and 2 float32, SUM",
        "reduce_scatter of 3 float32 and 3 float32, SUM",
    ),
    "reduce_scatter_tensor": (
        lambda: dist.reduce_scatter_tensor(torch.zeros(2), torch.zeros(unlike(4, 6))),
        "reduce_scatter_tensor of 2 float32, SUM",
        "reduce_scatter_tensor of 2 float32 for 6 elements in all, SUM",
    ),
    "all_reduce_coalesced": (
        lambda: dist.all_reduce_coalesced(zeros(2, unlike(1, 3))),
        "2 float32 and 1 float32, SUM",
        "2 float32 and 3 float32, SUM",
    ),
    "all_to_all": (
        lambda: dist.all_to_all(zeros(1, 2), zeros(1, unlike(3, 2))),
        "all_to_all of float32: rank 0 sends 3 elements to rank 1",
        "which takes 1",
    ),
    "all_to_all_single": (
        lambda: exchange([1, 2], unlike([1, 4], [3, 2])),
        "all_to_all of float32: rank 0 sends 4 elements to rank 1",
        "which takes 6",
    ),
    "all_to_all_single, splits of one rank": (
        lambda: dist.all_to_all_single(torch.zeros(4), torch.zeros(4), None, unlike(None, [1, 3])),
        "rank 1 sends 1 elements to rank 0",
        "which takes 2",
    ),
    "sparse and dense": (
        lambda: dist.all_reduce(unlike(SPARSE.clone(), torch.zeros(3))),
        "all_reduce by gloo of 3 float32, SUM",
        r"3 float32 \(sum\)",
    ),
    "other operations": (
        lambda: call_unlike(dist.barrier, lambda: dist.broadcast(torch.zeros(1), 0)),
        r"a barrier \(barrier\)",
        "broadcast of 1 float32",
    ),
    "a reduction and a gathering": (
        lambda: call_unlike(lambda: dist.all_reduce(torch.zeros(2)), lambda: dist.all_gather(zeros(2, 2), zeros(2)[0])),
        r"Sum, shape \[2\]",
        "all_gather of 2 float32",
    ),
}


FREQUENT = ("all_gather_into_tensor", "reduce_scatter_tensor")  # compared only if the user says so


def assert_all_works():
    rank, size = dist.get_rank(), dist.get_world_size()
    parts = zeros(*[2] * size)
    dist.all_gather(parts, torch.full((2,), float(rank)))
    assert [part.tolist() for part in parts] == [[other] * 2 for other in range(size)]
    x = torch.full((3,), float(rank))
    dist.broadcast(x, 1)
    dist.all_reduce(x)
    assert x.tolist() == [size] * 3


def make_mistakes(port):
    open_group(port, timeout=datetime.timedelta(seconds=20))
    texts = {}
    for name, (mistake, _, _) in MISTAKES.items():
        dist.set_debug_level(dist.DebugLevel.DETAIL if name in FREQUENT else dist.DebugLevel.OFF)
        with pytest.raises(dist.DistBackendError) as error:
            mistake()
        texts[name] = str(error.value)
        assert_all_works()
    close_group()
    return texts


def test_a_difference_is_the_same_error_on_all_ranks_and_the_job_goes_on(start):
    first, second = start(2).run(make_mistakes, free_port())
    assert first == second
    for name, (_, of_first, of_second) in MISTAKES.items():
        assert re.search(f"'c10d.*{of_first}.*{of_second}", first[name]), (name, first[name])


def ask_ahead(port):
    """A call waits for no rank, and operations begin in the order of the calls."""
    open_group(port, timeout=datetime.timedelta(seconds=20))
    rank = dist.get_rank()
    tensors = [torch.full((2,), 10.0 * i + rank) for i in range(8)]
    if rank == 0:
        works = [dist.broadcast(tensor, i % 2, async_op=True) for i, tensor in enumerate(tensors)]
        assert not works[0].is_completed()
        dist.send(torch.ones(1), 1)
    else:
        dist.recv(torch.empty(1), 0)
        works = [dist.broadcast(tensor, i % 2, async_op=True) for i, tensor in enumerate(tensors)]
    for i in reversed(range(8)):
        assert works[i].wait() and works[i].is_completed() and works[i].is_success()
        assert tensors[i].tolist() == [10 * i + i % 2] * 2
    assert works[3].get_future().wait()[0] is not None
    gathered = zeros(1, 1)
    doubled = dist.all_gather(gathered, torch.tensor([rank + 1.0]), async_op=True).get_future()
    assert [part.item() * 2 for part in doubled.then(lambda done: done.value()).wait()] == [2, 4]
    work = dist.all_gather_into_tensor(torch.zeros(2), torch.zeros(1), async_op=True)
    assert not isinstance(work, GlooWork), "FSDP2 would wait for each agreement"
    work.wait()
    wrong = [dist.broadcast(torch.zeros(unlike(1, 2)), 0, async_op=True), dist.barrier(async_op=True)]
    wrong[1].wait()
    for wait in (wrong[0].wait, wrong[0].get_future().wait):
        with pytest.raises(RuntimeError, match=r"broadcast of 1 float32.*broadcast of 2 float32"):
            wait()
    assert wrong[0].is_completed() and not wrong[0].is_success() and "broadcast" in str(wrong[0].exception())
    assert_all_works()
    close_group()
    return True


def test_operations_may_be_under_way(start):
    assert all(start(2).run(ask_ahead, free_port()))


def wait_too_long(port):
    open_group(port)
    if dist.get_rank() == 0:
        dist.distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=1))
        with pytest.raises(dist.DistBackendError, match=r"^broadcast of 1 float32, root 0 did not end within 1 s"):
            dist.broadcast(torch.zeros(1), 0)
        dist.send(torch.zeros(1), 1)
    else:
        dist.recv(torch.empty(1), 0)
        dist.broadcast(torch.zeros(1), 0)
    dist.distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=30))
    assert_all_works()
    close_group()
    return True


def test_a_rank_that_does_not_come_is_waited_for_as_long_as_the_timeout_says(start):
    assert all(start(2).run(wait_too_long, free_port()))


def die_before(port):
    open_group(port)
    assert_all_works()
    if dist.get_rank() == 1:
        os._exit(3)
    later = dist.broadcast(torch.zeros(1), 0, async_op=True)
    with pytest.raises(dist.DistBackendError, match=r"rank 1 \(pid \d+\) died"):
        dist.barrier()
    with pytest.raises(RuntimeError, match="died"):
        later.get_future().wait()
    raise ValueError("the others' error was seen")


def test_a_dead_rank_is_named_where_gloo_would_be_waited_for(start):
    with pytest.raises(WorkerFailed) as failed:
        start(2, timeout="10s").run(die_before, free_port())
    assert failed.value.errors[0] == "ValueError: the others' error was seen", failed.value.errors


def interrupt_a_wait(port):
    open_group(port)
    if dist.get_rank() == 0:
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        with pytest.raises(KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            dist.broadcast(torch.zeros(1), 0)
        dist.send(torch.zeros(1), 1)
    else:
        dist.recv(torch.empty(1), 0)
        dist.broadcast(torch.zeros(1), 0)
    assert_all_works()
    close_group()
    return True


def test_a_wait_for_other_ranks_can_be_interrupted(start):
    assert all(start(2).run(interrupt_a_wait, free_port()))


def differ_in_a_subgroup(port):
    """Each pair makes a mistake of its own; the ranks of the job are named, not their places in the pair."""
    open_group(port, timeout=datetime.timedelta(seconds=20))
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    rank = dist.get_rank()
    mine, first = pairs[rank // 2], rank // 2 * 2
    is_first, other = rank == first, first + 1
    texts = []
    for mistake in (
        lambda: dist.broadcast(torch.zeros(2 + rank), first, mine),
        lambda: dist.all_to_all(zeros(1, 2), zeros(1, 3 if is_first else 2), mine),
        lambda: dist.barrier(mine) if is_first else dist.reduce(torch.zeros(3), first, group=mine),
    ):
        with pytest.raises(dist.DistBackendError) as error:
            mistake()
        texts.append(str(error.value))
        assert_pair_works(mine, first)
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    with pytest.raises(dist.DistBackendError, match="all_gather_into_tensor of 2 float32"):
        dist.all_gather_into_tensor(torch.zeros(4 if is_first else 6), torch.zeros(2 if is_first else 3), mine)
    with pytest.raises(dist.DistBackendError, match=f"all_reduce by gloo of {2 + rank} float32, SUM"):
        dist.all_reduce(torch.zeros(2 + rank), group=mine)
    dist.set_debug_level(dist.DebugLevel.OFF)
    assert_pair_works(mine, first)
    assert_all_works()
    close_group()
    expected = [
        f"rank {first} for broadcast of {2 + first} float32, root 0; rank {other} for broadcast of {2 + other} float32",
        f"all_to_all of float32: rank {first} sends 3 elements to rank {other}, which takes 1",
        f"rank {first} for barrier; rank {other} for reduce of 3 float32, SUM, root 0",
    ]
    assert all(words in text for words, text in zip(expected, texts, strict=True)), texts
    return texts


def assert_pair_works(pair, first):
    x = torch.tensor([float(dist.get_rank())])
    dist.broadcast(x, first, pair)
    assert x.item() == first
    sums = [torch.full((2,), float(number)) for number in range(3)]
    works = [dist.all_reduce(one, group=pair, async_op=True) for one in sums]
    parts = zeros(1, 1)
    dist.all_gather(parts, torch.tensor([float(dist.get_rank())]), pair)
    for work in works:
        work.wait()
    assert [one.tolist() for one in sums] == [[2 * number] * 2 for number in range(3)]
    assert [part.item() for part in parts] == [first, first + 1]


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_difference_in_a_subgroup_is_the_same_error_on_its_ranks(start, nodes):
    texts = start(nodes).run(differ_in_a_subgroup, free_port(), workers=4)
    assert texts[0] == texts[1] and texts[2] == texts[3]


def cross_subgroups(port):
    """Ranks call two groups in different orders, and wait afterwards."""
    open_group(port, timeout=datetime.timedelta(seconds=20))
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    groups = [dist.new_group([0, 1, 2]), dist.new_group([0, 1, 2])]
    order = groups if dist.get_rank() == 0 else groups[::-1] if dist.get_rank() < 3 else []
    values = {group: torch.full((4,), float(groups.index(group) + 1)) for group in order}
    for work in [dist.all_reduce(values[group], group=group, async_op=True) for group in order]:
        work.wait()
    close_group()
    return [value.tolist() for _, value in sorted(values.items(), key=lambda item: groups.index(item[0]))]


def test_a_call_in_a_subgroup_waits_for_nobody(start):
    assert start(1).run(cross_subgroups, free_port(), workers=4) == [[[3.0] * 4, [6.0] * 4]] * 3 + [[]]
