"""The distributed optimizers of one session: their numbers, and whether ranks wait for each other in a circle.

    number = session.optimizers.number()                          # the same on all ranks
    session.optimizers.follow(progress)                           # of each optimizer: an OptimizerProgress
    with session.optimizers.waits("optimizer.0", 3, may_end=True):
        ...                                                       # waits in slices, and calls look() between them

One backward may reach several optimizers, and on each rank others. A rank that waits at its end for optimizer A, while
another rank waits for B there, would wait for ever. So a rank that has waited a while writes to the job's key-value
store what it waits for and how far it is with each optimizer, and reads what the others have written. In a circle
- it declares what others want to declare: that binds it to nothing, or else
- its wait ends with CircularWait, if it can do without. From then on `circle_was_met`, and no backward should wait, or
- after DEFT_TIMEOUT it raises an error that names the circle.
"""

import contextlib
import itertools
import json
import logging
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from deft._native import DeftError
from deft.durations import timeout_seconds
from deft.wait_circle import Standing, circle_through

log = logging.getLogger("deft")

_PATIENCE_S = 0.5  # a wait that ends sooner asks nobody
_FRESH_S = 5.0
_MOST_BYTES = 4096  # of a value in the store


class CircularWait(Exception):
    """Ranks wait for each other, and this rank can go on without what it waits for."""


class OptimizerProgress(Protocol):
    """Of one optimizer on this rank; `name` is the same on all ranks."""

    name: str

    def handed_in(self) -> int:
        """How often this rank has done its part: its declaration counts once, and so does each generation."""

    def may_declare(self) -> bool:
        """Whether no backward has come to it yet."""

    def declare(self) -> None:
        """Declares it together with the ranks whose backward has."""


@dataclass(eq=False)
class _Wait:
    name: str  # of an optimizer
    number: int  # what handed_in() has to be on all ranks
    may_end: bool
    since: float
    thread: int


class SessionOptimizers:
    """Any thread may wait; what it waits for is looked at between the slices of that wait."""

    def __init__(self, session):
        self._session = session
        self._numbers = itertools.count()
        self._progress: dict[str, OptimizerProgress] = {}
        self._waits: list[_Wait] = []  # the innermost is the last
        self._written = ""  # in the store
        self._questions: dict[int, Any] = {}  # to the store, by rank
        self._others: dict[int, Standing] = {}
        self._heard: dict[int, float] = {}  # when, by rank
        self.circle_was_met = False

    def number(self) -> int:
        return next(self._numbers)

    def follow(self, progress: OptimizerProgress) -> None:
        self._progress[progress.name] = progress

    def are_several(self) -> bool:
        return len(self._progress) > 1

    def forget(self, name: str) -> None:
        self._progress.pop(name, None)

    @contextlib.contextmanager
    def waits(self, name: str, number: int, may_end: bool = False) -> Iterator[None]:
        """Around a wait until all ranks have handed in `number` times. `may_end`: it may raise CircularWait."""
        wait = _Wait(name, number, may_end, time.monotonic(), threading.get_ident())
        self._waits.append(wait)
        try:
            yield
        finally:
            self._waits.remove(wait)
            with contextlib.suppress(DeftError):  # of a lost job, whose error is under way
                self._write("")

    def look(self) -> None:
        """The innermost wait goes on."""
        wait = next(reversed(self._waits), None)
        if wait is None or wait.thread != threading.get_ident() or not self.are_several() or self._session.size == 1:
            return
        age_s = time.monotonic() - wait.since
        if age_s < _PATIENCE_S:
            return
        own = self._own(wait)
        self._write(own.as_text())
        self._read()
        circle = circle_through(self._session.rank, {**self._others, self._session.rank: own})
        if circle:
            self._leave(wait, circle, age_s)
        elif age_s > timeout_seconds() and self._all_wait_unevenly(own):
            raise RuntimeError(f"{self._described(range(self._session.size))}, on several nodes: {_WRAP_FIRST}")

    def _own(self, wait: _Wait) -> Standing:
        handed_in = {name: progress.handed_in() for name, progress in self._progress.items()}
        for waiting in self._waits:
            handed_in[waiting.name] = max(waiting.number, handed_in.get(waiting.name, 0))
        return Standing(wait.name, wait.number, handed_in)

    def _leave(self, wait: _Wait, circle: list[int], age_s: float) -> None:
        wanted = self._others[circle[-1]].name
        progress = self._progress.get(wanted)
        # All ranks declare in one order: what this rank is declaring comes before what has a later name.
        if progress is not None and progress.may_declare() and (wait.number > 1 or wanted < wait.name):
            progress.declare()
            return
        if wait.may_end:
            if not self.circle_was_met:
                log.warning("%s. From now on backward() does not wait for averages: %s", self._described(circle), _CLIP)
            self.circle_was_met = True
            raise CircularWait
        if age_s > timeout_seconds():
            raise RuntimeError(f"{self._described(circle)}, and none of them can go on: {_REACH_ALL}")

    def _all_wait_unevenly(self, own: Standing) -> bool:
        """A node sends in the order of the leader, so what a rank has handed in may stand behind what it has not.

        Not if the optimizers were there before the first backward, unless some are amid their passes: StepStart."""
        others = [rank for rank, heard in self._heard.items() if time.monotonic() - heard < _FRESH_S]
        handed_in = [own.handed_in, *(self._others[rank].handed_in for rank in others)]
        return len(handed_in) == self._session.size and any(one != own.handed_in for one in handed_in)

    def _described(self, circle: Iterable[int]) -> str:
        standing = {**self._others, self._session.rank: self._own(self._waits[-1])}
        waits = ", ".join(f"rank {rank} for '{standing[rank].name}'" for rank in sorted(set(circle)))
        return f"ranks wait for each other's gradients ({waits}), because each backward reached other optimizers"

    def _write(self, text: str) -> None:
        if text != self._written and len(text.encode()) <= _MOST_BYTES:
            self._session.set(_key(self._session.rank), text.encode())
            self._written = text

    def _read(self) -> None:
        for rank in range(self._session.size):
            if rank == self._session.rank:
                continue
            if rank not in self._questions:
                self._questions[rank] = self._session.ask(_key(rank))
            answer = self._questions[rank].answer()
            if answer is not None:
                self._others[rank] = Standing(**json.loads(answer))
                self._heard[rank] = time.monotonic()
                del self._questions[rank]


_CLIP = "call optimizer.synchronize() before you clip or change gradients"
_REACH_ALL = (
    "let each backward() reach the same optimizers on all ranks, for instance by adding 0 times the output of the "
    "other model to the loss, or use one optimizer with several parameter groups"
)
_WRAP_FIRST = f"wrap all optimizers before the first backward(), or {_REACH_ALL}"


def _key(rank: int) -> str:
    return f"waits.{rank}"
