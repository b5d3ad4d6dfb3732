"""The faults of the soak tests. Each has a random victim and duration; soak_cases.py draws the instants.

    fault = FAULTS["a daemon is killed"](field, draw)     # draw: what chance decided for this case
    fault.begin()   ...   fault.end()
    fault.names(rank)                                     # patterns, of which the error of that rank must hold one

A fault says which ranks it kills or stops, and whether an error is an acceptable end for the others.
"""

import re
import resource
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from hostile import memory_kib
from nic_down import netns
from soak_field import Field

NOWHERE = "02:00:00:00:00:fe"  # no NIC has this address


@dataclass(frozen=True)
class Draw:
    """What chance decided. Each fault uses what it needs."""

    per_node: int
    rank: int
    node: int
    other: int  # another node
    nic: int
    amount: float  # 0 to 1


class Fault:
    may_tell = True  # whether an error is an acceptable end for those who survive
    timeouts = (0.01, 1.5)  # shortest and longest time between begin and end, in timeouts of the daemons
    while_starting = 0.0  # so many cases of 1 begin while the job starts, the others at any instant of it
    links = ("gloo:eth0", "gloo:eth0,gloo:eth1", "tcp:eth0", "ps", "gloo:eth1,ps")

    def __init__(self, field: Field, draw: Draw):
        self.field, self.draw = field, draw

    def begin(self) -> None:
        raise NotImplementedError

    def end(self) -> None:
        """Nothing to lift."""

    def killed(self) -> set[int]:
        """The ranks of which nothing is expected."""
        return set()

    def kills(self) -> set[str]:
        """The daemons and servers that it kills, by the names of Field.processes()."""
        return set()

    def stopped(self) -> set[int]:
        """The ranks whose time begins with the end of the fault."""
        return set()

    def culprits(self, rank: int) -> list[str]:
        """Patterns, one of which is in the error of `rank`."""
        return []

    def names_culprit(self, rank: int, text: str) -> bool:
        return any(re.search(pattern, text) for pattern in self.culprits(rank))

    # --- For subclasses

    def ranks_of(self, node: int) -> range:
        return range(node * self.draw.per_node, (node + 1) * self.draw.per_node)

    def node_pattern(self, node: int) -> str:
        ranks = "|".join(map(str, self.ranks_of(node)))
        return rf"node {node}\b|rank ({ranks})\b|10\.77\.\d\.{node + 1}\b"

    def own_or_node(self, rank: int) -> list[str]:
        """The daemon as its own workers call it, and as the others do."""
        own = rank in self.ranks_of(self.draw.node)
        return [self.node_pattern(self.draw.node), *(["the daemon", "deftd .* stood still"] if own else [])]

    def workers_of(self, node: int) -> list:
        return [worker for worker in self.field.workers if worker.node == node]

    def signal_node(self, node: int, number: int) -> None:
        self.field.daemons[node].send_signal(number)
        for worker in self.workers_of(node):
            worker.send_signal(number)


class WorkerKilled(Fault):
    def begin(self) -> None:
        self.field.workers[self.draw.rank].child.kill()

    def killed(self) -> set[int]:
        return {self.draw.rank}

    def culprits(self, rank: int) -> list[str]:
        return [rf"rank {self.draw.rank}\b"]


class DaemonKilled(Fault):
    def begin(self) -> None:
        self.field.daemons[self.draw.node].kill()

    def kills(self) -> set[str]:
        return {f"the daemon of node {self.draw.node}"}

    def culprits(self, rank: int) -> list[str]:
        return self.own_or_node(rank)


class NodeKilled(DaemonKilled):
    def begin(self) -> None:
        self.signal_node(self.draw.node, signal.SIGKILL)

    def killed(self) -> set[int]:
        return set(self.ranks_of(self.draw.node))

    def culprits(self, rank: int) -> list[str]:
        return [self.node_pattern(self.draw.node)]


class ServerKilled(Fault):
    links = ("ps", "gloo:eth1,ps")

    def begin(self) -> None:
        self.field.server.kill()

    def kills(self) -> set[str]:
        return {"the parameter server"}

    def culprits(self, rank: int) -> list[str]:
        return [re.escape(self.field.server_address)]


class ServerStopped(ServerKilled):
    def kills(self) -> set[str]:
        return set()

    def begin(self) -> None:
        self.field.server.send_signal(signal.SIGSTOP)

    def end(self) -> None:
        self.field.server.send_signal(signal.SIGCONT)


class WorkerStopped(Fault):
    """A worker that is slow is waited for. Only while the job starts there is a deadline."""

    def begin(self) -> None:
        self.field.workers[self.draw.rank].send_signal(signal.SIGSTOP)

    def end(self) -> None:
        self.field.workers[self.draw.rank].send_signal(signal.SIGCONT)

    def stopped(self) -> set[int]:
        return {self.draw.rank}

    def culprits(self, rank: int) -> list[str]:
        return [self.node_pattern(self.draw.rank // self.draw.per_node), "local rank"]


class DaemonStopped(Fault):
    began_at = ended_at = 0.0

    def begin(self) -> None:
        self.began_at = time.monotonic()
        self.field.daemons[self.draw.node].send_signal(signal.SIGSTOP)

    def end(self) -> None:
        self.field.daemons[self.draw.node].send_signal(signal.SIGCONT)
        self.ended_at = time.monotonic()

    def stopped(self) -> set[int]:
        """Workers whose daemon goes on about when they give it up. It does not count the time of its standstill."""
        given_up = self.ended_at - self.began_at > self.field.timeout_s + 1
        return set() if given_up else set(self.ranks_of(self.draw.node))

    def culprits(self, rank: int) -> list[str]:
        return self.own_or_node(rank)


class NodeStopped(Fault):
    def begin(self) -> None:
        self.signal_node(self.draw.node, signal.SIGSTOP)

    def end(self) -> None:
        self.signal_node(self.draw.node, signal.SIGCONT)

    def stopped(self) -> set[int]:
        return set(self.ranks_of(self.draw.node))

    def culprits(self, rank: int) -> list[str]:
        return self.own_or_node(rank)


class AllSuspended(Fault):
    may_tell = False

    def everybody(self, number: int) -> None:
        for node in range(self.field.NODES):
            self.signal_node(node, number)
        self.field.server.send_signal(number)

    def begin(self) -> None:
        self.everybody(signal.SIGSTOP)

    def end(self) -> None:
        self.everybody(signal.SIGCONT)


class OneWayDrop(Fault):
    """What `node` sends to `other` gets lost on one network: it goes to a MAC address that nobody has."""

    timeouts = (0.02, 2.0)

    def neighbour(self, *words: str) -> None:
        address = self.field.lab.address(self.draw.other, self.draw.nic)
        command = ["ip", "-n", f"node{self.draw.node}", "neigh", words[0], address, "dev", f"eth{self.draw.nic}"]
        subprocess.run([*command, *words[1:]], check=True)

    def begin(self) -> None:
        self.neighbour("replace", "lladdr", NOWHERE, "nud", "permanent")

    def end(self) -> None:
        self.neighbour("del")

    def culprits(self, rank: int) -> list[str]:
        ends = [self.node_pattern(self.draw.node), self.node_pattern(self.draw.other)]
        return [*ends, rf"link (gloo|tcp):eth{self.draw.nic}\b"]


class NicFlap(Fault):
    timeouts = (0.02, 2.0)

    def change(self, rate: str | None) -> None:
        self.field.lab.change(self.draw.nic, rate, self.draw.node)

    def begin(self) -> None:
        self.change(netns.DOWN)

    def end(self) -> None:
        self.change(None)

    def culprits(self, rank: int) -> list[str]:
        # A node that hears nobody cannot know whose network it is.
        own = ["the network between the nodes"] if rank in self.ranks_of(self.draw.node) else []
        return [*own, self.node_pattern(self.draw.node), f"eth{self.draw.nic}", re.escape(self.field.server_address)]


class SlowNic(NicFlap):
    may_tell = False
    timeouts = (0.05, 0.75)

    def begin(self) -> None:
        self.change(f"{10 + round(40 * self.draw.amount)}mbit")


class FullDisk(Fault):
    """The disk of sockets, logs and traces."""

    may_tell = False

    def file(self) -> Path:
        return Path(self.field.folder.name, "full")

    def begin(self) -> None:
        with self.file().open("wb", 0) as file:
            for size in (1 << 20, 4096, 1):
                try:
                    while file.write(bytes(size)):
                        pass
                except OSError:
                    continue

    def end(self) -> None:
        self.file().unlink(missing_ok=True)


class LimitedDaemon(Fault):
    """The daemon of a node is at a limit of the kernel's, when jobs start and while they run."""

    while_starting = 0.5  # a job takes most of what it needs then, and still may not fail its daemon later
    limit = resource.RLIMIT_NOFILE

    def in_use(self, pid: int) -> int:
        raise NotImplementedError

    def begin(self) -> None:
        pid = self.field.daemons[self.draw.node].pid
        self.before = resource.prlimit(pid, self.limit)
        resource.prlimit(pid, self.limit, (self.in_use(pid), self.before[1]))

    def end(self) -> None:
        resource.prlimit(self.field.daemons[self.draw.node].pid, self.limit, self.before)


class NoDescriptors(LimitedDaemon):
    def in_use(self, pid: int) -> int:
        numbers = [int(path.name) for path in Path(f"/proc/{pid}/fd").iterdir()]
        return max(numbers) + 1 + round(24 * self.draw.amount)

    def culprits(self, rank: int) -> list[str]:
        own = rank in self.ranks_of(self.draw.node)
        return ["descriptor", "open files", *(["the daemon"] if own else []), self.node_pattern(self.draw.node)]


class NoMemory(LimitedDaemon):
    limit = resource.RLIMIT_AS

    def in_use(self, pid: int) -> int:
        return (memory_kib(pid, "VmSize") << 10) + round((64 << 20) * self.draw.amount**3)

    def culprits(self, rank: int) -> list[str]:
        return ["memory", "thread", self.node_pattern(self.draw.node)]


FAULTS: dict[str, type[Fault]] = {
    "a worker is killed": WorkerKilled,
    "a daemon is killed": DaemonKilled,
    "a node is killed": NodeKilled,
    "a parameter server is killed": ServerKilled,
    "a parameter server is stopped": ServerStopped,
    "a worker is stopped": WorkerStopped,
    "a daemon is stopped": DaemonStopped,
    "a node is stopped": NodeStopped,
    "all are suspended": AllSuspended,
    "packets are lost one way": OneWayDrop,
    "a NIC goes down and up": NicFlap,
    "a NIC becomes slow": SlowNic,
    "the disk is full": FullDisk,
    "a daemon has no descriptors left": NoDescriptors,
    "a daemon has no memory left": NoMemory,
}
