"""The mean of values that vary, and how well they tell it."""

from __future__ import annotations

import math
import statistics

# Of Student's t, for a two-sided interval of 95 %, by degrees of freedom from 1 on.
_T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)


def interval(values: list[float]) -> tuple[float, float]:
    """The mean, and half the width of its 95 % interval; infinite for a single value, or a run that diverged."""
    mean = statistics.fmean(values)
    if len(values) < 2 or not math.isfinite(mean):
        return mean, math.inf
    freedom = len(values) - 1
    t = _T95[freedom - 1] if freedom <= len(_T95) else 1.96 + 2.5 / freedom
    return mean, t * statistics.stdev(values) / math.sqrt(len(values))
