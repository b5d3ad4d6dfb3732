"""Step times: each step once, and how far off their median may be."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

# Half of the width of a 95 % interval in standard errors, by degrees of freedom (Student's t).
T_95 = (
    12.71,
    4.30,
    3.18,
    2.78,
    2.57,
    2.45,
    2.36,
    2.31,
    2.26,
    2.23,
    2.20,
    2.18,
    2.16,
    2.14,
    2.13,
    2.12,
    2.11,
    2.10,
    2.09,
)
MEDIAN_OF_NORMAL = 1.2533  # a median errs by so many times as much as a mean
MAD_OF_NORMAL = 1.4826


def t_95(degrees: int) -> float:
    return T_95[degrees - 1] if degrees <= len(T_95) else 1.96 + 2.5 / degrees


@dataclass(frozen=True)
class Measured:
    """The usual time of a step. `noise_us`: half of the 95 % interval of the median."""

    us: float
    noise_us: float
    steps: int

    def __str__(self) -> str:
        return f"{self.us / 1e3:.2f} ms +- {self.noise_us / 1e3:.2f}"


def measured(steps_us: list[float]) -> Measured:
    middle = statistics.median(steps_us)
    spread = MAD_OF_NORMAL * statistics.median(abs(us - middle) for us in steps_us)
    return Measured(middle, 1.96 * MEDIAN_OF_NORMAL * spread / len(steps_us) ** 0.5, len(steps_us))


class StepLog:
    """The steps of many statuses put together: one status tells only the newest steps."""

    def __init__(self) -> None:
        self.us: dict[int, float] = {}

    def take(self, first_step: int, us: list[float]) -> None:
        self.us.update(enumerate(us, first_step))

    def newest(self) -> int:
        """One more than the newest step that has ended."""
        return max(self.us, default=-1) + 1

    def count_from(self, step: int) -> int:
        return sum(1 for known in self.us if known >= step)

    def from_step(self, step: int, count: int) -> list[float]:
        """The times of the first `count` known steps from `step` on."""
        return [self.us[known] for known in sorted(self.us) if known >= step][:count]

    def forget_before(self, step: int) -> None:
        self.us = {known: us for known, us in self.us.items() if known >= step}
