"""Every policy and placement trains as one process on the whole batch does, and with the same bits on every rank."""

import gc
import hashlib
import re

import deft
import deft.torch as hvd
import numpy as np
import pytest
import torch
from deft import world
from small_models import (
    OPTIMIZERS,
    assert_close,
    assert_same_everywhere,
    batches,
    loss_of,
    make,
    own_share,
    parameters,
    train_alone,
)
from training_checks import large_gradient, sum_of_halves

STEPS = 6


def distributed(optimizer_name, dtype=torch.float32, **options):
    model = make(dtype=dtype)
    if hvd.rank() != 0:
        for param in model.parameters():
            param.data.zero_()
    optimizer = OPTIMIZERS[optimizer_name](model.parameters())
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), **options)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    for x, y in batches(STEPS, dtype):
        optimizer.zero_grad()
        loss_of(model, *own_share(x, y)).backward()
        optimizer.step()
        scheduler.step()
    return parameters(model), optimizer._deft.applier.overlap.deferred is not None


def train_everything():
    """All optimizers in turn; under a policy that gains from it, with and without forward overlap."""
    gains = deft.option("policy") not in ("fifo", "mgwfbp")
    for name in OPTIMIZERS:
        # The adaptive ones divide rounding errors by gradients near zero: only float64 leaves them small.
        dtype, tolerance = (torch.float32, 1e-5) if name == "sgd" else (torch.float64, 1e-7)
        expected = train_alone(name, STEPS, dtype)
        state, overlapped = distributed(name, dtype)
        assert overlapped == gains
        assert_same_everywhere(state)
        assert_close(state, expected, 10 * tolerance, tolerance)
        plain, overlapped = distributed(name, dtype, overlap_forward="off")
        assert not overlapped
        for key, value in plain.items():
            assert torch.equal(value, state[key]), f"{name}: {key} has other bits with and without forward overlap"
    return True


@pytest.mark.parametrize(
    ("policy", "workers", "nodes"),
    [(policy, *placed) for policy in ("fifo", "bytescheduler") for placed in ((2, 1), (2, 2), (4, 2), (4, 4))]
    + [(policy, 4, 2) for policy in ("mgwfbp", "p3", "prophet", "usbyte")],
)
def test_trains_as_one_process_on_the_whole_batch(start, workers, nodes, policy):
    cluster = start(nodes, policy=policy)
    assert all(cluster.run(train_everything, workers=workers))


def train_with_a_large_last_layer():
    """Many more steps than a policy measures before it decides, for a busy machine may make it decide again; the other
    gradients come while the first is on its way."""
    torch.manual_seed(hvd.rank())
    layers = [torch.nn.Linear(16, 16) for _ in range(4)]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(16, 60_000))
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    for _ in range(64):
        optimizer.zero_grad()
        model(torch.randn(2, 16)).square().mean().backward()
        optimizer.step()
    state = parameters(model)
    assert_same_everywhere(state)
    return {key: hashlib.sha256(value.numpy().tobytes()).hexdigest() for key, value in state.items()}


@pytest.mark.parametrize("links", ["gloo:lo", "gloo:lo,tcp:lo"])
def test_merged_gradients_give_the_bits_of_single_ones(start, links):
    cluster = start(2, policy="mgwfbp", partition_bytes="4KB", links=links)
    merged = cluster.run(train_with_a_large_last_layer, workers=4)
    log = (cluster.folder / "daemon0.log").read_text()
    # Where the machine is so busy that the first profile merges nothing, a later one does, and says what has changed.
    why = r"(the first profile|link \d+'s throughput|a step's compute time|the forward time)"
    assert re.search(rf"merged \d+ buckets into \d+ transfers from step \d+ on, because of {why}", log), log
    assert merged == cluster.run(train_with_a_large_last_layer, workers=4, policy="fifo")


def same_movement(state, expected, dtype, share):
    """The weights moved as they did in one process: the difference is a small share of the way that they went."""
    start = parameters(make(dtype=dtype))
    for name, value in expected.items():
        way = (value.double() - start[name].double()).norm()
        off = (state[name].double() - value.double()).norm()
        assert way > 0 and off <= share * way, f"{dtype} {name}: {off:.3g} off after a way of {way:.3g}"


def average_of(gradient, **options):
    parameter = torch.nn.Parameter(torch.zeros(gradient.shape))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    optimizer = hvd.DistributedOptimizer(optimizer, [("large", parameter)], **options)
    (parameter * torch.from_numpy(gradient)).sum().backward()
    optimizer.synchronize()
    return parameter.grad.numpy()


def gradients_as_halves():
    """Compression.fp16 is Horovod's: gradients travel as float16, come back as float32, and no codec encodes them, also
    if the daemon encodes all others."""
    hvd.shutdown()
    hvd.init(job="halves", compression="int8")
    own, exact = large_gradient(hvd.rank()), (large_gradient(0) + large_gradient(1)) / 2
    np.testing.assert_array_equal(average_of(own, compression=hvd.Compression.fp16), sum_of_halves(before=0.5))
    assert np.abs(average_of(own) - exact).max() > 1e-3, "int8 is not in force"
    summed = average_of(own * 60000, compression=hvd.Compression.fp16, op=hvd.Sum)
    assert not np.isfinite(summed).all(), "what float16 cannot hold becomes infinite"


def train_dtypes():
    for dtype, share in ((torch.float64, 1e-9), (torch.bfloat16, 0.15), (torch.float16, 0.02)):
        state, _ = distributed("sgd", dtype)
        assert_same_everywhere(state)
        same_movement(state, train_alone("sgd", STEPS, dtype), dtype, share)
    expected = train_alone("sgd", STEPS)
    state, _ = distributed("sgd", compression=hvd.Compression.fp16)
    assert_same_everywhere(state)
    assert_close(state, expected, 0.02, 0.005)
    state, _ = distributed("sgd", gradient_predivide_factor=1.5)
    assert_same_everywhere(state)
    assert_close(state, expected)
    return True


def stages_of_two_trainings():
    """The second optimizer of a process tells the stages of its steps when the first one has ended."""
    told = []
    world.session().stage = lambda stage, step: told.append((stage, step))
    for _ in range(2):
        distributed("sgd")
        gc.collect()
    assert told[: len(told) // 2] == told[len(told) // 2 :]
    backwards = [step for stage, step in told if stage == deft.BACKWARD]
    assert backwards == [*range(STEPS)] * 2
    assert [step for stage, step in told if stage == deft.FORWARD] == [*range(1, STEPS)] * 2
    del world.session().stage


def train_dtypes_and_halves():
    stages_of_two_trainings()
    train_dtypes()
    gradients_as_halves()
    return True


@pytest.mark.parametrize("policy", ["fifo", "bytescheduler"])
def test_dtypes_compression_and_predivision(start, policy):
    assert all(start(2, policy=policy, partition_bytes="4KB").run(train_dtypes_and_halves))
