"""torch.distributed with backend="deft": DDP, collectives, subgroups, and what goes wrong."""

import datetime
import hashlib
import os
import re
import signal
from types import SimpleNamespace

import deft.torch as hvd
import pytest
import torch
import torch.distributed as dist
from c10d_groups import close_group, count_groups, open_group
from deft.torch import c10d_backend, ddp_buckets
from deft.torch.c10d_work import DeftWork
from launching import free_port, run_ranks, torchrun_variables
from torch.distributed._functional_collectives import (
    all_gather_into_tensor_coalesced,
    all_reduce,
    reduce_scatter_tensor_coalesced,
)

STEPS = 8


def test_a_bucket_with_most_gradients_is_hinted_at():
    hint = ddp_buckets.hint_at_large_bucket([1 << 20, 16 << 20])
    assert "16.8 of 17.8 MB" in hint
    assert "bucket_cap_mb=5" in hint
    assert not ddp_buckets.hint_at_large_bucket([5 << 20] * 4)
    assert not ddp_buckets.hint_at_large_bucket([1 << 20]), "it is sent in no time"


def default_sizes(port, second):
    """DDP's sizes of a bucket: over Deft, over Deft if the script asks for 25 MiB, and over gloo afterwards."""
    wrap, sizes = torch.nn.parallel.DistributedDataParallel, []
    open_group(port)
    sizes += [wrap(network()).bucket_bytes_cap, wrap(network(), bucket_cap_mb=25).bucket_bytes_cap]
    close_group()
    open_group(second, "gloo", "b")
    sizes.append(wrap(network()).bucket_bytes_cap)
    close_group()
    return sizes


def test_ddp_has_finer_buckets_by_default_while_the_backend_lives(start):
    for sizes in start(2).run(default_sizes, free_port(), free_port()):
        assert sizes == [5 << 20, 25 << 20, 25 << 20]


def test_a_timeout_bounds_the_waits(monkeypatch):
    with pytest.raises(dist.DistBackendError, match=r"^all_reduce did not end within 0\.01 s"):
        DeftWork([torch.ones(1)], "all_reduce", 0.01).wait()
    default, given = (SimpleNamespace(timeout=datetime.timedelta(seconds=seconds)) for seconds in (1800, 77))
    assert c10d_backend._stall_timeout(default) == {}
    assert c10d_backend._stall_timeout(given) == {"stall_timeout": "77.0s"}
    monkeypatch.setenv("DEFT_STALL_TIMEOUT", "5m")
    assert c10d_backend._stall_timeout(given) == {}


def every_collective(port):
    open_group(port, timeout=datetime.timedelta(seconds=77))
    rank, size = dist.get_rank(), dist.get_world_size()
    assert (rank, size, dist.get_backend()) == (hvd.rank(), hvd.size(), "deft")
    reductions(rank, size)
    methods_of_groups(rank, size)
    moves(rank, size)
    asynchronous(rank, size)
    subgroups(rank, size)
    dist.barrier()
    dist.destroy_process_group()
    assert hvd.is_initialized(), "the session was opened by hvd.init()"
    return True


def reductions(rank, size):
    ops = {"SUM": sum, "MIN": min, "MAX": max, "PRODUCT": lambda v: torch.stack(v).prod(0)}
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8):
        for name, reduce in ops.items():
            each = [(torch.arange(6) % 3 + 1 + r).to(dtype) for r in range(size)]
            expected = reduce(each) if name in ("SUM", "PRODUCT") else getattr(torch.stack(each), f"a{name.lower()}")(0)
            x = each[rank].clone()
            dist.all_reduce(x, op=getattr(dist.ReduceOp, name))
            assert torch.equal(x, expected.to(dtype)), (dtype, name, x)
    x = torch.full((3, 2), rank + 1.0)
    dist.all_reduce(x, op=dist.ReduceOp.AVG)
    assert torch.equal(x, torch.full((3, 2), (size + 1) / 2))
    for dtype in (torch.int64, torch.int8):
        x = torch.tensor([-1 - rank, rank], dtype=dtype)
        dist.all_reduce(x, op=dist.ReduceOp.AVG)
        assert x.tolist() == [-((size + 1) // 2), (size - 1) // 2], "rounded towards zero"
    large = torch.full((3,), 60000.0, dtype=torch.float16)
    dist.all_reduce(large, op=dist.ReduceOp.AVG)
    assert large.tolist() == [60000] * 3
    for op, expected in (("BOR", (1 << size) - 1), ("BAND", 0), ("BXOR", (1 << size) - 1)):
        bits = torch.tensor([1 << rank], dtype=torch.int16)
        dist.all_reduce(bits, op=getattr(dist.ReduceOp, op))
        assert bits.item() == expected, op
    with pytest.raises(RuntimeError, match="non-integral"):
        dist.all_reduce(torch.ones(1), op=dist.ReduceOp.BAND)
    for op, expected in (("MAX", True), ("BOR", True), ("SUM", True), ("MIN", False), ("PRODUCT", False)):
        truth = torch.tensor([rank == 0])
        dist.all_reduce(truth, op=getattr(dist.ReduceOp, op))
        assert truth.item() is expected, op
    for op, expected in (("SUM", sum(range(1, size + 1))), ("AVG", (size + 1) // 2)):
        x = torch.full((2, 3), rank + 1, dtype=torch.int16)[:, ::2]
        dist.all_reduce(x, op=getattr(dist.ReduceOp, op))
        assert x.tolist() == [[expected] * 2] * 2, op
    turned = torch.full((2,), 1j) ** (rank + 1)
    dist.group.WORLD.allreduce([turned], dist.ReduceOp.PRODUCT).wait()
    assert torch.allclose(turned, torch.full((2,), 1j) ** sum(range(1, size + 1)))
    transposed = torch.arange(6.0).reshape(2, 3).t()
    dist.all_reduce(transposed)
    assert torch.equal(transposed, torch.arange(6.0).reshape(2, 3).t() * size)
    for op, factor in ((dist.ReduceOp.SUM, size), (dist.ReduceOp.AVG, 1)):
        table = torch.arange(6.0).reshape(3, 2)
        dist.all_reduce(table[:, 1], op)
        assert torch.equal(table, torch.tensor([1, factor]) * torch.arange(6.0).reshape(3, 2))
    dist.all_reduce(torch.empty(0))
    x = torch.tensor([rank + 1.0])
    dist.reduce(x, 1)
    assert rank != 1 or x.item() == size * (size + 1) / 2


def methods_of_groups(rank, size):
    """What a script may call without torch.distributed's functions."""
    group, options = dist.group.WORLD, dist.AllreduceOptions()
    options.reduceOp = dist.ReduceOp.MAX
    total, largest = sum(range(size)), size - 1
    for call, expected in (
        (group.allreduce, total),
        (lambda x: group.allreduce(x, dist.ReduceOp.MAX), largest),
        (lambda x: group.allreduce([x], op=dist.ReduceOp.MAX), largest),
        (lambda x: group.allreduce([x], options), largest),
        (lambda x: group.allreduce(x, dist.ReduceOp.PRODUCT, datetime.timedelta(seconds=30)), 0),
        (lambda x: group.broadcast(x, 1), 1),
    ):
        x = torch.full((3,), float(rank))
        call(x).wait()
        assert x.tolist() == [expected] * 3


def moves(rank, size):
    x = torch.full((2,), float(rank))
    dist.broadcast(x, 1)
    assert x.tolist() == [1, 1]
    parts = [torch.empty(2) for _ in range(size)]
    dist.all_gather(parts, torch.full((2,), float(rank)))
    assert [part[0].item() for part in parts] == list(range(size))
    whole = torch.empty(2 * size)
    dist.all_gather_into_tensor(whole, torch.full((2,), float(rank)))
    assert torch.equal(whole, torch.cat(parts))
    share = torch.empty(2)
    dist.reduce_scatter_tensor(share, torch.arange(2.0 * size))
    assert torch.equal(share, torch.arange(2.0 * size)[2 * rank : 2 * rank + 2] * size)
    dist.reduce_scatter(share, list(torch.arange(2.0 * size).split(2)))
    assert torch.equal(share, torch.arange(2.0 * size)[2 * rank : 2 * rank + 2] * size)
    out = torch.empty(size)
    dist.all_to_all_single(out, torch.arange(float(size)) + 10 * rank)
    assert out.tolist() == [10 * r + rank for r in range(size)]
    lists = [torch.empty(1) for _ in range(size)]
    dist.all_to_all(lists, [torch.tensor([10.0 * rank + r]) for r in range(size)])
    assert [piece.item() for piece in lists] == [10 * r + rank for r in range(size)]
    dist.gather(x + rank, parts if rank == 0 else None, dst=0)
    assert rank != 0 or [part[0].item() for part in parts] == [1 + r for r in range(size)]
    dist.scatter(share, parts if rank == 0 else None, src=0)
    assert share.tolist() == [1 + rank] * 2
    if rank == 0:
        dist.send(torch.tensor([7.0]), 1)
        assert [work.wait() for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, x, 1)])]
    elif rank == 1:
        received = torch.empty(1)
        dist.recv(received, 0)
        assert received.item() == 7
        assert [work.wait() for work in dist.batch_isend_irecv([dist.P2POp(dist.irecv, x, 0)])]
    objects = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": r} for r in range(size)]
    objects = [{"from": rank}]
    dist.broadcast_object_list(objects, src=1)
    assert objects == [{"from": 1}]


def asynchronous(rank, size):
    tensors = [torch.full((1000,), float(rank + i)) for i in range(20)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    assert works[0]._limit_s == 77, "as init_process_group was told"
    dist.distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=66))
    works.append(dist.all_reduce(torch.ones(1), async_op=True))
    assert works[-1]._limit_s == 66
    for i in reversed(range(20)):
        assert works[i].wait() and works[i].is_completed()
        assert tensors[i][0].item() == sum(range(size)) + i * size
        assert works[i].get_future().wait()[0] is tensors[i]
    doubled = dist.all_reduce(torch.ones(2), async_op=True).get_future().then(lambda done: done.value()[0] * 2)
    assert doubled.wait().tolist() == [2 * size] * 2


def subgroups(rank, size):
    pairs = [dist.new_group([first, first + 1]) for first in range(0, size, 2)]
    mine = pairs[rank // 2]
    x = torch.tensor([float(rank)])
    dist.all_reduce(x, group=mine)
    assert x.item() == 2 * (rank // 2 * 2) + 1
    alone = dist.new_group([0])
    if rank == 0:
        dist.all_reduce(x, group=alone)
    same = dist.new_group(list(range(size)))
    y = torch.tensor([1.0])
    dist.all_reduce(y, group=same)
    assert y.item() == size
    swapped = dist.new_group([1, 0, *range(2, size)], sort_ranks=False, timeout=datetime.timedelta(seconds=30))
    dist.all_reduce(y, group=swapped)
    assert y.item() == size * size
    coalesced = [torch.ones(2), torch.ones(1)]
    dist.all_reduce_coalesced(coalesced, group=same)
    assert coalesced[0].tolist() == [size] * 2
    assert all_reduce(torch.ones(3), "sum", same).tolist() == [size] * 3
    gathered = all_gather_into_tensor_coalesced([torch.ones(2), torch.zeros(1) + rank], same)
    assert gathered[0].tolist() == [1] * 2 * size and gathered[1].tolist() == list(range(size))
    (scattered,) = reduce_scatter_tensor_coalesced([torch.arange(1.0 * size)], "sum", [0], same)
    assert scattered.tolist() == [rank * size]


def test_every_collective_and_subgroup(start):
    assert start(2).run(every_collective, free_port(), workers=4) == [True] * 4


def unlike(a, b):
    """`a` on rank 0, `b` elsewhere."""
    return a if dist.get_rank() == 0 else b


def disagreements(port):
    """What ranks ask for differently is the same error on all, and the job goes on. A subgroup waits for its ranks."""
    open_group(port)
    texts = []
    for shape, op in (
        (unlike((6,), (2, 3)), dist.ReduceOp.SUM),
        ((6,), unlike(dist.ReduceOp.SUM, dist.ReduceOp.AVG)),
        (unlike((6,), (5,)), dist.ReduceOp.MAX),
        (unlike((0,), (6,)), dist.ReduceOp.SUM),
        ((6,), unlike(dist.ReduceOp.SUM, dist.ReduceOp.PRODUCT)),
        (unlike((6,), (2, 3)), dist.ReduceOp.PRODUCT),
        (unlike((6,), (0,)), dist.ReduceOp.PRODUCT),
    ):
        with pytest.raises(dist.DistBackendError) as error:
            dist.all_reduce(torch.ones(shape), op)
        texts.append(str(error.value))
    for dtype, op in (
        (unlike(torch.int32, torch.int16), dist.ReduceOp.SUM),
        (unlike(torch.int16, torch.uint16), dist.ReduceOp.SUM),
        (torch.int64, unlike(dist.ReduceOp.BAND, dist.ReduceOp.BOR)),
    ):
        with pytest.raises(dist.DistBackendError) as error:
            dist.all_reduce(torch.ones(6).to(dtype), op)
        texts.append(str(error.value))
    c10d_backend._WARN_AFTER_S = 0.0
    if dist.get_rank() == 0:
        with pytest.raises(dist.DistBackendError) as error:
            dist.new_group([0, 1], timeout=datetime.timedelta(seconds=1))
        texts.append(str(error.value))
    x = torch.ones(2, 2) if dist.get_rank() == 0 else torch.ones(2, 2).t()
    dist.all_reduce(x)
    assert x.tolist() == [[2, 2], [2, 2]], "the job goes on, and ranks may have other strides"
    close_group()
    return texts


def test_what_ranks_ask_for_differently_is_an_error_that_names_them(start):
    cluster = start(2)
    (*first, missing), second = cluster.run(disagreements, free_port())
    assert first == second, "the same text on all ranks"
    expected = (
        r"Sum, shape \[6\].*Sum, shape \[2, 3\]",
        "Sum, shape.*Average, shape",
        "6 .* 5 ",
        r"\[0\].*\[6\]",
        r"Sum, shape.*Product of torch\.float32, shape",
        r"shape \[6\].*shape \[2, 3\]",
        r"shape \[6\].*shape \[0\]",
        r"6 int32 \(sum\).*Sum of torch\.int16",
        r"torch\.int16.*torch\.uint16",
        "BAND of.*BOR of",
    )
    for text, differing in zip(first, expected, strict=True):
        assert re.search(f"{differing}.* on rank 1", text), text
    assert missing == (
        "new_group([0, 1]): rank 1 did not make this group within 1 s; all ranks of the job call new_group, also those "
        "outside the group, and in the same order"
    )
    said = (cluster.folder / f"job{cluster.jobs}.rank0.log").read_text()
    assert said.count("new_group([0, 1]): rank 1 has not made this group yet") == 1, said


def network():
    torch.manual_seed(3)
    return torch.nn.Sequential(
        torch.nn.Linear(20, 400),
        torch.nn.BatchNorm1d(400),
        torch.nn.ReLU(),
        torch.nn.Linear(400, 900),
        torch.nn.ReLU(),
        torch.nn.Linear(900, 5),
    )


def digest(model):
    return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()


def train_ddp(backend, port, hook=None, **options):
    """Losses, a hash of the parameters, and how many groups were declared. DDP rebuilds its buckets once."""
    with count_groups() as declared:
        losses, model = train_network(backend, port, hook, **options)
    return losses, digest(model), len(declared)


def train_network(backend, port, hook, **options):
    open_group(port, backend)
    model = torch.nn.parallel.DistributedDataParallel(network(), bucket_cap_mb=0.3, **options)
    if hook is not None:
        model.register_comm_hook(None, hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    samples = torch.Generator().manual_seed(hvd.rank())
    losses = []
    for step in range(STEPS):
        inputs = torch.randn(16, 20, generator=samples)
        optimizer.zero_grad()
        if step == 4 and "static_graph" not in options:
            with model.no_sync():
                torch.nn.functional.cross_entropy(model(inputs), inputs[:, :5].argmax(1)).backward()
        loss = torch.nn.functional.cross_entropy(model(inputs), inputs[:, :5].argmax(1))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    close_group()
    return losses, model


@pytest.fixture(scope="module")
def over_gloo(start):
    return start(2).run(train_ddp, "gloo", free_port())


@pytest.mark.parametrize("policy", ["fifo", "bytescheduler", "knapsack"])
def test_ddp_gives_the_losses_that_it_gives_over_gloo(start, over_gloo, policy):
    cluster = start(2, policy=policy, compression="none")
    (first, one, groups), (second, other, _) = cluster.run(train_ddp, "deft", free_port())
    assert one == other, "replicas differ"
    assert groups == 1, "the policy schedules the buckets from the second or third pass on"
    said = (cluster.folder / f"job{cluster.jobs}.rank0.log").read_text()
    assert ("plans no late updates" in said) == (policy == "knapsack"), said
    assert [first, second] == [pytest.approx(losses, rel=1e-5) for losses, _, _ in over_gloo]


def train_static(backend, port):
    return train_ddp(backend, port, static_graph=True, gradient_as_bucket_view=True)


def test_a_static_graph_and_gradients_that_lie_in_buckets(start):
    expected = start(2).run(train_static, "gloo", free_port())
    found = start(2).run(train_static, "deft", free_port())
    assert found[0][1] == found[1][1], "replicas differ"
    assert found[0][2] > 0, "the policy did not schedule the buckets"
    assert [losses for losses, _, _ in found] == [pytest.approx(losses, rel=1e-5) for losses, _, _ in expected]


def test_ddp_with_a_codec_keeps_replicas_equal_and_learns_as_without(start, over_gloo):
    (first, one, _), (_, other, _) = start(2, compression="int8").run(train_ddp, "deft", free_port())
    assert one == other, "replicas differ"
    assert first != over_gloo[0][0], "nothing was compressed"
    assert first == pytest.approx(over_gloo[0][0], rel=0.05)


@pytest.mark.parametrize("backend", ["deft", "gloo"])
def test_the_hook_gives_the_losses_that_ddp_gives_over_gloo(start, over_gloo, backend):
    cluster = start(2, policy="bytescheduler")
    (first, one, groups), (second, other, _) = cluster.run(train_ddp, backend, free_port(), hvd.ddp_hook)
    assert one == other, "replicas differ"
    assert groups == 1
    assert [first, second] == [pytest.approx(losses, rel=1e-5) for losses, _, _ in over_gloo]


class Reversed(torch.nn.Module):
    """Its parameters are used in the reverse of their order, so DDP's buckets change after the first backward."""

    def __init__(self):
        super().__init__()
        self.parts = torch.nn.ParameterList(torch.zeros(60, 100 + i) for i in range(4))

    def forward(self, slopes):
        return sum((part * slope).sum() for part, slope in zip(reversed(self.parts), reversed(slopes)))


def add_up_constant_gradients(port):
    """What 40 updates by topk of one value in ten bring, relative to all that they should bring; and the buckets."""
    open_group(port)
    chance = torch.Generator().manual_seed(1)
    slopes = [torch.rand(60, 100 + i, generator=chance) + 0.5 for i in range(4)]
    model = torch.nn.parallel.DistributedDataParallel(Reversed(), bucket_cap_mb=0.03)
    seen = []

    def hook(state, bucket):
        seen.append([tuple(parameter.shape) for parameter in bucket.parameters()])
        return hvd.ddp_hook(state, bucket)

    model.register_comm_hook(None, hook)
    for _ in range(40):
        model.zero_grad()
        model([slope * (1 + hvd.rank()) for slope in slopes]).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.sub_(parameter.grad)
    worst = max((part / (-60 * slope) - 1).abs().max().item() for part, slope in zip(model.module.parts, slopes))
    close_group()
    return worst, seen[:4], seen[-4:]


def test_what_a_codec_leaves_out_stays_with_its_parameter(start):
    results = start(2, compression="topk/ratio=0.1").run(add_up_constant_gradients, free_port())
    worst, first, last = results[0]
    assert results[0] == results[1]
    assert first != last, "DDP has not rebuilt its buckets"
    assert 0.001 < worst < 0.5  # without residuals most values would not have moved at all


SCRIPT = """
import os, sys, time, torch, torch.distributed as dist
import deft.torch
dist.init_process_group(sys.argv[1])
rank = dist.get_rank()
x = torch.ones(4)
dist.all_reduce(x)
assert x.tolist() == [dist.get_world_size()] * 4
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
for step in range(2000):
    if len(sys.argv) > 2 and step == 5 and rank == 1:
        os.kill(os.getpid(), 9)
    try:
        model(x).sum().backward()
    except RuntimeError as error:
        print(f"{type(error).__name__}: {error}")
        sys.exit(7)
    if len(sys.argv) == 2 and step == 5:
        break
dist.destroy_process_group()
assert not deft.torch.is_initialized()
dist.init_process_group(sys.argv[1], store=dist.FileStore(os.environ["STORE"], 2), rank=rank, world_size=2)
dist.all_reduce(x)
assert x.tolist() == [4] * 4
print("done")
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return path


def test_a_script_needs_only_another_backend_and_a_killed_worker_is_an_error(start, script, monkeypatch, tmp_path):
    cluster = start(2)
    monkeypatch.setenv("STORE", str(tmp_path / "store"))
    for status, output in cluster.run_as_torchrun(script, "cpu:deft"):
        assert (status, output) == (0, "done\n")
    (zero, output), (one, _) = cluster.run_as_torchrun(script, "deft", "die")
    assert (zero, one) == (7, -signal.SIGKILL), output
    assert re.search(r"Error: .*rank 1", output, re.DOTALL), output


def test_without_a_daemon_the_error_says_how_to_start_one(script, tmp_path):
    environment = {
        **os.environ,
        **torchrun_variables(0, 1, 1, free_port()),
        "DEFT_SOCKET": str(tmp_path / "none.sock"),
        "DEFT_TIMEOUT": "1s",
    }
    [(status, output)] = run_ranks([script, "deft"], [environment])
    assert status == 1
    assert "DistBackendError" in output and "deftd" in output and "start" in output, output
