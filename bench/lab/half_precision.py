"""Backward in half precision, as scripts with autocast and GradScaler have it, for several nodes in one process.

backward = Backward("float16", model, params)
gradients = backward(inputs, targets)         # of each node, not scaled
if backward.accepts(nodes): ...               # the same answer for all nodes, as with Deft
"""

from __future__ import annotations

import math

import torch
from torch import nn

from lab.datasets import loss as loss_of


class LossScale:
    """The scale of torch's GradScaler with its defaults.

    It is halved when a gradient is not finite, and doubled after 2,000 steps in which all were. It is a power of
    two, so a scaled gradient has the codes of an unscaled one.
    """

    def __init__(self) -> None:
        self.factor, self._good_steps = 65536.0, 0

    def accepts(self, nodes: list[tuple[torch.Tensor, ...]]) -> bool:
        """False: all nodes skip this step, as a gradient of one of them is not finite."""
        good = all(bool(gradient.isfinite().all()) for own in nodes for gradient in own)
        self._good_steps = self._good_steps + 1 if good else 0
        if not good:
            self.factor /= 2
        elif self._good_steps == 2000:
            self.factor, self._good_steps = 2 * self.factor, 0
        return good


class Backward:
    """Gradients of one batch on one node, in float32, or in float16 by autocast."""

    def __init__(self, precision: str, model: nn.Module, params: list[nn.Parameter]):
        self._model, self._params = model, params
        self._scale = LossScale() if precision == "float16" else None

    def __call__(self, inputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, ...] | None:
        """None: the loss is not finite."""
        with torch.autocast("cpu", torch.float16, enabled=self._scale is not None):
            loss = loss_of(self._model(inputs), targets)
        if not math.isfinite(loss.item()):
            return None
        factor = self._scale.factor if self._scale else 1.0
        gradients = torch.autograd.grad(loss * factor, self._params)
        return tuple(gradient / factor for gradient in gradients) if self._scale else gradients

    def accepts(self, nodes: list[tuple[torch.Tensor, ...]]) -> bool:
        return self._scale is None or self._scale.accepts(nodes)
