"""Gives some processes no more than a share of the CPU, as the kernel's bandwidth control does for a control group.

    govern([pid, ...], cores=0.5)     # for ever

In each period the processes may use cores x the period of CPU time; then they are stopped until the period ends. What
they used too much, since a check came late, is taken off the next periods. An ordinary user may do this to processes of
his own, with no control group to write to; and a node that waits for the network keeps its allowance, as with cpu.max.
"""

from __future__ import annotations

import os
import signal
import time

PERIOD_S = 0.02
_SHORTEST_SLEEP_S = 0.0005


def cpu_seconds(process: int) -> float:
    """Of all its threads; an ended process has used none."""
    # The clock of another process's CPU time has a number that follows from its id (clock_getcpuclockid).
    try:
        return time.clock_gettime((~process << 3) | 2)
    except OSError:
        return 0.0


def govern(processes: list[int], cores: float, *_pipes: int) -> None:
    used = sum(map(cpu_seconds, processes))
    allowed = used
    period_end = time.monotonic()
    while True:
        now = time.monotonic()
        period_end = max(period_end + PERIOD_S, now)  # periods that were slept through give nothing
        allowed = min(allowed + cores * PERIOD_S, used + cores * PERIOD_S)  # nor does the rest of the last one
        used = _one_period(processes, cores, allowed, period_end)


def _one_period(processes: list[int], cores: float, allowed: float, end: float) -> float:
    """Lets the processes run until they have used all that is allowed or the period is over; gives what they used."""
    while (left_s := end - time.monotonic()) > 0:
        used = sum(map(cpu_seconds, processes))
        if used >= allowed:
            _signal(processes, signal.SIGSTOP)
            time.sleep(max(0.0, end - time.monotonic()))
            break
        time.sleep(max(_SHORTEST_SLEEP_S, min(left_s, (allowed - used) / max(1.0, cores))))
    used = sum(map(cpu_seconds, processes))
    if used < allowed + cores * PERIOD_S:  # deep in debt they stay stopped for the next period too
        _signal(processes, signal.SIGCONT)
    return used


def _signal(processes: list[int], number: int) -> None:
    for process in processes:
        try:
            os.kill(process, number)
        except ProcessLookupError:
            pass
