"""The memory that groups of gradients take, as a worker of any framework sees it."""

import time
from pathlib import Path

from deft._native import daemon_status

PATIENCE_S = 60


def _mappings():
    """(begin, end, access, name) of each mapping of this process."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        where, access, _, _, _, *name = line.split(maxsplit=5)
        begin, end = where.split("-")
        yield int(begin, 16), int(end, 16), access, "".join(name)


def is_mapped(address):
    """Whether this process has memory there."""
    return any(begin <= address < end for begin, end, *_ in _mappings())


def arena_ranges():
    """Where this process has mapped arenas: (begin, end) of each. Memory that it has for its own does not count."""
    return [
        (begin, end) for begin, end, access, name in _mappings() if "memfd:deft-arena" in name and access.endswith("s")
    ]


def arenas():
    """How many arenas this process has mapped."""
    return len(arena_ranges())


def groups_left():
    """How many groups of gradients are left on the daemon."""
    return sum(len(job["groups"]) for job in daemon_status()["jobs"])


def settled(groups):
    """The daemon's memory in bytes, when no more than so many groups of gradients are left on it."""
    ends = time.monotonic() + PATIENCE_S
    while (left := groups_left()) > groups:
        assert time.monotonic() < ends, f"{left} groups are left"
        time.sleep(0.01)
    return daemon_status()["memory_bytes"]
