"""One lane of scripts/soak: cases one after the other on emulated nodes of its own.

    soak_lane.py '{"seed": 7, "first": 0, "stride": 2, "seconds": 600, "grace_s": 1, "kinds": [...]}'

Prints a JSON line for each.
"""

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / folder) for folder in ("process", "client")]

from cluster import wait_until  # noqa: E402
from soak_cases import draw_case, run  # noqa: E402
from soak_field import Field, netns  # noqa: E402


@dataclass
class Lane:
    seed: int
    first: int  # number of its first case
    stride: int  # from one case to the next: the number of lanes
    seconds: float = 1e9
    most: int = 1 << 30  # cases
    timeout_s: float = 2.0  # of the daemons
    grace_s: float = 1.0  # in which an error may come after it
    longest_fault_s: float = 1e9  # a fault that would last longer is lifted then, or when all workers have ended
    kinds: list[str] | None = None
    logs: bool = True  # of the daemons, if a case goes wrong


def lanes_for(cases: int, lanes: int, **common) -> list[Lane]:
    """Lanes that run the cases 0 to `cases`-1 between them, however long that takes."""
    shares = [len(range(first, cases, lanes)) for first in range(lanes)]
    return [Lane(first=first, stride=lanes, most=most, **common) for first, most in enumerate(shares)]


def run_cases(field: Field, lane: Lane) -> None:
    until = time.monotonic() + lane.seconds
    number = lane.first
    for _ in range(lane.most):
        if time.monotonic() > until:
            break
        sizes = field.log_sizes()
        verdict = run(field, draw_case(lane.seed, number, lane.kinds), lane.grace_s, lane.longest_fault_s)
        print(verdict.json(), flush=True)
        if verdict.wrong and lane.logs:
            print(json.dumps({"logs": field.logs_since(sizes), "number": number}), flush=True)
        number += lane.stride


def main(lane: Lane) -> None:
    with netns.Lab(nodes=Field.NODES, nics=2) as lab, Field(lab, lane.timeout_s) as field:
        before = field.memory_kib()
        run_cases(field, lane)
        try:
            wait_until(lambda: not field.held_too_much(threads=0))
        except AssertionError:
            sys.exit(f"left behind at the end: {field.held_too_much(threads=0)}")
        print(json.dumps({"memory_kib": [before, field.memory_kib()]}), flush=True)


if __name__ == "__main__":
    if not netns.inside():
        sys.exit(netns.enter([sys.executable, *sys.argv]))
    main(Lane(**json.loads(sys.argv[1])))
