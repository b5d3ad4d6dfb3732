"""What workers tell of their memory while a trace is written, against torch's own count; and what tools make of it."""

import json
import time

import deft.torch as hvd
import pytest
import torch
from cluster import deft
from deft.step_memory import ACTIVATIONS, GRADIENTS, NO_LAYER, TEMPORARY, Amount
from deft.torch import memory_recorder
from deft.torch.allocations import AllocationMode, Allocations, OperationMemory
from torch import nn
from torch.nn import functional

FEATURES, WIDTH, BATCH, STEPS = 64, 96, 128, 12
ACTIVATION = BATCH * WIDTH * 4


class Model(nn.Module):
    """Each layer keeps its output for backward, as the next one's input, and tanh its result."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(FEATURES, WIDTH)
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.last = nn.Linear(WIDTH, 8)

    def forward(self, x):
        x = torch.tanh(self.first(x))
        for block in self.blocks:
            x = torch.tanh(block(x))
        return self.last(x)


def allocated_peak(profiler):
    """The most that torch's allocator had given in the steps that are called so, by its own events."""
    events = profiler.profiler.kineto_results.events()
    counted = next(event for event in events if event.name() == "counted steps")
    begin, end = counted.start_ns(), counted.start_ns() + counted.duration_ns()
    now = peak = 0
    for event in sorted((e for e in events if e.name() == "[memory]"), key=lambda event: event.start_ns()):
        now += event.nbytes()
        if begin <= event.start_ns() <= end:
            peak = max(peak, now)
    return peak


def train(passes=1, zero_grad=True):
    """Gives what the allocator gave at most in the last steps, what the arena has, and what the parameters have."""
    torch.manual_seed(3)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        model = Model()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9),
            named_parameters=model.named_parameters(),
            backward_passes_per_step=passes,
        )

        def step():
            if zero_grad:
                optimizer.zero_grad()
            for _ in range(passes):
                x, y = torch.randn(BATCH // passes, FEATURES), torch.randint(8, (BATCH // passes,))
                functional.cross_entropy(model(x), y).backward()
            optimizer.step()

        for _ in range(STEPS):
            step()
        with torch.profiler.record_function("counted steps"):
            step()
            step()
    weights = sum(p.numel() * 4 for p in model.parameters())
    hooks = sum(len(module._forward_pre_hooks) + len(module._forward_hooks) for module in model.modules())
    return {"peak": allocated_peak(profiler), "weights": weights, "hooks": hooks}


def replayed(folder, *what_if):
    """The memory of rank 0, once the daemons have finished their files."""
    deadline = time.monotonic() + 60
    while True:
        done = deft("replay", folder, "--json", *what_if)
        if done.returncode == 0 and "was not finished" not in done.stderr:
            break
        assert time.monotonic() < deadline, done.stderr
        time.sleep(0.05)
    memory = json.loads(done.stdout)[0]["memory"]
    return None if memory is None else memory["workers"][0]


@pytest.fixture(scope="module")
def traced(start, tmp_path_factory):
    """A job that was traced: the folder, and what its worker of rank 0 counted itself."""
    folder = tmp_path_factory.mktemp("traces")
    told = start(1, overlap_forward="off").run(train, trace=folder)[0]
    replayed(folder)
    return folder, told


def test_replay_says_what_the_allocator_gave(traced):
    folder, told = traced
    worker = replayed(folder)
    parts = worker["parts"]
    assert parts["weights"] == parts["optimizer"] == told["weights"]
    assert parts["arena"] >= told["weights"]
    assert worker["samples"] == BATCH
    # The arena is the daemon's memory, so torch's allocator does not know it.
    assert worker["peak_bytes"] - parts["arena"] == pytest.approx(told["peak"], rel=0.01)
    assert parts["activations"] >= 4 * ACTIVATION
    assert told["hooks"] < 10, "the hooks on the layers are gone"


def test_another_batch_and_micro_batches_are_predicted(traced, start, tmp_path):
    folder, _ = traced
    worker = replayed(folder, "--accumulate", "2")
    really = start(1, overlap_forward="off").run(train, 2)[0]
    assert worker["peak_bytes"] - worker["parts"]["arena"] == pytest.approx(really["peak"], rel=0.05)
    whole = replayed(folder)["parts"]
    assert replayed(folder, "--batch", "2x")["parts"]["activations"] == pytest.approx(
        2 * whole["activations"], rel=0.01
    )


def test_updates_that_overlap_with_forward_and_kept_gradients_are_counted(start, tmp_path):
    told = start(1, overlap_forward="on").run(train, 1, False, trace=tmp_path)[0]
    worker = replayed(tmp_path)
    assert worker["peak_bytes"] - worker["parts"]["arena"] == pytest.approx(told["peak"], rel=0.03)


def test_updates_that_are_delayed_are_counted(start, tmp_path):
    told = start(1, policy="knapsack 0@1", overlap_forward="off").run(train, trace=tmp_path)[0]
    worker = replayed(tmp_path)
    assert worker["parts"]["arena"] >= 4 * told["weights"], "an arena of four slots"
    assert worker["peak_bytes"] - worker["parts"]["arena"] == pytest.approx(told["peak"], rel=0.03)


def test_optimize_keeps_within_the_memory(traced, tmp_path):
    folder, _ = traced
    peak = replayed(folder)["peak_bytes"]
    output = tmp_path / "found.flags"
    words = ("optimize", folder, "--budget", "60s", "-o", output)
    fits = json.loads(deft(*words, "--memory", "1GB", "--json").stdout)["memory"]
    assert fits["choice"] == "none" and fits["traced"]["peak_bytes"] == peak
    limit = int(peak - 3 * ACTIVATION)
    found = deft(*words, "--memory", str(limit))
    assert found.returncode == 0, found.stderr
    assert "The script must" in found.stdout and "# memory: a worker needs" in output.read_text()
    memory = json.loads(deft(*words, "--memory", str(limit), "--json").stdout)["memory"]
    chosen = memory[memory["choice"]]
    assert chosen["peak_bytes"] <= limit
    assert chosen["passes"] > 1 or chosen["modules"]


def test_bad_sizes_are_refused(traced):
    folder, told = traced
    for size in ("8XB", "", "-1GB", "0", "1e99GB", "GB"):
        refused = deft("optimize", folder, "--memory", size)
        assert refused.returncode == 2 and f"--memory is '{size}'" in refused.stderr
    small = deft("optimize", folder, "--memory", str(told["weights"] // 2))
    assert small.returncode != 0 and "the least is" in small.stderr
    verify = deft("optimize", folder, "--memory", "1GB", "--verify", "true")
    assert verify.returncode == 2 and "leave out one of them" in verify.stderr
    for flag, value in (("--batch", "0x"), ("--accumulate", "0"), ("--accumulate", "two")):
        assert deft("replay", folder, flag, value).returncode == 2


def test_a_model_that_is_compiled_is_not_told(start, tmp_path):
    start(1).run(train_compiled, trace=tmp_path)
    assert replayed(tmp_path) is None
    text = deft("replay", tmp_path).stdout
    assert "memory: not recorded" in text
    refused = deft("optimize", tmp_path, "--memory", "1GB")
    assert refused.returncode == 2 and "does not tell what workers hold in memory" in refused.stderr


def train_compiled():
    model = Model()
    model.compile(backend="eager")
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), model.named_parameters())
    for _ in range(STEPS):
        optimizer.zero_grad()
        functional.cross_entropy(model(torch.randn(8, FEATURES)), torch.randint(8, (8,))).backward()
        optimizer.step()


def train_with_a_broken_recorder():
    def fail(*_):
        raise RuntimeError("no layer is as it should be")

    memory_recorder._MemoryWatch.layer_begins = fail
    return train()


def test_a_recording_that_fails_harms_no_training(start, tmp_path):
    assert start(1).run(train_with_a_broken_recorder, trace=tmp_path)[0]["hooks"] < 10
    assert replayed(tmp_path) is None


def drop_the_optimizer_in_a_recorded_step():
    model = Model()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), model.named_parameters())
    for _ in range(STEPS):
        loss = functional.cross_entropy(model(torch.randn(8, FEATURES)), torch.randint(8, (8,)))
        if model.last._forward_hooks:
            break
        loss.backward()
        optimizer.step()
    assert model.last._forward_hooks, "no step was recorded"
    del optimizer
    return sum(len(module._forward_pre_hooks) + len(module._forward_hooks) for module in model.modules())


def test_a_recording_does_not_keep_the_optimizer(start, tmp_path):
    assert start(1).run(drop_the_optimizer_in_a_recorded_step, trace=tmp_path) == [0, 0]


def test_allocations_are_followed_until_they_are_freed():
    device = torch.device("cpu")
    allocations = Allocations(device, {(3, 3)}, samples=4)
    with AllocationMode(allocations, device):
        allocations.move_to(1)
        first = torch.ones(4, 10)
        allocations.move_to(2)
        second = first + first
        del first
        allocations.move_to(3)
        gradient = torch.zeros(3, 3)
        second.zero_()[0].zero_()  # nothing new
        allocations.move_to(4)
    amounts = set(allocations.amounts(5))
    assert amounts == {
        Amount(ACTIVATIONS, 1, 2, NO_LAYER, 160, 160),
        Amount(ACTIVATIONS, 2, 5, NO_LAYER, 160, 160),
        Amount(GRADIENTS, 3, 5, NO_LAYER, 36, 0),  # as a parameter is shaped
        Amount(TEMPORARY, 1, 1, NO_LAYER, 160, 160),
        Amount(TEMPORARY, 2, 2, NO_LAYER, 320, 320),
        Amount(TEMPORARY, 3, 3, NO_LAYER, 36, 0),
    }
    allocations.restart()  # both are there before the next step
    assert {(amount.begin, amount.bytes) for amount in allocations.amounts(5)} == {(0, 160), (0, 36)}
    del second, gradient
    assert allocations.now == 0


def test_what_an_operation_uses_for_itself_counts():
    operation = OperationMemory(torch.device("cpu"))
    with operation:
        kept = torch.empty(250)
        torch.empty(1000)
        torch.empty(500)
    assert operation.most() == kept.nbytes + 4000
    with torch.profiler.profile(profile_memory=True), operation:
        torch.empty(1000)
    assert operation.most() == 0, "somebody else's profiler is left alone"
