"""Times the steps of a training, whatever framework computes: lab/worker.py's command `run`."""

from __future__ import annotations

import time
from collections.abc import Callable


def timed_steps(
    warmup: int,
    steps: int,
    train_step: Callable[[], float],
    settle: Callable[[], None],
    take_updates: Callable[[], float],
    reached: Callable[[int], None],
) -> dict:
    """Trains `warmup` steps and `steps` timed ones. `settle` waits at the end of both for all that a step has started.

    `train_step` gives the loss, `take_updates` the updates since its last call; `reached` hears of each timed step.
    """
    began = time.perf_counter()
    for _ in range(warmup):
        train_step()
    settle()
    take_updates()
    step_ms, losses = [], []
    cpu, last = time.process_time(), time.perf_counter()
    for step in range(steps):
        losses.append(train_step())
        if step + 1 == steps:
            settle()
        now = time.perf_counter()
        step_ms.append(1e3 * (now - last))
        last = now
        reached(step + 1)
    cpu_ms = 1e3 * (time.process_time() - cpu)
    return {
        "step_ms": step_ms,
        "losses": losses,
        "cpu_ms": cpu_ms,
        "updates": take_updates(),
        "wall_s": last - began,
    }
