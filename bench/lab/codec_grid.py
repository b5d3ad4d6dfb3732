"""The grid of bench/codecs: model x codec x dates x seed, trained in one process; what each codec costs, in pairs."""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import nn

from lab import dates, lateness, models
from lab.catalogue import MODELS as LAB_MODELS
from lab.codec_arguments import STEPS_APART, codec_names
from lab.codec_sums import CodecSums
from lab.datasets import loss as loss_of
from lab.datasets import open_dataset
from lab.half_precision import Backward
from lab.intervals import interval
from lab.schedule import learning_rate_factor

# The lab's models; of its cnn a quarter of the width, so that a run takes seconds.
MODELS: dict[str, Callable[[], nn.Module]] = {
    "cnn": lateness.small_cnn,
    "resnet": models.resnet,
    "gpt": models.gpt,
    "mlp": models.mlp,
}


@dataclass(frozen=True)
class GridRun:
    model: str
    codec: str
    dates: str  # fresh, or a case of bench/lateness
    seed: int
    steps: int
    nodes: int
    batch: int  # samples a node
    optimizer: str
    learning_rate: float
    schedule: str
    precision: str = "float32"  # of forward and backward; float16: by autocast, with a scale of the loss
    evaluations: int = 1  # the result is their mean: the last one after the last step, one in STEPS_APART steps before


class DatedParameters:
    """Parameters with the same dates. Their gradients are merged, encoded, added, and applied when they are due."""

    def __init__(self, run: GridRun, params: list[nn.Parameter], indices: list[int], case: dates.Case):
        self._run, self._params, self.indices, self._case = run, params, indices, case
        self._merged = [[torch.zeros_like(p) for p in params] for _ in range(run.nodes)]
        self._waiting: list[tuple[int, list[torch.Tensor]]] = []  # the step that sees it, and the average
        kind = torch.optim.Adam if run.optimizer == "adam" else torch.optim.SGD
        options = {} if run.optimizer == "adam" else {"momentum": dates.MOMENTUM}
        self._optimizer = kind(params, lr=run.learning_rate, **options)

    @torch.no_grad()
    def step(self, step: int, gradients: list[list[torch.Tensor]], sums: CodecSums) -> None:
        """After the backward of `step`; `gradients`: of each node, of this group's parameters."""
        for merged, own in zip(self._merged, gradients, strict=True):
            torch._foreach_add_(merged, own)
        if (step + 1) % self._case.merged == 0:
            self._send(step, sums)
        while self._waiting and self._waiting[0][0] <= step + 1:
            self._apply(step, self._waiting.pop(0)[1])

    def _send(self, step: int, sums: CodecSums) -> None:
        total = sums.add(self._merged, step, self.indices)
        torch._foreach_div_(total, self._run.nodes * self._case.merged)
        self._waiting.append((step + 1 + self._case.delay, total))
        for merged in self._merged:
            torch._foreach_zero_(merged)

    def _apply(self, step: int, average: list[torch.Tensor]) -> None:
        for param, gradient in zip(self._params, average, strict=True):
            param.grad = gradient
        factor = learning_rate_factor(self._run.schedule, step, self._run.steps)
        for group in self._optimizer.param_groups:
            group["lr"] = self._run.learning_rate * self._case.factor * factor
        self._optimizer.step()
        self._optimizer.zero_grad()


def _groups(run: GridRun, params: list[nn.Parameter]) -> list[DatedParameters]:
    case = dates.PLAIN if run.dates == "fresh" else dates.parse(run.dates)
    by_size = sorted(range(len(params)), key=lambda i: params[i].numel(), reverse=True)
    late = by_size if case.late == "all" else by_size[: int(case.late)]
    fresh = [i for i in range(len(params)) if i not in late]
    parts = [(sorted(late), case), (fresh, dates.PLAIN._replace(merged=case.rest))]
    return [DatedParameters(run, [params[i] for i in indices], indices, case) for indices, case in parts if indices]


def train(run: GridRun, folder: str | None = None) -> dict[str, float]:
    """Test accuracy in percent and test loss by the run's last evaluations, and the bytes that a node sent a step."""
    torch.manual_seed(run.seed)
    model = MODELS[run.model]()
    params = list(model.parameters())
    dataset = open_dataset(LAB_MODELS[run.model].dataset, folder)
    sums = CodecSums(run.codec, [p.shape for p in params], run.nodes, job=run.seed + 1)
    groups, backward = _groups(run, params), Backward(run.precision, model, params)
    evaluations: list[dict[str, float]] = []
    generator = torch.Generator().manual_seed(run.seed)
    for step in range(run.steps):
        nodes = []
        for _ in range(run.nodes):
            inputs, targets = dataset.batch(torch.randint(dataset.samples, (run.batch,), generator=generator).numpy())
            gradients = backward(inputs, targets)
            if gradients is None:
                return {"accuracy": 0.0, "loss": math.inf, "wire_bytes": sums.wire_bytes / (step + 1)}
            nodes.append(gradients)
        for group in groups if backward.accepts(nodes) else []:
            group.step(step, [[own[i] for i in group.indices] for own in nodes], sums)
        left = run.steps - 1 - step
        if left % STEPS_APART == 0 and left < run.evaluations * STEPS_APART:
            evaluations.append(_evaluate(model, dataset))
    means = {key: statistics.fmean(each[key] for each in evaluations) for key in ("accuracy", "loss")}
    return means | {"wire_bytes": sums.wire_bytes / run.steps}


@torch.no_grad()
def _evaluate(model: nn.Module, dataset) -> dict[str, float]:
    losses, right, count = 0.0, 0, 0
    for inputs, targets in dataset.held_out(0, 1):
        outputs = model(inputs)
        losses += loss_of(outputs, targets).item() * targets.numel()
        right += (outputs.flatten(0, -2).argmax(1) == targets.flatten()).sum().item()
        count += targets.numel()
    return {"accuracy": 100 * right / count, "loss": losses / count}


class FinishedRuns:
    """Finished runs, in memory and in a file of a JSON object a line."""

    def __init__(self, path: Path | None):
        self._path = path
        self._known: dict[str, dict[str, float]] = {}
        for line in path.read_text().splitlines() if path and path.exists() else []:
            entry = json.loads(line)
            self._known[self._key(GridRun(**entry["run"]))] = entry["result"]

    @staticmethod
    def _key(run: GridRun) -> str:
        return json.dumps(asdict(run), sort_keys=True)

    def of(self, run: GridRun, folder: str | None) -> dict[str, float]:
        key = self._key(run)
        if key not in self._known:
            self._known[key] = train(run, folder)
            if self._path:
                with self._path.open("a") as file:
                    file.write(json.dumps({"run": asdict(run), "result": self._known[key]}) + "\n")
        return self._known[key]


def _runs(arguments: argparse.Namespace, codec: str, case: str) -> list[GridRun]:
    known = LAB_MODELS[arguments.model]
    return [
        GridRun(
            model=arguments.model,
            codec=codec,
            dates=case,
            seed=seed,
            steps=arguments.steps,
            nodes=arguments.nodes,
            batch=arguments.batch or max(1, known.batch // 2),
            optimizer=arguments.optimizer or known.optimizer,
            learning_rate=arguments.learning_rate or known.learning_rate,
            schedule=arguments.schedule,
            precision=arguments.precision,
            evaluations=arguments.evaluations,
        )
        for seed in range(arguments.seeds)
    ]


def run(arguments: argparse.Namespace) -> int:
    codecs, cases = codec_names(arguments.codecs), arguments.dates.split(",")
    for name in codecs:
        CodecSums(name, [], 1)  # an unknown codec is noticed before the first run
    rows = {(case, name): _runs(arguments, name, case) for case in cases for name in codecs}
    results = FinishedRuns(arguments.results)
    for number, of_seed in enumerate(zip(*rows.values(), strict=True), 1):  # so a grid that is cut off has whole pairs
        for one in of_seed:
            results.of(one, arguments.data)
        print(f"seed {number} of {arguments.seeds} is done", file=sys.stderr)
    measured = {row: [results.of(one, arguments.data) for one in runs] for row, runs in rows.items()}
    print(f"{arguments.model} in {arguments.precision}, {arguments.steps} steps, {arguments.seeds} seeds, ", end="")
    print(f"{arguments.nodes} nodes; differences to {codecs[0]}, {cases[0]}, with 95 % intervals")
    print(
        f"{'codec':<16}{'dates':<10}{'bytes':>7}  {'accuracy':>9}  {'difference':>16}  {'loss':>7}  {'difference':>17}"
        f"  diverged, of {codecs[0]}"
    )
    reference = measured[cases[0], codecs[0]]
    for (case, name), of_row in measured.items():
        print(_row(name, case, of_row, reference))
    return 0


def _diverged(runs: list[dict]) -> int:
    return sum(not math.isfinite(run["loss"]) for run in runs)


def _row(name: str, case: str, measured: list[dict], reference: list[dict]) -> str:
    """A run that diverges has nothing to average: means are those of the other pairs, and divergences are counted."""
    pairs = [pair for pair in zip(measured, reference, strict=True) if _diverged(list(pair)) == 0]
    diverged = f"  {_diverged(measured)}, {_diverged(reference)} of {len(measured)}"
    if not pairs:
        return f"{name:<16}{case:<10}  no pair in which no run diverged{diverged}"

    def column(key: str) -> tuple[float, float, float]:
        differences = [own[key] - other[key] for own, other in pairs]
        return statistics.fmean(own[key] for own, _ in pairs), *interval(differences)

    share = statistics.fmean(own["wire_bytes"] / other["wire_bytes"] for own, other in pairs)
    accuracy, accuracy_difference, accuracy_half = column("accuracy")
    loss, loss_difference, loss_half = column("loss")
    return (
        f"{name:<16}{case:<10}{share:>7.3f}  {accuracy:>7.2f} %  {accuracy_difference:>+7.2f} ± {accuracy_half:<6.2f}  "
        f"{loss:>7.4f}  {loss_difference:>+8.4f} ± {loss_half:<6.4f}{diverged}"
    )
