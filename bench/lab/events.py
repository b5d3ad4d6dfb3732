"""Changes while a scheme runs: of a NIC's rate, or of a node's share of its cores.

    --nic-event 'eth1@step 50: 50mbit'        all nodes' eth1; 'node1/eth1@step 50: 50mbit' only that one
    --nic-event 'node1/eth1@step 50: down'    takes it down, as a pulled cable or a dead switch would
    --straggler 'node1@step 30: 0.5'          node 1 gets half of its cores from then on

A step is counted from the first timed one of a scheme's turn, and happens when rank 0 reports it. When the scheme's
turn is over all is as before.
"""

from __future__ import annotations

import functools
import os
import re
import signal
from dataclasses import dataclass
from pathlib import Path

from lab import governor, rates
from lab.job import Job
from lab.netns import DOWN, ForkedProcess, Nodes

_FORM = re.compile(r"\s*(?:node(\d+))?(/)?(?:eth(\d+))?\s*@\s*step\s*(\d+)\s*:\s*(\S+)\s*")


@dataclass(frozen=True)
class NicEvent:
    step: int
    nic: int
    node: int | None  # None: on all
    rate: str

    def __str__(self) -> str:
        how = "down" if self.rate == DOWN else f"at {self.rate}"
        return f"{'' if self.node is None else f'node{self.node}/'}eth{self.nic} {how}"


@dataclass(frozen=True)
class Straggler:
    step: int
    node: int
    share: float

    def __str__(self) -> str:
        return f"node{self.node} gets {self.share:g} of its cores"


def parse_nic_event(text: str, nodes: int, nics: int) -> NicEvent:
    match = _FORM.fullmatch(text)
    if not match or match[3] is None or (match[1] is None) != (match[2] is None):
        raise ValueError(f"--nic-event '{text}': write it as 'eth1@step 50: 50mbit' or 'node1/eth1@step 50: 50mbit'")
    node, nic = None if match[1] is None else int(match[1]), int(match[3])
    if nic >= nics or (node is not None and node >= nodes):
        raise ValueError(f"--nic-event '{text}': there are eth0 to eth{nics - 1} on node0 to node{nodes - 1}")
    if match[5] != DOWN:
        rates.bits_per_second(match[5])
    return NicEvent(int(match[4]), nic, node, match[5])


def parse_straggler(text: str, nodes: int) -> Straggler:
    match = _FORM.fullmatch(text)
    if not match or match[1] is None or match[2] is not None or match[3] is not None:
        raise ValueError(f"--straggler '{text}': write it as 'node1@step 30: 0.5'")
    try:
        share = float(match[5])
    except ValueError:
        share = 0.0
    if not 0.01 <= share < 1:
        raise ValueError(f"--straggler '{text}': the share is a number from 0.01 to below 1")
    if int(match[1]) >= nodes:
        raise ValueError(f"--straggler '{text}': there are node0 to node{nodes - 1}")
    return Straggler(int(match[4]), int(match[1]), share)


class Events:
    """The events of one scheme's turn."""

    def __init__(self, lab: Nodes, job: Job, due: list[NicEvent | Straggler], logs: Path):
        self._lab, self._job, self._logs = lab, job, logs
        self._due = sorted(due, key=lambda event: event.step)
        self._governors: list[tuple[ForkedProcess, list[int]]] = []

    def reached(self, step: int) -> list[NicEvent | Straggler]:
        """Makes the events happen that are due at this step; gives them."""
        now = [event for event in self._due if event.step <= step]
        self._due = self._due[len(now) :]
        for event in now:
            if isinstance(event, NicEvent):
                self._lab.change(event.nic, event.rate, event.node)
            else:
                self._slow_down(event)
        return now

    def still_due(self) -> list[NicEvent | Straggler]:
        return self._due

    def _slow_down(self, event: Straggler) -> None:
        processes = self._job.processes(event.node)
        allowed = event.share * len(self._lab.cores[event.node])
        work = functools.partial(governor.govern, processes, allowed)
        child = self._lab.fork(event.node, work, {}, self._logs / f"governor-node{event.node}.log")
        self._governors.append((child, processes))

    def end(self) -> None:
        """Gives the nodes their cores back. The NICs are the caller's to shape anew."""
        for child, processes in self._governors:
            child.kill()
            child.wait()
            for process in processes:
                try:
                    os.kill(process, signal.SIGCONT)
                except ProcessLookupError:
                    pass
        self._governors.clear()
