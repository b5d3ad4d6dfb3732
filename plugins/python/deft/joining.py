"""join(): a rank that has no more data takes part in the others' reductions with zeros, until all ranks have joined.

    last = join(session, gradients)      # `gradients`: of each distributed optimizer, see ZeroGradients

A rank that joins writes so to the job's key-value store. A rank whose collective or gradients have not come after a
while asks the store once. When it knows that someone has joined, it announces there what it begins, and what is under
way: collectives, and rounds of gradients. Ranks that have joined follow the announcements of one rank, the first that
has not joined, and begin the same with zeros. One rank is enough, since nothing ends before all ranks have begun it.
They also ask for residuals as that rank does.

Zeros are never handed over before that: a rank's gradients make the leader order their transfer, and whatever the other
ranks do first would wait behind it for ever.

Two ranks that join may have different gradients under way, for instance after backwards that failed midway. So a rank
that joins waits for no gradients before all have joined: it announces its own, and follows the others.

A rank that has no more data may let its optimizer go and join then, while others still train. So gradients that nobody
uses any more stay until their rank begins something else than join(): a collective, or a round of others. The ranks
that have not joined do the same in the same order, so none of them asks for these gradients from then on.
"""

import collections
import contextlib
import ctypes
import json
import threading
import time
import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from deft._native import DeftError

_LOOK_S = 0.01  # how long a rank that has joined waits for an announcement before it looks whether all have joined
_INT64 = 6
_NAMES_KEPT = 65536
_REFUSED = "rank {} has joined; join() goes with allreduce by Sum or Average alone"


class Call(NamedTuple):
    """A collective that this rank has started; what another rank needs to know to start it with zeros."""

    collective: int
    name: str
    count: int  # elements
    dtype: int
    op: int
    terms: str


class ZeroGradients(Protocol):
    """The gradients of one distributed optimizer; `name` is the same on all ranks."""

    name: str

    def join_begins(self) -> None:
        """Hands over what is missing of the round under way, and does not wait for its end.

        A round in which nothing was handed over may be dropped: Joining.round_dropped()."""

    def join_ends(self) -> None:
        """Waits for the round that is still under way, and drops its result."""

    def rounds(self) -> int:
        """How many rounds are done."""

    def give_zeros(self, number: int) -> None:
        """Hands over zeros in round `number`, unless this rank has handed in its own gradients. Waits for an earlier
        round that is under way, which other ranks have done."""


class ResidualGradients(ZeroGradients, Protocol):
    """Of gradients that can bring what encodings have left out."""

    def send_residuals(self, step: int) -> None:
        """The round `step`, the next one, brings them."""


class UnusedGradients(ZeroGradients, Protocol):
    """Of an optimizer that has gone."""

    def release(self) -> bool:
        """Gives their memory back, if no thread works in it: then True."""


@dataclass
class _Known:
    """What this rank knows until all ranks have joined; then it begins anew."""

    begun: int = 0  # collectives and rounds of gradients
    joined: bool = False  # this rank has
    someone: bool = False  # another rank has joined
    question: Any = None  # to the store, whether someone has
    under_way: dict[str, Call] = field(default_factory=dict)
    rounds: dict[str, int] = field(default_factory=dict)  # the newest round of gradients, by optimizer
    residuals: dict[str, int] = field(default_factory=dict)  # the newest round that brings them, by optimizer
    started: collections.OrderedDict[str, int] = field(default_factory=collections.OrderedDict)  # how often, by name
    announced: int = 0


class Joining:
    """What one session knows of ranks that have joined. Any thread may call the methods.

    `lock` is held while a method uses the session, so whoever closes the session takes it."""

    def __init__(self, session):
        self._session = session
        self.lock = threading.RLock()
        self.round = 0  # how often all ranks have joined
        self.hindered_by: weakref.WeakSet = weakref.WeakSet()  # what waits for other ranks without look()
        self._unused: collections.deque[UnusedGradients] = collections.deque()
        self._known = _Known()

    @property
    def begun(self) -> int:
        """Collectives and rounds of gradients since all ranks joined last."""
        return self._known.begun

    def let_go(self, gradients: UnusedGradients) -> None:
        """They are released when this rank begins something else, or when all ranks have joined.

        It waits for nothing, so a finalizer may call it, on any thread."""
        self._unused.append(gradients)

    def unused(self) -> list[UnusedGradients]:
        return list(self._unused)

    def begins(self) -> None:
        """A collective or a round of gradients is about to begin."""
        if self._known.joined:
            return  # it is of another rank, which may ask for more
        for _ in range(len(self._unused)):
            with contextlib.suppress(IndexError):  # another thread does the same
                gradients = self._unused.popleft()
                if not gradients.release():
                    self._unused.append(gradients)

    def started(self, call: Call) -> None:
        with self.lock:
            self._known.begun += 1
            self._known.under_way[call.name] = call
            self._known.started[call.name] = self._known.started.pop(call.name, 0) + 1
            if len(self._known.started) > _NAMES_KEPT:
                self._known.started.popitem(last=False)
            if self._known.someone:
                self._announce(call)

    def round_begins(self, name: str, number: int) -> None:
        """Gradients of an optimizer are about to be handed over."""
        self.begins()
        with self.lock:
            self._known.begun += 1
            self._known.rounds[name] = number
            if self._known.someone:
                self._write({"round": [name, number]})

    def round_dropped(self, name: str) -> bool:
        """This rank, which joins, has begun a round and handed nothing over. False: others were told of the round."""
        with self.lock:
            if not self._known.someone:
                self._known.rounds.pop(name, None)
            return not self._known.someone

    def residuals_asked(self, name: str, number: int) -> None:
        """The next round of these gradients brings the residuals. Rank 0 tells the leader, also if it has joined."""
        with self.lock:
            self._known.residuals[name] = number
            if self._known.someone:
                self._write({"residuals": [name, number]})

    def ended(self, name: str) -> None:
        with self.lock:
            self._known.under_way.pop(name, None)

    def look(self) -> None:
        """A collective, or a round of gradients, has not ended yet."""
        if self._known.someone or self._known.joined or self._session.size == 1:
            return
        with self.lock:
            if self._known.question is None:
                self._known.question = self._session.ask(self._key())
            elif not self._known.someone and self._known.question.answer() is not None:
                self._known.someone = True
                self._announce_all()

    def _announce_all(self) -> None:
        """Rounds first: the collectives under way may be those that declare gradients."""
        for name, number in self._known.residuals.items():
            if number >= self._known.rounds.get(name, number):
                self._write({"residuals": [name, number]})
        for name, number in self._known.rounds.items():
            self._write({"round": [name, number]})
        for call in self._known.under_way.values():
            self._announce(call)

    def starts_of(self, name: str) -> int:
        return self._known.started.get(name, 0)

    def newest_round(self, name: str) -> int:
        """That this rank has begun itself; -1: none."""
        return self._known.rounds.get(name, -1)

    def announce_end(self) -> None:
        """This rank joins."""
        with self.lock:
            if not self._known.someone:  # else all is announced
                self._announce_all()
            self._known.joined, self._known.someone = True, False
            self._write({"joined": True})
            self._session.set(self._key(), b"1")

    def key_of(self, rank: int, number: int) -> str:
        """Of the store: announcement `number` of a rank."""
        return f"{self._key()}.{rank}.{number}"

    def next_round(self) -> None:
        """All ranks have joined, and follow nobody any more: what this rank has written goes, as the store is small."""
        with self.lock:
            for number in range(self._known.announced):
                self._session.set(self.key_of(self._session.rank, number), b"")
            self._session.set(self._key(), b"")
            self.round += 1
            self._known = _Known()
        self.begins()

    def _key(self) -> str:
        return f"join.{self.round}"

    def _announce(self, call: Call) -> None:
        self._write({"call": call, "start": self.starts_of(call.name)})

    def _write(self, what: dict) -> None:
        self._session.set(
            self.key_of(self._session.rank, self._known.announced), json.dumps(what, ensure_ascii=False).encode()
        )
        self._known.announced += 1


def join(session, gradients: Iterable[ZeroGradients]) -> int:
    """Gives zeros to the reductions of the others until all ranks have joined; gives the rank that joined last."""
    if session.size == 1:
        return 0
    if session.joining.hindered_by:
        raise ValueError(
            "join() does not work beside DistributedDataParallel over Deft, nor beside a process group of the backend "
            "'deft': ranks that wait there do not see that another has joined"
        )
    joining = session.joining
    of_name: dict[str, ZeroGradients] = {one.name: one for one in [*joining.unused(), *gradients]}
    for one in of_name.values():
        one.join_begins()
    came = [joining.begun, time.time_ns()]
    joining.announce_end()
    follower = _Follower(session, of_name)
    while not follower.all_have_joined():
        follower.follow(_LOOK_S)
    for one in of_name.values():
        one.join_ends()
    session.wait_for_own()
    session.start_barrier(f"join.{joining.round}").finish()
    follower.finish()
    last = _last(_gather(session, f"join.{joining.round}.last", came))
    joining.next_round()
    return last


class _Follower:
    """Begins with zeros what other ranks announce."""

    def __init__(self, session, gradients):
        self._session = session
        self._gradients = gradients  # by name
        self._turn_to(0)  # whose next announcement is awaited
        self._question = None
        self._zeros = {}  # operations under way, by name

    def all_have_joined(self) -> bool:
        return self._rank >= self._session.size

    def _turn_to(self, rank: int) -> None:
        """Or to the rank after it, if it is this one."""
        self._rank = rank + 1 if rank == self._session.rank else rank
        self._number = 0

    def follow(self, timeout_s: float) -> None:
        """Follows the next announcement, if it comes in time. Some rank has not joined yet."""
        self._zeros = {name: operation for name, operation in self._zeros.items() if not _ended(operation)}
        if self._question is None:
            self._question = self._session.ask(self._session.joining.key_of(self._rank, self._number))
        answer = self._question.answer(timeout_s)
        if answer is None:
            return
        self._question = None
        self._number += 1
        said = json.loads(answer)
        if "joined" in said:
            self._turn_to(self._rank + 1)
        elif "residuals" in said:
            self._send_residuals(*said["residuals"])
        elif "round" in said:
            self._give_zeros(*said["round"])
        elif self._session.joining.starts_of(said["call"][1]) < said["start"]:
            self._start(Call(*said["call"]))

    def finish(self) -> None:
        """All ranks have begun what this one follows."""
        for operation in self._zeros.values():
            _drop(operation)

    def _send_residuals(self, name: str, number: int) -> None:
        one: Any = self._gradients.get(name)  # ResidualGradients
        if one is not None and one.rounds() <= number:
            one.send_residuals(number)

    def _give_zeros(self, name: str, number: int) -> None:
        one = self._gradients.get(name)
        if one is not None and one.rounds() <= number:
            one.give_zeros(number)
        elif one is None and self._session.joining.newest_round(name) < number:
            raise RuntimeError(
                f"rank {self._session.rank} has joined and cannot take part in the gradients '{name}', which it has "
                "never declared, or has released: make a step on each rank before join(), and keep the optimizer"
            )

    def _start(self, call: Call) -> None:
        earlier = self._zeros.pop(call.name, None)
        if earlier is not None:  # it has ended for those who announce the name again
            _drop(earlier)
        operation = self._session.start_with_zeros(call)
        if operation is None:  # the difference is an error on all ranks, which has this text
            operation = self._session.start_barrier(call.name, _REFUSED.format(self._session.rank))
        self._zeros[call.name] = operation


def _ended(operation) -> bool:
    """Whether it has ended; then it is over."""
    try:
        if not operation.poll():
            return False
    except DeftError:
        pass  # it has failed, which _drop() meets again
    _drop(operation)
    return True


def _drop(operation) -> None:
    """Waits for the end. Those who asked for the collective get its error, too."""
    with contextlib.suppress(DeftError):
        operation.finish()


def _last(came) -> int:
    """The rank that has done the most, and of ranks that have done equally much, the rank that came last."""
    return max(range(len(came)), key=lambda rank: came[rank])


def _gather(session, name: str, numbers: list[int]) -> list[list[int]]:
    """Each rank's numbers, equally many of them."""
    mine = (ctypes.c_int64 * len(numbers))(*numbers)
    every = (ctypes.c_int64 * (len(numbers) * session.size))()
    operation = session.allgather(name, ctypes.addressof(mine), [len(numbers)] * session.size, _INT64)
    operation.finish(ctypes.addressof(every))
    return [list(every[rank * len(numbers) : (rank + 1) * len(numbers)]) for rank in range(session.size)]
