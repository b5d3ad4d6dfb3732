"""What scripts/soak runs.

    soak.py [faults] [--minutes M | --cases N | --case N] [--seed S] [--lanes N] [--kind TEXT] [--json FILE]
    soak.py crowd [--users U] [--jobs J] [--ranks R] [--arena-gb G]
    soak.py steps [--steps N] [--policy P]

Ends with 1 if something is wrong.
"""

import argparse
import json
import random
import subprocess
import sys
import threading
from dataclasses import asdict, dataclass
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "process"), str(HERE.parent / "client")]

from soak_cases import TOLD, WENT_ON, WRONG  # noqa: E402
from soak_faults import FAULTS  # noqa: E402
from soak_lane import Lane, lanes_for  # noqa: E402

PAUSE_MS = 50  # of an event loop
ROOM_KIB = 32 << 10  # of a daemon's memory, for what the allocator keeps after all jobs have gone


@dataclass
class Row:
    """What the cases of one kind came to."""

    cases: int = 0
    went_on: int = 0
    told: int = 0
    wrong: int = 0
    slowest_s: float = 0.0

    def add(self, verdict: dict) -> None:
        self.cases += 1
        self.went_on += verdict["outcome"] == WENT_ON
        self.told += verdict["outcome"] == TOLD
        self.wrong += verdict["outcome"] == WRONG
        self.slowest_s = max(self.slowest_s, verdict["slowest_s"])


class Report:
    """Takes the lines of all lanes, from their threads."""

    def __init__(self, echo: bool):
        self.rows = {kind: Row() for kind in FAULTS}
        self.verdicts: list[dict] = []
        self.failures: list[str] = []
        self._lock = threading.Lock()
        self._echo = echo

    def take(self, line: str) -> None:
        try:
            told = json.loads(line)
        except json.JSONDecodeError:
            told = {"text": line.rstrip()}
        with self._lock:
            if "case" in told:
                self._take_verdict(told)
            elif "logs" in told:
                print(f"the logs of case {told['number']}:\n{told['logs']}", flush=True)
            elif "memory_kib" in told:
                self._take_memory(*told["memory_kib"])
            else:
                print(told["text"], flush=True)

    def _take_verdict(self, verdict: dict) -> None:
        case = verdict["case"]
        self.rows[case["kind"]].add(verdict)
        self.verdicts.append(verdict)
        if verdict["wrong"] or self._echo:
            print(f"case {case['number']} (seed {case['seed']}): {verdict['outcome']}\n  {case}", flush=True)
            print("".join(f"  {words}\n" for words in verdict["wrong"] or verdict["texts"]), end="", flush=True)

    def _take_memory(self, before: dict, after: dict) -> None:
        for name, kib in after.items():
            words = f"memory of {name}: {before[name] >> 10} MB before, {kib >> 10} MB after"
            print(words)
            if kib > before[name] + ROOM_KIB:
                self.failures.append(words)

    def table(self) -> str:
        lines = [f"{'fault':<36}{'cases':>6}{'went on':>9}{'told':>6}{'wrong':>7}{'slowest s':>11}"]
        total = Row()
        for kind, row in self.rows.items():
            if row.cases:
                lines.append(_line(kind, row))
            for name, value in asdict(row).items():
                together = max if name == "slowest_s" else int.__add__
                setattr(total, name, together(getattr(total, name), value))
        return "\n".join([*lines, _line("all", total)])

    def wrong(self) -> int:
        return sum(row.wrong for row in self.rows.values()) + len(self.failures)


def _line(kind: str, row: Row) -> str:
    return f"{kind:<36}{row.cases:>6}{row.went_on:>9}{row.told:>6}{row.wrong:>7}{row.slowest_s:>11.2f}"


def follow(lane: Lane, report: Report) -> None:
    """Runs a lane as a process, because each has namespaces of its own."""
    words = [sys.executable, HERE / "soak_lane.py", json.dumps(asdict(lane))]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    for line in process.stdout:
        report.take(line)
    if process.wait() != 0:
        report.failures.append(f"lane {lane.first} ended with {process.returncode}")


def run_lanes(lanes: list[Lane], report: Report) -> None:
    threads = [threading.Thread(target=follow, args=(lane, report)) for lane in lanes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def faults(arguments: argparse.Namespace) -> int:
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(1 << 31)
    print(f"seed {seed}", flush=True)
    kinds = [kind for kind in FAULTS if arguments.kind in kind]
    if not kinds:
        sys.exit(f"no kind of fault holds '{arguments.kind}': " + ", ".join(FAULTS))
    common = {"seed": seed, "kinds": kinds, "timeout_s": arguments.timeout, "grace_s": arguments.grace}
    report = Report(echo=arguments.case is not None)
    if arguments.case is not None:
        lanes = [Lane(first=arguments.case, stride=1, most=1, **common)]
    elif arguments.cases is not None:
        lanes = lanes_for(arguments.cases, arguments.lanes, **common)
    else:
        common["seconds"] = arguments.minutes * 60
        lanes = [Lane(first=first, stride=arguments.lanes, **common) for first in range(arguments.lanes)]
    run_lanes(lanes, report)
    print(report.table())
    for failure in report.failures:
        print(failure)
    if arguments.json:
        arguments.json.write_text(json.dumps(report.verdicts, indent=1))
    return 1 if report.wrong() else 0


def show(name: str, figures: dict) -> None:
    print(f"{name}: " + ", ".join(f"{key} {value}" for key, value in figures.items()), flush=True)


def crowd(arguments: argparse.Namespace) -> int:
    import soak_crowd

    each = arguments.jobs // arguments.users
    parts = {
        "jobs of several users": lambda: soak_crowd.jobs_of_users(arguments.users, each),
        "ranks on 4 daemons": lambda: soak_crowd.ranks_of_a_job(4, arguments.ranks),
        "nodes of one leader": lambda: soak_crowd.nodes_of_a_job(arguments.ranks),
        "arenas of one daemon": lambda: soak_crowd.large_arenas(4, int(arguments.arena_gb * (1 << 30))),
    }
    pauses = {}
    for name, part in parts.items():
        figures = part()
        show(name, figures)
        pauses[name] = figures["pause_ms"]
    too_long = {name: pause for name, pause in pauses.items() if pause > PAUSE_MS}
    if too_long:
        print(f"an event loop stood still for more than {PAUSE_MS} ms: {too_long}")
    return 1 if too_long else 0


def steps(arguments: argparse.Namespace) -> int:
    import soak_steps

    figures = soak_steps.long_training(arguments.steps, arguments.policy, print)
    show("a long training", figures)
    return 1 if figures["grown"] else 0


def parse(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/soak", description="Faults at random instants; crowds; long runs.")
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("faults", help="trainings with one fault each, at a random instant (without a command)")
    one.add_argument("--minutes", type=float, default=10)
    one.add_argument("--seed", type=int, help="of all that is random; the default is chosen and printed")
    one.add_argument("--lanes", type=int, default=3, help="cases at the same time, each on nodes of its own")
    one.add_argument("--kind", default="", help="only the faults whose name holds this text")
    one.add_argument("--cases", type=int, help="so many, however long that takes")
    one.add_argument("--case", type=int, help="only this one")
    one.add_argument("--timeout", type=float, default=2.0, help="DEFT_TIMEOUT; more for a machine that is busy")
    one.add_argument("--grace", type=float, default=1.0, help="seconds after the timeout in which an error may come")
    one.add_argument("--json", type=Path, help="a file for all verdicts")
    one = commands.add_parser("crowd", help="many jobs, ranks and nodes at once, and large arenas")
    one.add_argument("--users", type=int, default=4)
    one.add_argument("--jobs", type=int, default=64, help="of all users together")
    one.add_argument("--ranks", type=int, default=1000, help="of one job; and as many nodes of another")
    one.add_argument("--arena-gb", type=float, default=2, help="of each of four workers")
    one = commands.add_parser("steps", help="a long training of small tensors: nothing may grow")
    one.add_argument("--steps", type=int, default=1_000_000)
    one.add_argument("--policy", default="auto")
    return parser.parse_args(words if words and words[0] in commands.choices else ["faults", *words])


def main() -> int:
    words = sys.argv[1:]
    arguments = parse(["faults", "--help"] if words in (["--help"], ["-h"]) else words)
    return {"faults": faults, "crowd": crowd, "steps": steps}[arguments.command](arguments)


if __name__ == "__main__":
    sys.exit(main())
