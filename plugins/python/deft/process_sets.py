"""Process sets: groups of ranks that communicate among themselves. Needs no framework.

    even = add_process_set([0, 2])        # on all ranks, in the same order
    if even.included():
        even.session().barrier()          # of the ranks 0 and 2
    remove_process_set(even)              # on all ranks

A set is a job of its own on the same daemons, with a session of its own. So everything works in it that works in the
whole job: gradients with a policy and a codec, collectives, errors that name a lost rank. The ranks meet in the
key-value store of the whole job first, which tells a rank that does not come, or that has another list.
"""

import hashlib
import json
import os
import socket
import time
from collections.abc import Iterable, Sequence

from deft import world
from deft._native import EMISMATCH, ETIMEOUT, EUNAVAILABLE, DeftError, daemon_status, option
from deft.durations import timeout_seconds
from deft.session import Session

_next_number = 1  # of a set
_added: "list[ProcessSet]" = []
_met = ""  # what this rank wrote to the store when all had come the last time
_SHOWN = 300  # characters of a list of ranks in a message


class ProcessSet:
    """Some ranks of the job. It can be used between add_process_set() and remove_process_set()."""

    process_set_id: int | None = None

    def __init__(self, ranks: Iterable[int]):
        given = [int(rank) for rank in ranks]
        self._ranks = sorted(set(given))
        if not given or len(self._ranks) < len(given):
            raise ValueError(f"a process set needs different ranks, one at least; these are {given}")
        self._session: Session | None = None

    @property
    def ranks(self) -> list[int]:
        return list(self._ranks)

    def included(self) -> bool:
        """Whether this worker is in the set."""
        return world.rank() in self.ranks

    def rank(self) -> int | None:
        """This worker's number in the set, from 0; None if the set is not in use."""
        if self.process_set_id is None:
            return None
        if not self.included():
            raise ValueError(f"rank {world.rank()} is not in {self!r}")
        return self.ranks.index(world.rank())

    def size(self) -> int | None:
        """How many workers the set has; None if it is not in use."""
        return None if self.process_set_id is None else len(self.ranks)

    def place_of(self, rank: int, what: str = "root_rank") -> int:
        """The number in the set of rank `rank` of the job."""
        if rank not in self.ranks:
            raise ValueError(f"{what} is {rank}; {self._members()} {_shown(self.ranks)}")
        return self.ranks.index(rank)

    def session(self) -> Session:
        """The session in which this worker communicates with the others of the set."""
        if self.rank() is None:
            raise ValueError(f"{self!r} is not in use: give it to init(process_sets=...) or to add_process_set()")
        return self._session

    def _members(self) -> str:
        return "the process set has the ranks"

    def __repr__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={_shown(self.ranks)})"

    def __str__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, mpi_comm=None)"


class _GlobalProcessSet(ProcessSet):
    """All ranks."""

    process_set_id = 0

    def __init__(self):
        pass

    def __reduce__(self) -> str:
        return "global_process_set"  # a copy is the same object

    @property
    def ranks(self) -> list[int]:
        return list(range(world.size())) if world.is_initialized() else []

    def rank(self) -> int:
        return world.rank()

    def size(self) -> int:
        return world.size()

    def place_of(self, rank: int, what: str = "root_rank") -> int:
        if not 0 <= rank < world.size():
            raise ValueError(f"{what} is {rank}; the job has ranks 0 to {world.size() - 1}")
        return rank

    def session(self) -> Session:
        return world.session()


global_process_set = _GlobalProcessSet()


def share_of(rows: int, process_set: ProcessSet = global_process_set) -> slice:
    """This rank's share of `rows` rows; the first ranks get one row more if shares cannot be equal."""
    rank, size = process_set.rank(), process_set.size()
    each, more = divmod(rows, size)
    first = each * rank + min(more, rank)
    return slice(first, first + each + (rank < more))


def find_process_set(process_set_id: int) -> ProcessSet | None:
    """The set of this number, if it is in use; 0 is the set of all ranks."""
    return next((one for one in (global_process_set, *_added) if one.process_set_id == process_set_id), None)


def process_set_of(ranks: Iterable[int]) -> ProcessSet:
    """The set in use that has these ranks."""
    wanted = sorted(ranks)
    found = next((one for one in _added if one.ranks == wanted), None)
    if found is None:
        raise ValueError(f"no process set with the ranks {_shown(wanted)} is in use: call add_process_set() first")
    return found


def init(comm: None = None, process_sets: Sequence[ProcessSet] | str | None = None, **options) -> None:
    """world.init(), and then add_process_set() for each of `process_sets` that is not in use yet.

    "dynamic": they come later. If a rank comes too late, all ranks can call it again."""
    if comm is not None:
        raise ValueError("init(comm) is not offered: start the job with these ranks, or use process_sets=")
    wanted = [] if process_sets is None or process_sets == "dynamic" else list(process_sets)
    if not all(isinstance(process_set, ProcessSet) for process_set in wanted):
        raise ValueError(f"process_sets is {process_sets!r}; give a list of ProcessSet, or 'dynamic'")
    world.init(**options)
    for process_set in wanted:
        if process_set.process_set_id is None:  # else an earlier call has added it
            add_process_set(process_set)


def add_process_set(process_set: ProcessSet | Iterable[int]) -> ProcessSet:
    """Begins a process set. All ranks of the job call it, with the same ranks and in the same order.

    DeftError if a rank does not come within DEFT_TIMEOUT, or comes with other ranks. If it comes later, the others can
    call again."""
    added = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    if added.process_set_id is not None:
        raise ValueError(f"{added!r} was added before")
    whole = world.session()
    for rank in added.ranks:
        global_process_set.place_of(rank, f"a rank of {added!r}")
    for other in (global_process_set, *_added):
        if other.ranks == added.ranks:
            raise ValueError(f"{other!r} has the same ranks: use that one")
    number, leader = _meet_to_add(whole, added.ranks)
    if whole.rank in added.ranks:
        added._session = _join(whole, number, added.ranks, leader)
    added.process_set_id = number
    _added.append(added)
    return added


def remove_process_set(process_set: ProcessSet) -> bool:
    """Ends a process set, on all ranks. False if it is not in use, or has all ranks of the job by itself."""
    if process_set is global_process_set or process_set.process_set_id is None:
        return False
    _meet(world.session(), f"process_set.{process_set.process_set_id}.remove", "remove_process_set", process_set.ranks)
    _end(process_set)
    return True


def _end(process_set: ProcessSet) -> None:
    ended, process_set._session = process_set._session, None
    process_set.process_set_id = None
    if process_set in _added:
        _added.remove(process_set)
    if ended is not None:
        world.close_further(ended)


@world.before_shutdown
def _end_all() -> None:
    global _next_number, _met
    while _added:
        _end(_added[-1])
    _next_number, _met = 1, ""


# ---- how the ranks meet


def _meet(whole: Session, key: str, call: str, ranks: list[int], leader: str = "", problem: str = "") -> str:
    """Waits until all ranks of the job are here with the same `ranks`. Gives the `leader` of the first of these."""
    digest = hashlib.sha256(json.dumps(ranks).encode()).hexdigest()
    said = {"shown": _shown(ranks), "hash": digest, "leader": leader, "problem": problem}
    whole.set(f"{key}.{whole.rank}", json.dumps(said).encode())
    timeout_s = timeout_seconds()
    ends = time.monotonic() + timeout_s
    questions = [whole.ask(f"{key}.{rank}") for rank in range(whole.size)]
    answers = [question.answer(max(ends - time.monotonic(), 0.0)) for question in questions]
    missing = [rank for rank, answer in enumerate(answers) if answer is None]
    if missing:
        raise DeftError(
            ETIMEOUT,
            f"{call}({said['shown']}): rank {_shown(missing).strip('[]')} did not call it within {timeout_s:g} s; all "
            "ranks of the job call it, also those outside the set, and in the same order",
        )
    _forget_earlier(whole, f"{key}.{whole.rank}")
    found = [json.loads(answer) for answer in answers if answer is not None]
    for rank, other in enumerate(found):
        if other["hash"] != found[0]["hash"]:
            raise DeftError(
                EMISMATCH,
                f"{call}: the process set is {found[0]['shown']} on rank 0 and {other['shown']} on rank {rank}; all "
                "ranks give the same sets, in the same order",
            )
    if found[ranks[0]]["problem"]:
        raise DeftError(EUNAVAILABLE, f"{call}({said['shown']}): {found[ranks[0]]['problem']}")
    return found[ranks[0]]["leader"]


def _forget_earlier(whole: Session, own: str) -> None:
    """All ranks have come to this meeting, so none reads any more what they wrote for an earlier one."""
    global _met
    if _met not in ("", own):
        whole.set(_met, b"")
    _met = own


def _meet_to_add(whole: Session, ranks: list[int]) -> tuple[int, str]:
    """The number of the set, and its leader."""
    global _next_number
    number = _next_number
    try:
        leader = _meet(whole, f"process_set.{number}.add", "add_process_set", ranks, *_leader_of(whole, ranks))
    except DeftError as error:
        if error.kind != ETIMEOUT:  # all ranks have met: the next call is about another set
            _next_number += 1
        raise
    _next_number += 1
    return number, leader


def _join(whole: Session, number: int, ranks: list[int], leader: str) -> Session:
    local = [rank for rank in ranks if whole.node_of(rank) == whole.node]
    options = {"rank": ranks.index(whole.rank), "world_size": len(ranks)}
    options |= {"local_rank": local.index(whole.rank), "local_size": len(local)}
    if leader:
        options["leader"] = leader
    return world.open_further(f"set{number}", **options)


def _leader_of(whole: Session, ranks: list[int]) -> tuple[str, str]:
    """For the set's first rank, whose daemon leads the set's job: (its address, its problem).

    Empty if no other daemon needs it, or if that daemon leads the whole job, too."""
    nodes = {whole.node_of(rank) for rank in ranks}
    if whole.rank != ranks[0] or len(nodes) == 1 or whole.node == 0:
        return "", ""
    listens = daemon_status()["listen"]
    host, _, port = listens.rpartition(":")
    beyond = option("leader").rpartition(":")[0] or os.environ.get("MASTER_ADDR", "")
    if host in ("", "*", "0.0.0.0", "[::]"):
        return f"{_own_address(beyond)}:{port}", ""
    if _is_loopback(host) and beyond and not _is_loopback(beyond):
        return "", (
            f"no rank of the set is on node 0, and the deftd of rank {whole.rank} listens on {listens}, where other "
            "nodes cannot reach it: start it with --listen=ADDRESS:PORT"
        )
    return listens, ""


def _own_address(host: str) -> str:
    """The address of this machine on the way to `host`."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host or "127.0.0.1", 9))  # sends nothing
        except OSError:
            return socket.gethostname()
        return probe.getsockname()[0]


def _is_loopback(host: str) -> bool:
    return host == "localhost" or host.startswith("127.") or host == "[::1]"


def _shown(ranks: Sequence[int]) -> str:
    text = str(list(ranks))
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... ({len(ranks)} ranks)"
