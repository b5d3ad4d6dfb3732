"""The simulator's forecast for the measured model and links: `deft simulate`, for the very buckets of Deft.

The profile of a scheme joins three measurements of the same run: when forward needs each tensor and when backward has
its gradient (the workers of `compute`, by hooks), what a part costs on each NIC (lab/links.py), and which bytes of the
arena each bucket has (the daemon's status). Then the CPU time that the scheme itself uses is added (Cpu): the plugin's
hooks and copies lengthen backward, and a daemon on the cores of training takes from compute, in the share in which
transfers meet compute in the simulated timeline.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path

from lab import deft_program
from lab.layers import Layers
from lab.links import Link, as_profile
from lab.schemes import Scheme

ARENA_ALIGNMENT = 64  # of each tensor in the arena
STEPS = 80
_SETTLED = 20  # steps before the steady state
_CORRECTIONS = 2  # the share in which transfers meet compute follows from the result
_UNITS = {"KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30}


class CannotForecast(RuntimeError):
    """The simulator refuses the profile, or the profile does not fit the buckets."""


@dataclass(frozen=True)
class Forecast:
    step_ms: float
    network_ms: float  # with a transport and a plugin that use no CPU


@dataclass(frozen=True)
class Cpu:
    """The time of a worker that a scheme uses, in ms for all passes of an update."""

    daemon_ms: float = 0.0  # on the cores of training; 0 if compute needs none of them
    plugin_ms: float = 0.0  # of the worker's own thread, beyond what training alone uses

    @classmethod
    def measured(cls, passes: int, daemon_ms: float, worker_added_ms: float, update_ms: float) -> Cpu:
        """From the times a pass. Training alone makes an update of `update_ms` in each of them, the scheme in one."""
        return cls(passes * daemon_ms, max(0.0, passes * worker_added_ms + (passes - 1) * update_ms))


def profile(model: str, layers: Layers, bucket_bytes: list[int], links: list[Link], passes: int = 1) -> dict:
    """What `deft simulate` reads. `bucket_bytes`: the buckets as they lie in the arena.

    With several passes a step of the profile is all of them: the first forward alone waits, the last backward sends.
    """
    ready, needed = _bucket_times(layers, bucket_bytes)
    count, total = len(bucket_bytes), sum(bucket_bytes)
    rest_us = layers.other_us + max(0.0, layers.backward_us - ready[-1])  # nothing waits in it: it comes first
    buckets = []
    for place in range(count):  # in the order of forward: the last of the arena first
        arena = count - 1 - place
        until = needed[place + 1] if place + 1 < count else layers.forward_us
        since = needed[place] if place else 0.0
        forward_us = max(0.0, until - since) + layers.update_us * bucket_bytes[arena] / total
        forward_us += rest_us if place == 0 else 0.0
        backward_us = ready[arena] - (ready[arena - 1] if arena else 0.0)
        buckets.append(
            {"name": f"b{arena}", "bytes": bucket_bytes[arena], "forward_us": forward_us, "backward_us": backward_us}
        )
    buckets[-1]["forward_us"] += (passes - 1) * (layers.step_us - layers.update_us)
    source = "measured by bench/compare --verify"
    return {"model": model, "source": source, "buckets": buckets, "links": [as_profile(link) for link in links]}


def _bucket_times(layers: Layers, bucket_bytes: list[int]) -> tuple[list[float], list[float]]:
    """When each bucket is ready, in the order of the arena, and needed, in the order of forward; both never fall."""
    places, at = [], 0
    for tensor in layers.tensors:
        places.append((at, at + tensor.bytes, tensor))
        at += -(-tensor.bytes // ARENA_ALIGNMENT) * ARENA_ALIGNMENT
    ready, needed, begin = [], [], 0
    for size in bucket_bytes:
        inside = [tensor for first, last, tensor in places if first < begin + size and last > begin]
        if not inside:
            raise CannotForecast(f"no tensor lies in the bucket at byte {begin} of the arena")
        ready.append(max([tensor.ready_us for tensor in inside] + ready[-1:]))
        needed.append(min(tensor.needed_us for tensor in inside))
        begin += size
    needed.reverse()
    for i in range(1, len(needed)):
        needed[i] = max(needed[i], needed[i - 1])
    return ready, needed


class Simulator:
    """`deft simulate` of one build, with the options that a scheme and Deft's table of options give."""

    def __init__(self, program: Path):
        self._program = program
        usage = deft_program.printed(program, "simulate", "--help")
        self._defaults = {name: option["default"] for name, option in deft_program.options(program).items()}
        # If the buckets come from the daemon, the simulator must not cut them again.
        self._shared = [name for name in self._defaults if f"--{_flag(name)} " in usage and name != "bucketing"]
        self._shared = [name for name in self._shared if name not in ("policy", "links")]

    def forecast(self, scheme: Scheme, measured: dict, cpu: Cpu) -> Forecast:
        """`measured` is profile()'s, with the links of this scheme."""
        compute_us = sum(bucket["forward_us"] + bucket["backward_us"] for bucket in measured["buckets"])
        first_us, share = self._run(scheme, measured)
        step_us = first_us
        for _ in range(_CORRECTIONS):
            slower = 1 + 1e3 * cpu.daemon_ms * share / compute_us
            step_us, share = self._run(scheme, _burdened(measured, slower, 1e3 * cpu.plugin_ms))
        return Forecast(step_us / 1e3 / scheme.passes, first_us / 1e3 / scheme.passes)

    def _run(self, scheme: Scheme, measured: dict) -> tuple[float, float]:
        """The step in microseconds, and the share of the transfers' time in which compute goes on."""
        with tempfile.TemporaryDirectory(prefix="deft-lab-") as folder:
            path, events = Path(folder, "profile.json"), Path(folder, "events")
            path.write_text(json.dumps(measured))
            words = ["simulate", path, "--policy", scheme.kind, "--steps", str(STEPS)]
            words += ["--warmup", str(_SETTLED), "--events", events, *self._flags(scheme)]
            priority = [link["name"] for link in measured["links"] if link["name"].startswith("gloo")]
            words += ["--priority-channel", ",".join(priority)] if priority else []
            try:
                (said,) = deft_program.ask(self._program, *words)
            except deft_program.DeftFailed as failure:
                raise CannotForecast(f"{scheme.text}: {failure}") from None
            with events.open() as lines:
                return said["step_us"], overlap(map(json.loads, lines))

    def _flags(self, scheme: Scheme) -> list[str]:
        chosen = {name: self._defaults[name] for name in self._shared} | {
            name: value for name, value in scheme.options if name in self._shared
        }
        words = [word for name, value in chosen.items() if value for word in (f"--{_flag(name)}", _plain(value))]
        return ["--training-limits", *words]


def overlap(events) -> float:
    """The share of the time of all transfers in which compute goes on, behind the first steps."""
    compute, sends = [], []
    for event in events:
        span = (event.get("start_us", 0.0), event.get("end_us", 0.0))
        if event["kind"] == "compute":
            compute.append((*span, event["step"]))
        elif event["kind"] == "send":
            sends.append(span)
    since = min((start for start, _, step in compute if step >= _SETTLED), default=0.0)
    busy = merged(sorted(span[:2] for span in compute))
    total = met = 0.0
    place = 0
    for start, end in sorted(span for span in sends if span[0] >= since):
        while place < len(busy) and busy[place][1] <= start:
            place += 1
        total += end - start
        for first, last in busy[place:]:
            if first >= end:
                break
            met += min(end, last) - max(start, first)
    return met / total if total else 0.0


def merged(spans: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Spans in order, with neighbours that touch made one."""
    out: list[tuple[float, float]] = []
    for start, end in spans:
        if out and start <= out[-1][1] + 1e-6:
            out[-1] = (out[-1][0], max(end, out[-1][1]))
        else:
            out.append((start, end))
    return out


def _burdened(measured: dict, slower: float, plugin_us: float) -> dict:
    """With all of compute slower, and the plugin's time in backward, where gradients are copied, by bytes."""
    total = sum(bucket["bytes"] for bucket in measured["buckets"])
    buckets = [
        bucket
        | {
            "forward_us": bucket["forward_us"] * slower,
            "backward_us": bucket["backward_us"] * slower + plugin_us * bucket["bytes"] / total,
        }
        for bucket in measured["buckets"]
    ]
    return measured | {"buckets": buckets}


def _flag(name: str) -> str:
    return name.replace("_", "-")


def _plain(value: str) -> str:
    """Sizes as the simulator reads them: bytes."""
    unit = _UNITS.get(value[-2:])
    return str(int(float(value[:-2]) * unit)) if unit else value
