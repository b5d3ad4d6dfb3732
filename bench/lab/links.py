"""The cost of an all-reduce on each shaped NIC: latency of a part, and bytes a microsecond beyond it.

Measured through Deft's own daemons while no one trains: 48 parts of some 10 ms each, then the same bytes in 12 parts,
so the difference in time is what 36 more parts cost. Parts follow each other as they do in training, and so many of
them that what the bucket of a shaped NIC has saved up meanwhile counts for little.
"""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass
from pathlib import Path

from lab import rates
from lab.assignment import Training
from lab.job import Job
from lab.link_worker import PARTS
from lab.netns import PAYLOAD_SHARE, Nodes
from lab.schemes import Scheme

_PART_S = 0.01
_LEAST_PART, _MOST_PART = 64 << 10, 1 << 20


@dataclass(frozen=True)
class Link:
    name: str
    latency_us: float
    bytes_per_us: float


def measure(lab: Nodes, training: Training, limits: list[str] | None, number: int, logs: Path) -> list[Link]:
    """All links, one after the other; `number` is the first of as many jobs as there are links."""
    nics = lab.interfaces()
    return [
        _measure_one(lab, training, link, _part_bytes(limits[nics.index(link.partition(":")[2])] if limits else None),
                     number + index, logs)
        for index, link in enumerate(training.links_on(nics))
    ]  # fmt: skip


def _part_bytes(limit: str | None) -> int:
    if limit is None:
        return _MOST_PART
    carried = rates.bits_per_second(limit) / 8 * PAYLOAD_SHARE * _PART_S
    return int(min(_MOST_PART, max(_LEAST_PART, carried))) // 4096 * 4096


def _measure_one(lab: Nodes, training: Training, name: str, part_bytes: int, number: int, logs: Path) -> Link:
    # fifo sends each bucket in one launch on its one link; with parts this small no tensors share a bucket.
    options = (("bucketing", "tensor"), ("partition_bytes", "4096"), ("links", name))
    job = Job(lab, Scheme(f"link {name}", "fifo", 1, options=options), training, number, logs, role="links")
    try:
        job.start()
        times = job.link_times(part_bytes)
    finally:
        job.stop()
    return fitted(name, part_bytes, *(statistics.median(times[str(count)]) for count in PARTS))


def fitted(name: str, part_bytes: int, many_us: float, few_us: float) -> Link:
    """The line through both times. If its latency would be negative, latency is 0 and the quicker way counts."""
    many, few = PARTS
    latency_us = max(0.0, (many_us - few_us) / (many - few))
    return Link(name, latency_us, many * part_bytes / max(1.0, min(many_us, few_us) - few * latency_us))


def as_profile(link: Link) -> dict:
    return asdict(link)
