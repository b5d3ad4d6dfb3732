"""Compares two settings by turns: A B B A A B B A ...

The network and the machines drift. So a setting is never compared with what another one took some minutes ago, but with
what the best one takes beside it: each block of steps of the one has a neighbour of the other, and in ABBA a steady
drift cancels.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass

from deft_tuner.measure import Measured, measured, t_95
from deft_tuner.settings import Settings

# Runs the job with these settings, and gives the times of so many steps.
Run = Callable[[Settings, int], list[float]]


@dataclass(frozen=True)
class Rules:
    block_steps: int = 8
    least_pairs: int = 4  # of neighbouring blocks
    most_pairs: int = 12
    least_gain: float = 0.01  # of a step: less is not worth another setting
    hopeless: float = (
        0.15  # a setting that is so much slower in each of the first two pairs is not looked at any longer
    )


@dataclass(frozen=True)
class Duel:
    """The result. `gain`: the share of a step that the other setting saves; `noise`: half of its 95 % interval."""

    best: Measured
    other: Measured
    gain: float
    noise: float
    pairs: int

    def times(self) -> tuple[str, str]:
        """The best one's step, and what the gain makes of it.

        The other's own median drifts with the network, and may contradict the gain.
        """
        return f"{self.best.us / 1e3:.2f} ms", f"{self.best.us * (1 - self.gain) / 1e3:.2f} ms"

    @property
    def is_better(self) -> bool:
        return self.gain > self.noise

    @property
    def is_worse(self) -> bool:
        return self.gain < -self.noise


def estimate(ratios: list[float]) -> tuple[float, float]:
    """The gain by the logarithms of other over best, and its noise."""
    mean = statistics.fmean(ratios)
    if len(ratios) < 2:
        return 1 - math.exp(mean), math.inf
    error = t_95(len(ratios) - 1) * statistics.stdev(ratios) / len(ratios) ** 0.5
    return 1 - math.exp(mean), math.exp(mean) * error


def is_over(ratios: list[float], rules: Rules) -> bool:
    """True once more pairs would not change the decision."""
    if len(ratios) % 2 == 1:
        return False  # the drift has not cancelled
    if len(ratios) < rules.least_pairs:
        return len(ratios) > 0 and min(ratios) > math.log(1 + rules.hopeless)
    gain, noise = estimate(ratios)
    return len(ratios) >= rules.most_pairs or abs(gain) > noise or abs(gain) + noise < rules.least_gain


def duel(run: Run, best: Settings, other: Settings, rules: Rules) -> Duel:
    times: dict[bool, list[float]] = {False: [], True: []}  # by: is it the other's
    ratios: list[float] = []
    while not is_over(ratios, rules):
        block: dict[bool, list[float]] = {}
        for is_other in (False, True) if len(ratios) % 2 == 0 else (True, False):
            block[is_other] = run(other if is_other else best, rules.block_steps)
            times[is_other] += block[is_other]
        ratios.append(math.log(statistics.median(block[True]) / statistics.median(block[False])))
    gain, noise = estimate(ratios)
    return Duel(measured(times[False]), measured(times[True]), gain, noise, len(ratios))
