"""Compute as if an accelerator did it: each layer takes the time that it took on the cores, and uses no core.

    model = Replay(MAKERS["cnn"](), layers, rank)      # layers: of lab.layers; rank: a worker's
    loss(model(inputs), targets).backward()            # of Blank's batches

The model has the parameters of the measured model, in a chain in the order in which forward needs them. Their
gradients are ready-made, another one a rank. A replayed model learns nothing, but a scheme that loses or doubles a
gradient leaves replicas that differ. The optimizer works on the cores, as all of the plugin does.
"""

from __future__ import annotations

import ctypes
import time
from collections import defaultdict

import numpy as np
import torch
from torch import nn

from lab.layers import Layers

_SET_TIMER_SLACK = 29  # of sys/prctl.h; nanoseconds by which a sleep may be longer, 50,000 otherwise


class Replay(nn.Module):
    def __init__(self, model: nn.Module, layers: Layers, rank: int):
        super().__init__()
        ctypes.CDLL(None).prctl(_SET_TIMER_SLACK, 1, 0, 0, 0)
        own = dict(model.named_parameters())
        generator = torch.Generator().manual_seed(rank)
        self._first_s, spans = chain(layers)
        self.layers = nn.Sequential(
            *(_Layer([own[name] for name in names], *times, generator) for names, *times in spans)
        )

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        time.sleep(self._first_s)
        return self.layers(inputs)


def chain(layers: Layers) -> tuple[float, list[tuple[list[str], float, float]]]:
    """In seconds: what comes before the first layer; and in forward's order each module's parameters and times."""
    modules = defaultdict(list)
    for tensor in sorted(layers.tensors, key=lambda tensor: tensor.needed_us):
        modules[tensor.name.rpartition(".")[0]].append(tensor)
    groups = list(modules.values())
    needed = [min(tensor.needed_us for tensor in module) for module in groups] + [layers.forward_us]
    spans, ready_us = [], 0.0
    for place in reversed(range(len(groups))):
        before, ready_us = ready_us, max([ready_us] + [tensor.ready_us for tensor in groups[place]])
        names = [tensor.name for tensor in groups[place]]
        spans.append((names, 1e-6 * (needed[place + 1] - needed[place]), 1e-6 * (ready_us - before)))
    first_us = layers.other_us + needed[0] + layers.backward_us - ready_us
    return 1e-6 * max(0.0, first_us), spans[::-1]


class _Layer(nn.Module):
    def __init__(self, parameters: list[nn.Parameter], forward_s: float, backward_s: float, generator: torch.Generator):
        super().__init__()
        for number, parameter in enumerate(parameters):
            self.register_parameter(f"part{number}", parameter)
        self.forward_s, self.backward_s = forward_s, backward_s
        self.gradients = [1e-3 * torch.randn(p.shape, generator=generator) for p in parameters]

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        time.sleep(self.forward_s)
        return _Work.apply(inputs, self, *self.parameters())


class _Work(torch.autograd.Function):
    """The backward of a layer."""

    @staticmethod
    def forward(ctx, inputs, layer, *_parameters):
        ctx.layer = layer
        return inputs.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(ctx.layer.backward_s)
        return gradient, None, *ctx.layer.gradients


class Blank:
    """A data set for Replay, whose samples hold nothing; it has as many as the one it stands for."""

    def __init__(self, samples: int):
        self.samples = samples

    def batch(self, _index: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.zeros(1, 2), torch.zeros(1, dtype=torch.long)
