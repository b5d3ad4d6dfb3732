"""Links of different kinds in emulated nodes: what an all-reduce takes on each alone and on all at the same time.

"Multi-link" gives each library a NIC of its own, "single-link" the same one. The bound is a ring's on the line rate:
2(n-1)/n of the bytes through each node each way, as TCP payload. It is that of parameter servers too, with one on each
node.
"""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from lab import columns, deft_program, rates, servers
from lab.netns import PAYLOAD_SHARE, Lab

_SERVER_PORT = 29700
_SECONDS = 240
_POLICIES = ("fifo", "bytescheduler", "knapsack")
# The model that the planner sees: equal buckets, twice as much compute in backward as in forward.
_BUCKETS, _BUCKET_BYTES = 16, 4 << 20


class Failed(RuntimeError):
    """A node of the bench failed; the text is what it said."""


@dataclass
class LinkTimes:
    links: list[str]  # as they were asked for: gloo:eth0
    us: dict[tuple[str, str, int], float] = field(default_factory=dict)  # by mode, link and elements: the median
    rounds: dict[tuple[str, str, int], list[float]] = field(default_factory=dict)  # likewise: of each round
    fits: dict[tuple[str, str], dict] = field(default_factory=dict)  # by mode and link: latency_us, bytes_per_us

    @property
    def modes(self) -> list[str]:
        return ["alone", "together"] if len(self.links) > 1 else ["alone"]

    @property
    def elements(self) -> list[int]:
        return sorted({elements for _, _, elements in self.us})

    @property
    def kind(self) -> str:
        if len(self.links) == 1:
            return "one link"
        return "multi-link" if len({nic(link) for link in self.links}) == len(self.links) else "single-link"

    def as_json(self) -> dict:
        times = [{"links": m, "link": link, "elements": n, "us": us} for (m, link, n), us in self.us.items()]
        return {"links": self.links, "kind": self.kind, "times": times,
                "fits": [{"links": m, "link": link, **fit} for (m, link), fit in self.fits.items()]}  # fmt: skip


def nic(link: str) -> int:
    """The number of its NIC; ValueError if the link names none."""
    found = re.fullmatch(r"[a-z]+:eth(\d+)", link)
    if not found:
        raise ValueError(f"the link '{link}': write it with a NIC of the lab, for instance gloo:eth0 or ps:eth1")
    return int(found[1])


def nics_of(sets: list[str]) -> int:
    return 1 + max(nic(link) for links in sets for link in links.split(","))


def parse_elements(text: str) -> list[int]:
    try:
        found = [round(float(part.removesuffix("M")) * (1 << 20 if "M" in part else 1)) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 1:
        raise ValueError(f"--elements {text}: give numbers, for instance 4M,16M (M is 2^20)")
    return found


def measure(lab: Lab, build: Path, links: str, elements: list[int], rounds: int) -> LinkTimes:
    """One set of links, with servers of its own if it has any; they end with it."""
    measured = LinkTimes(links.split(","))
    given = {link: servers.resolved(lab, link, _SERVER_PORT) for link in measured.links}
    commands = [each for link in given.values() for each in enumerate(servers.commands(build, link))]
    log = lab.common_folder("logs") / "servers.log"
    with log.open("wb") as file:
        started = [lab.start(node, command, stdout=file, stderr=file) for node, command in commands]
    try:
        with tempfile.TemporaryDirectory(dir=lab.folder(0)) as folder:
            words = [str(lab.nodes), folder, ",".join(given.values()), str(rounds), *map(str, elements)]
            nodes = [
                lab.start(node, [str(build / "bench/link_pairs"), str(node), *words], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)
                for node in range(lab.nodes)
            ]  # fmt: skip
            said = [node.communicate(timeout=_SECONDS)[0] for node in nodes]
    finally:
        for server in started:
            server.terminate()
            server.wait()
    if any(node.returncode for node in nodes):
        said += log.read_text(errors="replace").splitlines()[-3:]
        raise Failed(f"{links}: " + " | ".join(filter(None, said)).strip())
    names = {resolved: link for link, resolved in given.items()}
    for line in map(json.loads, said[0].splitlines()):
        key = (line["links"], names[line["link"]])
        if "fit" in line:
            measured.fits[key] = line["fit"]
        else:
            measured.us[(*key, line["elements"])] = line["us"]
            measured.rounds[(*key, line["elements"])] = line["rounds_us"]
    return measured


def bound_us(elements: int, nodes: int, rate: str | None) -> float | None:
    """The time of a ring on this line rate."""
    if rate is None:
        return None
    payload = rates.bits_per_second(rate) / 8 * PAYLOAD_SHARE / 1e6
    return 4 * elements * 2 * (nodes - 1) / nodes / payload


def table(found: list[LinkTimes], nodes: int, shaped: list[str] | None) -> str:
    sizes = sorted({elements for measured in found for elements in measured.elements})
    heads = [f"{elements / (1 << 20):g} M" for elements in sizes]
    rows = [["mode", "link", "runs", *heads]]
    for measured in found:
        for mode in measured.modes:
            for link in measured.links:
                row = [measured.kind, link, mode]
                for elements in sizes:
                    us = measured.us.get((mode, link, elements))
                    bound = bound_us(elements, nodes, shaped[nic(link)] if shaped else None)
                    row.append("" if us is None else _cell(us, bound))
                rows.append(row)
    limits = ", ".join(shaped or ["no limit"])
    title = f"{nodes} nodes, NICs of {limits}; in parentheses the ring's bound over the time"
    return "\n".join(
        [
            title,
            *columns.aligned(rows, texts=3),
            *(line for measured in found for line in _joint(measured, nodes, shaped)),
        ]
    )


def _cell(us: float, bound: float | None) -> str:
    return f"{us / 1e3:.0f} ms" + (f" ({bound / us:.2f})" if bound else "")


def _joint(measured: LinkTimes, nodes: int, shaped: list[str] | None) -> list[str]:
    """The throughput of all links of a set together, over that of one NIC, at the largest size."""
    if len(measured.links) < 2 or not shaped:
        return []
    largest = measured.elements[-1]
    carried = sum(_carried(measured, links, largest) for links in _by_nic(measured.links))
    share = carried * bound_us(largest, nodes, shaped[nic(measured.links[0])])
    best = max(1 / measured.us["alone", link, largest] for link in measured.links)
    return [f"{','.join(measured.links)} together carry {share:.2f} of one NIC's line rate, "
            f"{carried / best:.2f} of the faster link alone"]  # fmt: skip


def _by_nic(links: list[str]) -> list[list[str]]:
    numbers = sorted({nic(link) for link in links})
    return [[link for link in links if nic(link) == number] for number in numbers]


def _carried(measured: LinkTimes, links: list[str], elements: int) -> float:
    """All-reduces a microsecond of links on one NIC. It is shared until the last one ends: the others have left it the
    NIC alone for the rest."""
    rounds = zip(*(measured.rounds["together", link, elements] for link in links), strict=True)
    return len(links) / statistics.median(map(max, rounds))


def plans(found: list[LinkTimes], build: Path, coverage: float) -> str:
    """A step's time by the simulator, on the links as they were measured alone and together."""
    rows = [["links", "measured", *_POLICIES]]
    for measured in found:
        if len(measured.fits) < len(measured.links):
            continue  # too few sizes for a fit
        model = _model(measured.fits["alone", measured.links[0]], coverage)
        views = [([measured.links[0]], "alone"), *(([link], "alone") for link in measured.links[1:])]
        views += [(measured.links, mode) for mode in measured.modes if len(measured.links) > 1]
        for links, mode in views:
            fits = [{"name": link, **measured.fits[mode, link]} for link in links]
            profile = {"model": "equal buckets", "source": "bench/link_pairs", "buckets": model, "links": fits}
            rows.append([",".join(links), mode, *_simulated(build, profile)])
    if len(rows) == 1:
        return ""
    compute = (
        f"{_BUCKETS} buckets of {_BUCKET_BYTES >> 20} MiB, compute {1 / coverage:.2f} of their time on the first link"
    )
    return "\n".join(
        ["", f"what the planner makes of them: a step over compute; {compute}", *columns.aligned(rows, texts=2)]
    )


def _model(fit: dict, coverage: float) -> list[dict]:
    compute = (fit["latency_us"] + _BUCKET_BYTES / fit["bytes_per_us"]) / coverage
    return [
        {"name": f"b{i}", "bytes": _BUCKET_BYTES, "forward_us": compute / 3, "backward_us": compute * 2 / 3}
        for i in range(_BUCKETS)
    ]


def _simulated(build: Path, profile: dict) -> list[str]:
    steps = []
    with tempfile.TemporaryDirectory(prefix="deft-pairs-") as folder:
        path = Path(folder, "profile.json")
        path.write_text(json.dumps(profile))
        for policy in _POLICIES:
            result = deft_program.ask(build / "bin/deft", "simulate", path, "--policy", policy)[0]
            updates = f" ({result['updates_per_step']:.2f} updates)" if policy == "knapsack" else ""
            steps.append(f"{result['step_us'] / result['compute_us']:.2f}{updates}")
    return steps
