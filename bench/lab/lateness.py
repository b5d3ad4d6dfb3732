"""Training with late and merged updates of some parameters, in one process and without a network.

    percent = train(dates.parse("1:4+3@100"), open_dataset("images"), TrainingSettings(steps=300), seed=0)

gives the test accuracy. bench/lateness is the command line.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from lab.datasets import loss as loss_of
from lab.dates import PLAIN, Case
from lab.schedule import learning_rate_factor


class Late:
    """Momentum SGD on some parameters, with merged and late gradients as `case` has them."""

    def __init__(self, params: list[torch.Tensor], case: Case, learning_rate: float):
        self.params, self.case, self.learning_rate = params, case, learning_rate
        self.weights = [p.detach().clone() for p in params]  # without what the gradients look ahead
        self.sums = [torch.zeros_like(p) for p in params]
        self.momenta = [torch.zeros_like(p) for p in params]
        self.waiting: list[tuple[int, list[torch.Tensor]]] = []  # step that sees it, gradients

    @torch.no_grad()
    def step(self, step: int, scale: float = 1.0) -> None:
        """After the backward of `step`; `scale`: of the learning rate now."""
        case = self.case if step >= self.case.begins else PLAIN
        rate = scale * self.learning_rate * case.factor
        for total, param in zip(self.sums, self.params, strict=True):
            total += param.grad
        if (step + 1) % case.merged == 0:
            self.waiting.append((step + 1 + case.delay, [total / case.merged for total in self.sums]))
            self.sums = [torch.zeros_like(p) for p in self.params]
        while self.waiting and self.waiting[0][0] <= step + 1:
            gradients = self.waiting.pop(0)[1]
            for momentum, weight, param, gradient in zip(
                self.momenta, self.weights, self.params, gradients, strict=True
            ):
                momentum.mul_(case.momentum).add_(gradient)
                weight -= rate * momentum
                param.copy_(weight).sub_(case.ahead * rate * momentum)

    @torch.no_grad()
    def settle(self) -> None:
        """The parameters are the weights."""
        for weight, param in zip(self.weights, self.params, strict=True):
            param.copy_(weight)


def parts_of(params: list[torch.Tensor], case: Case, learning_rate: float) -> list[Late]:
    """The case's largest matrices, and all else, which is merged over `rest` steps and never late."""
    by_size = sorted(params, key=torch.numel, reverse=True)
    count = len(by_size) if case.late == "all" else int(case.late)
    rest = PLAIN._replace(merged=case.rest, begins=case.begins)
    return [Late(by_size[:count], case, learning_rate), Late(by_size[count:], rest, learning_rate)]


def small_cnn() -> nn.Module:
    """The lab's cnn at a quarter of its width: three quarters of the parameters are in one matrix here, too."""
    layers, inputs = [], 1
    for width in (16, 16, 0, 16, 16, 0):
        layers += [nn.Conv2d(inputs, width, 3, padding=1), nn.ReLU()] if width else [nn.MaxPool2d(2)]
        inputs = width or inputs
    layers += [nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)]
    return nn.Sequential(*layers)


@dataclass(frozen=True)
class TrainingSettings:
    steps: int = 300
    batch: int = 128
    learning_rate: float = 0.05
    schedule: str = "constant"


def train(case: Case, images, settings: TrainingSettings, seed: int) -> float:
    """The test accuracy in percent."""
    torch.manual_seed(seed)
    model = small_cnn()
    parts = parts_of(list(model.parameters()), case, settings.learning_rate)
    generator = torch.Generator().manual_seed(seed)
    for step in range(settings.steps):
        samples = torch.randint(images.samples, (settings.batch,), generator=generator)
        inputs, targets = images.batch(samples.numpy())
        model.zero_grad()
        loss_of(model(inputs), targets).backward()
        for part in parts:
            part.step(step, learning_rate_factor(settings.schedule, step, settings.steps))
    for part in parts:
        part.settle()
    with torch.no_grad():
        right = torch.cat([model(inputs).argmax(1) == targets for inputs, targets in images.held_out(0, 1)])
    return 100 * right.double().mean().item()
