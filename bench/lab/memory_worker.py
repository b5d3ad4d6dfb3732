"""A worker of bench/memory: trains a model of the lab on blank samples, and tells the most memory that a step held.

    deftrun -np 2 python bench/lab/memory_worker.py '{"model": "cnn", "batch": 128, "count": "allocated", ...}' FILE

How it counts:
  allocated: all that torch's allocator gave and took back, by its own profiler, and the arena's pages, by the kernel
  resident: the peak of the process above what it had before the model was made (VmHWM of /proc/self/status)
  nothing: for a run that is traced

Rank 0 writes {"peak_bytes": ..., "arena_bytes": ...} to FILE.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import deft.torch as hvd
import torch
import torch._dynamo  # the first distributed optimizer loads it
from torch import nn
from torch.utils.checkpoint import checkpoint

from lab.catalogue import MODELS
from lab.datasets import CONTEXT, PREDICTED_WORDS, WORDS, loss
from lab.models import MAKERS, make_optimizer
from lab.texts import CHARACTERS

WARMUP, COUNTED = 6, 3  # steps; the first make the optimizer's state


def blank_batch(dataset: str, samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    if dataset == "images":
        return torch.randn(samples, 1, 28, 28), torch.randint(10, (samples,))
    codes, classes = (len(CHARACTERS), len(CHARACTERS)) if dataset == "characters" else (WORDS, PREDICTED_WORDS)
    shape = (samples, CONTEXT[dataset])
    return torch.randint(codes, shape), torch.randint(classes, shape)


class Recomputed(nn.Module):
    """Frees what its modules keep for backward, and repeats their forward then."""

    def __init__(self, *modules: nn.Module):
        super().__init__()
        self.inner = nn.Sequential(*modules)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.inner, x, use_reentrant=False)


def recompute(model: nn.Module, modules: list[str]) -> None:
    """`modules` as `deft optimize --memory` names them: 'blocks.0', or '5 to 9' of a sequence up to the next layer."""
    for name in modules:
        first, _, last = name.partition(" to ")
        parent = model.get_submodule(first.rpartition(".")[0])
        if not last:
            setattr(parent, first.rpartition(".")[2], Recomputed(model.get_submodule(first)))
            continue
        begin, end = (int(one.rpartition(".")[2]) for one in (first, last))
        while end + 1 < len(parent) and not list(parent[end + 1].parameters()):  # what follows the last layer
            end += 1
        # An empty place keeps the numbers of the others.
        parent[begin] = Recomputed(*(parent[i] for i in range(begin, end + 1)))
        for i in range(begin + 1, end + 1):
            parent[i] = nn.Identity()


class DeftTraining:
    """A data-parallel training by Deft."""

    def __init__(self, setting: dict):
        torch.manual_seed(7)
        description = MODELS[setting["model"]]
        self._batch, self._passes = setting["batch"], setting.get("passes", 1)
        self._dataset = description.dataset
        self.model = MAKERS[setting["model"]]()
        names = [(name, parameter) for name, parameter in self.model.named_parameters()]
        recompute(self.model, setting.get("modules", []))
        self.optimizer = hvd.DistributedOptimizer(
            make_optimizer(description.optimizer, self.model, description.learning_rate),
            named_parameters=names,
            backward_passes_per_step=self._passes,
        )

    def step(self) -> None:
        self.optimizer.zero_grad()
        for _ in range(self._passes):
            inputs, targets = blank_batch(self._dataset, self._batch // self._passes)
            loss(self.model(inputs), targets).backward()
        self.optimizer.step()

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.step()


def arena_bytes() -> int:
    """The resident pages of the arenas, which torch's allocator does not know."""
    pages, in_arena = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ", 1)[0]:
            in_arena = "memfd:deft" in line and "control" not in line
        elif in_arena and line.startswith("Rss:"):
            pages += int(line.split()[1]) * 1024
    return pages


def status_bytes(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key + ":"))


def allocated(setting: dict) -> dict:
    """By torch's profiler, from before the model is made: so it knows every block that is given back."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        training = DeftTraining(setting)
        training.steps(WARMUP)
        with torch.profiler.record_function("counted steps"):
            training.steps(COUNTED)
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        profiler.export_chrome_trace(file.name)
        events = json.loads(Path(file.name).read_text())["traceEvents"]
    counted = next(event for event in events if event.get("name") == "counted steps" and "dur" in event)
    blocks = [event for event in events if event.get("name") == "[memory]"]
    now = peak = 0
    for event in sorted(blocks, key=lambda event: event["ts"]):
        now += event["args"]["Bytes"]
        if counted["ts"] <= event["ts"] <= counted["ts"] + counted["dur"]:
            peak = max(peak, now)
    arena = arena_bytes()
    return {"peak_bytes": peak + arena, "arena_bytes": arena}


def resident(setting: dict) -> dict:
    before = status_bytes("VmRSS")
    training = DeftTraining(setting)
    training.steps(WARMUP)
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins anew
    training.steps(COUNTED)
    return {"peak_bytes": status_bytes("VmHWM") - before, "arena_bytes": arena_bytes()}


def nothing(setting: dict) -> dict:
    DeftTraining(setting).steps(WARMUP + COUNTED + 6)
    return {}


def warm_up() -> None:
    """Lets torch load what it loads with the first use: its libraries and kernels are no memory of a training."""
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(72, 4))
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        loss(model(torch.randn(2, 1, 5, 5)), torch.randint(4, (2,))).backward()
        optimizer.step()


def main() -> None:
    setting, output = json.loads(sys.argv[1]), Path(sys.argv[2])
    torch.set_num_threads(1)
    hvd.init()
    warm_up()
    told = {"allocated": allocated, "resident": resident, "nothing": nothing}[setting["count"]](setting)
    if hvd.rank() == 0:
        output.write_text(json.dumps(told))
    hvd.shutdown()


if __name__ == "__main__":
    main()
