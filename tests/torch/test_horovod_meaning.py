"""What Horovod's documentation says of its names, for one cluster of four ranks, and for two."""

import contextlib
import copy
import inspect
import itertools
import json
import math
import os
import pathlib
import shutil
import subprocess
import tempfile

import deft.compression
import deft.torch as hvd
import numpy as np
import pytest
import torch
from cluster import BUILD


def adasum_of(values):
    """The definition, in numpy: pairs of ranks first, then pairs of pairs."""
    values = [np.asarray(value, dtype=np.float64) for value in values]
    while len(values) > 1:
        reduced = []
        for a, b in zip(values[::2], values[1::2]):
            both, of_a, of_b = (a * b).sum(), (a * a).sum(), (b * b).sum()
            first = 1 - both / (2 * of_a) if of_a else 1.0
            second = 1 - both / (2 * of_b) if of_b else 1.0
            reduced.append(first * a + second * b)
        values = reduced
    return values[0]


def adasum():
    def draw(rank, shape, dtype):
        return torch.randn(shape, generator=torch.Generator().manual_seed(rank)).to(dtype)

    for dtype, tolerance in ((torch.float32, 1e-6), (torch.float64, 1e-12), (torch.float16, 2e-3)):
        for shape in ((7,), (3, 5)):
            every = [draw(rank, shape, dtype).double().numpy() for rank in range(hvd.size())]
            found = hvd.allreduce(draw(hvd.rank(), shape, dtype), op=hvd.Adasum)
            assert found.dtype == dtype
            assert np.allclose(found.double().numpy(), adasum_of(every), rtol=tolerance, atol=tolerance)
    axis = torch.eye(hvd.size())[hvd.rank()]
    assert hvd.allreduce(axis, op=hvd.Adasum).tolist() == [1.0] * hvd.size(), "orthogonal: the sum"
    assert hvd.allreduce(torch.ones(3), op=hvd.Adasum).tolist() == [1.0] * 3, "parallel: the average"
    assert hvd.allreduce(torch.zeros(3), op=hvd.Adasum).tolist() == [0.0] * 3
    grouped = hvd.grouped_allreduce([torch.ones(2), axis], op=hvd.Adasum)
    assert grouped[1].tolist() == [1.0] * hvd.size(), "each tensor by itself"
    with pytest.raises(ValueError, match="floating-point"):
        hvd.allreduce(torch.ones(2, dtype=torch.int32), op=hvd.Adasum)
    with pytest.raises(ValueError, match="reducescatter does not offer Adasum"):
        hvd.reducescatter(torch.ones(4), op=hvd.Adasum)


def adasum_optimizer():
    """The change that each rank's own step makes is reduced, for each parameter by itself."""

    def build():
        torch.manual_seed(1)
        model = torch.nn.Linear(3, 2)
        return model, torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.5)

    def loss_of(model, rank, step):
        inputs = torch.randn(4, 3, generator=torch.Generator().manual_seed(100 * step + rank))
        return model(inputs).square().mean()

    model, optimizer = build()
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), op=hvd.Adasum)
    alone = [build() for _ in range(hvd.size())]
    for step in range(3):
        optimizer.zero_grad()
        loss_of(model, hvd.rank(), step).backward()
        optimizer.step()
        before = [p.detach().clone() for p in alone[0][0].parameters()]
        for rank, (one, its_optimizer) in enumerate(alone):
            its_optimizer.zero_grad()
            loss_of(one, rank, step).backward()
            its_optimizer.step()
        for place, was in enumerate(before):
            every = [list(one.parameters())[place] for one, _ in alone]
            change = adasum_of([(p.detach() - was).numpy() for p in every])
            for parameter in every:
                parameter.data.copy_(was + torch.from_numpy(change))
    for mine, expected in zip(model.parameters(), alone[0][0].parameters()):
        assert torch.allclose(mine, expected, atol=1e-5)
    assert len({tuple(p) for p in hvd.allgather_object(model.weight.flatten().tolist())}) == 1
    with pytest.raises(AssertionError, match="no meaning with op=Adasum"), optimizer.skip_synchronize():
        pass


class Orthogonal:
    """One weight, of which each rank has the gradient 1 for an element of its own: Adasum sums what steps change."""

    def __init__(self, **options):
        self.weight = torch.nn.Parameter(torch.zeros(hvd.size()))
        self.optimizer = torch.optim.SGD([self.weight], lr=1.0, **options)

    def distribute(self):
        hvd.DistributedOptimizer(self.optimizer, [("weight", self.weight)], op=hvd.Adasum)

    def loss(self):
        return self.weight[hvd.rank()]


def adasum_of_parameters_that_come_later():
    """What it would not reduce is an error, as with other ops. It takes parameters from an earlier optimizer."""
    frozen, trained = (torch.nn.Parameter(torch.ones(2), requires_grad=grad) for grad in (False, True))
    earlier = hvd.DistributedOptimizer(torch.optim.SGD([trained], lr=1.0))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([frozen, trained], lr=1.0), op=hvd.Adasum)
    with pytest.raises(ValueError, match="cannot be added"):
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]})
    added = torch.nn.Parameter(torch.ones(1), requires_grad=False)
    optimizer.add_param_group({"params": [added]})
    for late in (frozen, added):
        optimizer.zero_grad()
        late.requires_grad_()
        (late.sum() + trained.sum()).backward()
        with pytest.raises(RuntimeError, match="did not require one"):
            optimizer.step()
        late.requires_grad_(False)
    assert late.tolist() == [1.0], "it was not moved"
    with pytest.raises(RuntimeError, match="given to a newer DistributedOptimizer"):
        earlier.step()


def adasum_with_a_scheduler_from_before():
    """The scheduler has wrapped step() of the plain optimizer."""
    one = Orthogonal()
    scheduler = torch.optim.lr_scheduler.StepLR(one.optimizer, 1, 0.5)
    one.distribute()
    for _ in range(2):
        one.optimizer.zero_grad()
        one.loss().backward()
        one.optimizer.step()
        scheduler.step()
    assert one.weight.tolist() == [-1.5] * hvd.size()


def adasum_with_scalers():
    """Gradients that are infinite on one rank alone: all ranks skip that step."""
    for scaler, fused, unscaled_before in itertools.product(
        (torch.amp.GradScaler, hvd.GradScaler), (False, True), (False, True)
    ):
        scaler = scaler("cpu", init_scale=64.0)
        one = Orthogonal(fused=fused)
        one.distribute()
        for step in range(3):
            one.optimizer.zero_grad()
            loss = one.loss() * (math.inf if (step, hvd.rank()) == (1, 1) else 1.0)
            scaler.scale(loss).backward()
            if unscaled_before:
                scaler.unscale_(one.optimizer)
            scaler.step(one.optimizer)
            scaler.update()
        assert one.weight.tolist() == [-2.0] * hvd.size()
        assert scaler.get_scale() == 32.0


def sync_batch_norm():
    """Outputs, gradients and running statistics are those of one process that has the whole batch."""
    rank, size = hvd.rank(), hvd.size()
    kinds = [
        (hvd.SyncBatchNorm(3), torch.nn.BatchNorm1d(3), (3,)),
        (hvd.SyncBatchNorm(3), torch.nn.BatchNorm1d(3), (3, 5)),
    ]
    kinds += [
        (hvd.SyncBatchNorm(3, momentum=None), torch.nn.BatchNorm2d(3, momentum=None), (3, 4, 2)),
        (hvd.SyncBatchNorm(3, bias=False), torch.nn.BatchNorm2d(3, bias=False), (3, 4, 2)),
        (hvd.SyncBatchNorm(3, affine=False), torch.nn.BatchNorm2d(3, affine=False), (3, 4, 2)),
        (
            hvd.SyncBatchNorm(3, track_running_stats=False),
            torch.nn.BatchNorm3d(3, track_running_stats=False),
            (3, 2, 2, 2),
        ),
    ]
    rows = [other + 1 for other in range(size)]  # ranks may have different batches
    first = sum(rows[:rank])
    for mine, whole, shape in kinds:
        for step in range(2):
            inputs = 3 + 2 * torch.randn(sum(rows), *shape, generator=torch.Generator().manual_seed(step))
            factors = torch.randn(inputs.shape, generator=torch.Generator().manual_seed(9 + step))
            ours = inputs[first : first + rows[rank]].clone().requires_grad_()
            theirs = inputs.clone().requires_grad_()
            for module in (mine, whole):
                module.zero_grad()
            output, expected = mine(ours), whole(theirs)
            (output * factors[first : first + rows[rank]]).sum().backward()
            (expected * factors).sum().backward()
            here = slice(first, first + rows[rank])
            assert torch.allclose(output, expected[here], atol=1e-5)
            assert torch.allclose(ours.grad, theirs.grad[here], atol=1e-5)
            for parameter, reference in zip(mine.parameters(), whole.parameters()):
                summed = hvd.allreduce(parameter.grad, op=hvd.Sum)
                assert torch.allclose(summed, reference.grad, atol=1e-4)
        for name, buffer in whole.named_buffers():
            assert torch.allclose(dict(mine.named_buffers())[name].float(), buffer.float(), atol=1e-5), name
        mine.eval(), whole.eval()
        assert torch.allclose(mine(inputs), whole(inputs), atol=1e-5) or not mine.track_running_stats
    constant = hvd.SyncBatchNorm(2)
    assert constant(torch.full((2, 2), 1e4)).abs().max() < 1, "the variance of large equal values is 0"
    with pytest.raises(ValueError, match="2 dimensions"):
        constant(torch.ones(3))


def grouped_gradients():
    """Gradients flow through every grouped collective as through the single one."""
    rank, size = hvd.rank(), hvd.size()
    mean = sum(range(1, size + 1)) / size

    def leaves():
        return [torch.ones(size, 2, requires_grad=True), torch.ones(size, requires_grad=True)]

    tensors = leaves()
    sum((rank + 1) * t.sum() for t in hvd.grouped_allreduce(tensors, op=hvd.Sum)).backward()
    assert all(t.grad.unique().tolist() == [mean * size] for t in tensors)
    tensors = leaves()
    sum((rank + 1) * t.sum() for t in hvd.grouped_allgather(tensors, name="group")).backward()
    assert all(t.grad.unique().tolist() == [mean] for t in tensors)
    tensors = leaves()
    sum((rank + 1) * t.sum() for t in hvd.grouped_reducescatter(tensors, op=hvd.Average)).backward()
    for t in tensors:
        assert t.grad.reshape(size, -1)[:, 0].tolist() == [other + 1.0 for other in range(size)]


def optimizers_without_names():
    """Without named_parameters; all-sparse models; parameters without a gradient, whose state is broadcast."""
    torch.manual_seed(hvd.rank())
    model = torch.nn.Linear(2, 1)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    names = [optimizer._parameter_names[p] for p in model.parameters()]
    assert len(set(names)) == 2
    model(torch.ones(1, 2) * hvd.rank()).sum().backward()
    optimizer.step()
    assert len({tuple(p) for p in hvd.allgather_object(model.weight.flatten().tolist())}) == 1

    table = torch.nn.Embedding(4, 2, sparse=True)
    torch.nn.init.zeros_(table.weight)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(table.parameters(), lr=1.0), table.named_parameters())
    for _ in range(2):
        optimizer.zero_grad()
        table(torch.tensor([hvd.rank() % 2])).sum().backward()
        optimizer.step()
    share = -2 * (hvd.size() // 2) / hvd.size()
    assert table.weight.tolist() == [[share] * 2, [share] * 2, [0.0] * 2, [0.0] * 2]

    used, unused = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(3))
    for kind in (torch.optim.Adam, torch.optim.SGD):
        options = {"lr": 0.1 + hvd.rank()} | ({"momentum": 0.9} if kind is torch.optim.SGD else {})
        optimizer = kind([used, unused], **options)
        (used.sum() * (1.0 + hvd.rank())).backward()
        optimizer.step()
        hvd.broadcast_optimizer_state(optimizer, root_rank=1)
        assert optimizer.param_groups[0]["lr"] == 1.1
        states = hvd.allgather_object([value.tolist() for value in optimizer.state[used].values() if value is not None])
        assert states == [states[0]] * hvd.size()


def timeline():
    """Rank 0 writes the file; the others take part in the trace alone."""
    folder = hvd.broadcast_object(tempfile.mkdtemp() if hvd.rank() == 0 else None)
    with pytest.raises(ValueError, match="no timeline was started") if hvd.rank() == 0 else contextlib.nullcontext():
        hvd.stop_timeline()
    hvd.start_timeline(f"{folder}/timeline.json", mark_cycles=True)
    with pytest.raises(hvd.DeftError, match="writes a trace to") if hvd.rank() == 0 else contextlib.nullcontext():
        hvd.start_timeline(f"{folder}/second.json")
    model = torch.nn.Linear(3, 3)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    for _ in range(3):
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
    hvd.stop_timeline()
    if hvd.rank() == 0:
        events = json.loads(pathlib.Path(folder, "timeline.json").read_text())
        assert {event["cat"] for event in events if event["ph"] == "X"} >= {"gradient", "transfer"}
        shutil.rmtree(folder)


def trace_of_steps():
    """The script traces its next steps; each daemon writes into the folder that rank 0 names, or into deft-traces."""
    folder = pathlib.Path(hvd.broadcast_object(tempfile.mkdtemp() if hvd.rank() == 0 else None))
    before = pathlib.Path.cwd()
    model = torch.nn.Linear(3, 3)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    os.chdir(folder)
    deft.trace(steps=2)
    os.chdir(before)
    while not hvd.broadcast_object(hvd.rank() == 0 and is_complete(folder / "deft-traces")):
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
    if hvd.rank() == 0:
        shutil.rmtree(folder)


def is_complete(folder):
    """Whether the daemons have finished the traces there."""
    done = subprocess.run([BUILD / "bin/deft", "trace", "merge", folder], capture_output=True, text=True)
    return done.returncode == 0 and "was not finished" not in done.stderr


def compressors():
    """Both ways, for the dtypes that a compressor knows and for others."""
    assert issubclass(hvd.Compression.fp16, deft.compression.FP16Compressor), "one for all frameworks"
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool):
        tensor = torch.ones(3, dtype=dtype)
        for compressor, wire_dtype in ((hvd.Compression.none, dtype), (hvd.Compression.fp16, torch.float16)):
            wire, context = compressor.compress(tensor)
            assert wire.dtype is (wire_dtype if dtype in (torch.float32, torch.float64) else dtype)
            assert torch.equal(compressor.decompress(wire, context), tensor)
            assert compressor.decompress(wire, context).dtype is dtype


def errors():
    assert issubclass(hvd.HorovodInternalError, RuntimeError)
    with pytest.raises(hvd.HorovodInternalError):
        hvd.allreduce(torch.zeros(2 + hvd.rank() % 2), name="shapes")
    with pytest.raises(ValueError, match="Average, Sum, Min, Max, Product, Adasum"):
        hvd.allreduce(torch.zeros(2), op="sum")


CHECKS = (
    adasum,
    adasum_optimizer,
    adasum_of_parameters_that_come_later,
    adasum_with_a_scheduler_from_before,
    adasum_with_scalers,
    sync_batch_norm,
    grouped_gradients,
    optimizers_without_names,
    timeline,
    trace_of_steps,
    compressors,
    errors,
)


def check_all():
    for check in CHECKS:
        check()
    return [check.__name__ for check in CHECKS]


@pytest.mark.parametrize("workers", [2, 4])
def test_names_mean_what_horovod_says(start, workers):
    results = start(2).run(check_all, workers=workers)
    assert results == [[check.__name__ for check in CHECKS]] * workers


def traced():
    hvd.start_timeline("timeline.json")
    hvd.allreduce(torch.ones(1))
    hvd.stop_timeline()
    return copy.copy(hvd.size())


def test_a_timeline_is_the_trace(start, tmp_path):
    assert start(1).run(traced, workers=2, trace=str(tmp_path)) == [2, 2]
    assert [path.suffix for path in tmp_path.iterdir()] == [".trace"]


ARGUMENTS = {  # Horovod's, in its order; scripts give them by position and by name
    "allreduce": "tensor average name compression op prescale_factor postscale_factor process_set",
    "allreduce_": "tensor average name op prescale_factor postscale_factor process_set",
    "allreduce_async": "tensor average name op prescale_factor postscale_factor process_set",
    "allreduce_async_": "tensor average name op prescale_factor postscale_factor process_set",
    "grouped_allreduce": "tensors average name compression op prescale_factor postscale_factor process_set",
    "grouped_allreduce_": "tensors average name op prescale_factor postscale_factor process_set",
    "grouped_allreduce_async": "tensors average name op prescale_factor postscale_factor process_set",
    "grouped_allreduce_async_": "tensors average name op prescale_factor postscale_factor process_set",
    "sparse_allreduce_async": "tensor name op process_set",
    "allgather": "tensor name process_set",
    "allgather_async": "tensor name process_set",
    "grouped_allgather": "tensors name process_set",
    "grouped_allgather_async": "tensors name process_set",
    "broadcast": "tensor root_rank name process_set",
    "broadcast_": "tensor root_rank name process_set",
    "broadcast_async": "tensor root_rank name process_set",
    "broadcast_async_": "tensor root_rank name process_set",
    "alltoall": "tensor splits name process_set",
    "alltoall_async": "tensor splits name process_set",
    "reducescatter": "tensor name compression op process_set prescale_factor postscale_factor",
    "reducescatter_async": "tensor name op process_set prescale_factor postscale_factor",
    "grouped_reducescatter": "tensors name compression op process_set prescale_factor postscale_factor",
    "grouped_reducescatter_async": "tensors name op process_set prescale_factor postscale_factor",
    "barrier": "process_set",
    "join": "device",
    "broadcast_parameters": "params root_rank",
    "broadcast_optimizer_state": "optimizer root_rank model",
    "broadcast_object": "obj root_rank name process_set",
    "allgather_object": "obj name",
    "start_timeline": "file_path mark_cycles",
    "DistributedOptimizer": "optimizer named_parameters compression backward_passes_per_step op "
    "gradient_predivide_factor num_groups groups sparse_as_dense process_set",
}


def test_arguments_have_horovods_names_and_order():
    for name, arguments in ARGUMENTS.items():
        expected = arguments.split()
        assert list(inspect.signature(getattr(hvd, name)).parameters)[: len(expected)] == expected, name
