"""A step of a model, layer by layer, as lab/layer_times.py has measured it."""

from __future__ import annotations

import statistics
from dataclasses import dataclass


@dataclass(frozen=True)
class LayerTensor:
    name: str
    bytes: int
    needed_us: float  # since forward began
    ready_us: float  # since backward began


@dataclass(frozen=True)
class Layers:
    """A step of the model, in medians over many; tensors in the order in which backward makes their gradients."""

    tensors: list[LayerTensor]
    forward_us: float
    backward_us: float
    other_us: float  # the samples, and whatever else comes before forward
    update_us: float

    @property
    def step_us(self) -> float:
        return self.forward_us + self.backward_us + self.other_us + self.update_us


def medians(steps: list[dict]) -> Layers:
    """Of what lab.layer_times.Watch has seen, on all workers."""
    order = [tensor["name"] for tensor in steps[0]["tensors"]]
    seen = {name: [t for step in steps for t in step["tensors"] if t["name"] == name] for name in order}

    def middle(values: list[dict], key: str) -> float:
        return statistics.median(value[key] for value in values)

    tensors = [
        LayerTensor(name, seen[name][0]["bytes"], middle(seen[name], "needed_us"), middle(seen[name], "ready_us"))
        for name in order
    ]
    spans = (middle(steps, f"{name}_us") for name in ("forward", "backward", "before", "update"))
    return Layers(tensors, *spans)
