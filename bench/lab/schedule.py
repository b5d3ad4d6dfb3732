"""Learning-rate schedules of a training of a known length, by name: factors of the learning rate that was asked for.

constant   1 in every step
cosine     rises linearly over the first twentieth, then falls along half a cosine to 0, as most trainings end today
"""

from __future__ import annotations

import math

WARMUP = 0.05  # of all steps

SCHEDULES = {
    "constant": lambda _: 1.0,
    "cosine": lambda done: min(1.0, done / WARMUP) * 0.5 * (1 + math.cos(math.pi * min(1.0, done))),
}


def learning_rate_factor(name: str, step: int, steps: int) -> float:
    """Of the update that `step` makes, of 0 to steps - 1; a run that goes on beyond stays as it ended."""
    return SCHEDULES[name](min(step + 1, steps) / (steps + 1))
