"""Which ranks go to which node."""

from __future__ import annotations

import functools
import re
import socket
from dataclasses import dataclass
from pathlib import Path

LOCAL_NAMES = {"localhost", "127.0.0.1", "::1"}


class UsageError(Exception):
    """The user asked for something that cannot be; the text says what to do."""


@dataclass
class Node:
    index: int
    host: str
    first_rank: int
    workers: int
    address: str = ""  # loopback address of an emulated node

    @property
    def local(self) -> bool:
        return bool(self.address) or is_local(self.host)


@functools.cache  # a name server may be asked, and all pairs of nodes are compared
def own_names() -> frozenset[str]:
    name = socket.gethostname()
    try:
        return frozenset({name, socket.getfqdn()})
    except UnicodeError:  # a name that Linux takes and DNS does not, for instance one of 64 letters
        return frozenset({name})


def is_local(host: str) -> bool:
    return host in LOCAL_NAMES or host in own_names()


def on_other_machines(node: Node, nodes: list[Node]) -> list[Node]:
    return [other for other in nodes if other.host != node.host and not (other.local and node.local)]


def common_names(nodes: list[Node]) -> list[str]:
    """The names by which every node may find these ones: without the user that ssh takes, and without localhost."""
    names = [node.host.rpartition("@")[2] for node in nodes]
    return [name for name in names if name not in LOCAL_NAMES]


def parse_hosts(text: str) -> dict[str, int]:
    """`a:2,b:4` (a host without a number has one slot); a host named twice has the sum."""
    hosts: dict[str, int] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        match = re.fullmatch(r"([^-:\s][^:\s]*)(?::(\d+))?", item)
        if not match or match[2] == "0":
            raise UsageError(f"-H: '{item}' is no host:slots")
        hosts[match[1]] = hosts.get(match[1], 0) + int(match[2] or 1)
    return hosts


def read_hostfile(path: str) -> dict[str, int]:
    """Lines `host slots=N` or `host:N`; # begins a comment."""
    hosts: dict[str, int] = {}
    try:
        text = Path(path).read_text(errors="replace")
    except OSError as error:
        raise UsageError(f"--hostfile: cannot read {path}: {error.strerror}") from None
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split("#")[0].split()
        if not words:
            continue
        item = words[0]
        if len(words) > 1:
            match = re.fullmatch(r"slots=(\d+)", words[1])
            if not match or len(words) > 2:
                raise UsageError(f"{path}:{number}: '{line.strip()}' is no `host slots=N`")
            item += ":" + match[1]
        try:
            parsed = parse_hosts(item)
        except UsageError:
            raise UsageError(f"{path}:{number}: '{line.strip()}' is no `host slots=N`") from None
        for host, slots in parsed.items():
            hosts[host] = hosts.get(host, 0) + slots
    return hosts


def spread_over_hosts(workers: int | None, hosts: dict[str, int]) -> list[Node]:
    """Fills the hosts in their order."""
    if not hosts:
        raise UsageError("no host is named")
    slots = sum(hosts.values())
    left = slots if workers is None else workers
    if left > slots:
        raise UsageError(f"-np {left}: the hosts have {slots} slots: give more hosts or slots (host:slots)")
    nodes: list[Node] = []
    for host, room in hosts.items():
        here = min(room, left)
        if here > 0:
            nodes.append(Node(len(nodes), host, sum(node.workers for node in nodes), here))
        left -= here
    return nodes


def emulate(workers: int, count: int) -> list[Node]:
    """`count` nodes on this machine, on loopback addresses; the first ones get the odd workers."""
    if count > workers:
        raise UsageError(f"--nodes {count}: more nodes than workers (-np {workers})")
    if count > 250:
        raise UsageError("--nodes: at most 250 can be emulated")
    nodes: list[Node] = []
    for index in range(count):
        here = workers // count + (1 if index < workers % count else 0)
        nodes.append(Node(index, "localhost", sum(node.workers for node in nodes), here, f"127.0.0.{index + 1}"))
    return nodes
