"""The times of a step, layer by layer: when forward first needs each parameter, and when backward has its gradient.

    watch = Watch(model)
    watch.begin(); ...; watch.forward(); ...; watch.backward(); ...; watch.update(); ...; step = watch.end()
    watch.remove()

On the CPU an operation is done when its call returns, so the clock in a hook is exact.
"""

from __future__ import annotations

import time

from torch import nn


class Watch:
    def __init__(self, model: nn.Module):
        self._names = {parameter: name for name, parameter in model.named_parameters()}
        self._needed: dict[str, float] = {}
        self._ready: dict[str, float] = {}
        self._marks: list[float] = []
        self._hooks = [p.register_post_accumulate_grad_hook(self._gradient) for p in self._names]
        for module in model.modules():
            own = [self._names[p] for p in module.parameters(recurse=False)]
            if own:
                self._hooks.append(module.register_forward_pre_hook(self._use(own)))

    def _use(self, names: list[str]):
        def note(_module, _inputs) -> None:
            now = time.perf_counter()
            for name in names:
                self._needed.setdefault(name, now)

        return note

    def _gradient(self, parameter: nn.Parameter) -> None:
        self._ready[self._names[parameter]] = time.perf_counter()

    def begin(self) -> None:
        self._needed.clear()
        self._ready.clear()
        self._marks = [time.perf_counter()]

    def _mark(self) -> None:
        self._marks.append(time.perf_counter())

    forward = backward = update = _mark

    def end(self) -> dict:
        """The step in microseconds; its tensors in the order in which backward made their gradients."""
        self._mark()
        began, forward, backward, update, end = self._marks
        bytes_of = {name: p.numel() * p.element_size() for p, name in self._names.items()}
        tensors = [
            {
                "name": name,
                "bytes": bytes_of[name],
                "needed_us": 1e6 * (self._needed.get(name, forward) - forward),
                "ready_us": 1e6 * (at - backward),
            }
            for name, at in self._ready.items()
        ]
        spans = zip(("before_us", "forward_us", "backward_us", "update_us"),
                    (began, forward, backward, update), (forward, backward, update, end), strict=True)  # fmt: skip
        return {"tensors": tensors} | {name: 1e6 * (to - since) for name, since, to in spans}

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()
