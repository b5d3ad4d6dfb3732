"""Holds back what this rank hands in of a step until all ranks have begun that step.

    start = StepStart(session, "optimizer.0", group.ready)
    start.begin(7)                 # this rank comes to step 7; it waits for nobody
    start.ready(3, 1, 7, 0)        # group.ready(3, 1, 7, 0), at once or when all ranks have come to step 7
    start.close()

It is for several optimizers on several nodes. One backward may reach some of them, and on each rank others. The leader
orders what its own node has handed in, and every node sends in that order. So gradients of an optimizer that some rank
has not come to must not be ordered: whatever else that rank hands in would stand behind them. On one node the daemon
itself waits for all ranks.
"""

import collections
import contextlib
import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from deft._native import DeftError


@dataclass
class _Pending:
    """A step that this rank has begun, and some rank perhaps not."""

    step: int
    calls: list[tuple] = field(default_factory=list)
    all_began: bool = False


class StepStart:
    """`hand_over` is called with the arguments of ready(), in the same order, on this thread or on one of libdeft."""

    def __init__(self, session, name: str, hand_over: Callable[..., None]):
        self._session, self._name, self._hand_over = session, name, hand_over
        self._leads = session.node == session.node_of(0)  # this node's gradients are what the leader orders
        self._lock = threading.Lock()
        self._begun = -1  # the newest step
        self._pending: collections.deque[_Pending] = collections.deque()  # the oldest is the first

    def begin(self, step: int) -> None:
        """Comes before the first ready() of a step. A second time does nothing."""
        if step == self._begun:
            return
        self._begun = step
        # Ranks that have joined (deft.joining) learn of the step itself, and begin it, too.
        everyone = self._session.start_barrier(f"{self._name}.begins.{step}", announced=False)
        pending = _Pending(step)
        if self._leads:
            with self._lock:
                self._pending.append(pending)
        everyone.when_done(functools.partial(self._all_began, pending, everyone))

    def ready(self, *arguments) -> None:
        with self._lock:
            if self._pending:
                self._pending[-1].calls.append(arguments)
            else:
                self._hand_over(*arguments)

    def close(self) -> None:
        """Nothing is handed over any more."""
        with self._lock:
            self._pending.clear()

    def _all_began(self, pending, everyone, _error) -> None:
        with contextlib.suppress(DeftError):  # of a lost job, whose error meets whoever waits for the gradients
            everyone.finish()
        with self._lock:
            pending.all_began = True
            while self._pending and self._pending[0].all_began:
                self._release(self._pending.popleft())

    def _release(self, pending) -> None:
        with contextlib.suppress(DeftError):
            for arguments in pending.calls:
                self._hand_over(*arguments)
