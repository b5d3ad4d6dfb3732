"""The running job, seen and changed through the commands `deft status` and `deft set` on the node of rank 0."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from deft_tuner.measure import StepLog
from deft_tuner.settings import Settings

SETTLE_STEPS = 2  # after a change, which do not count
LEAST_PAUSE_S, MOST_PAUSE_S = 0.02, 2.0


class TuneError(Exception):
    """What went wrong, and what to do. `status`: of the command's end."""

    def __init__(self, what: str, status: int = 1) -> None:
        super().__init__(what)
        self.status = status


class JobEnded(Exception):
    """The job has ended, or another run of it has begun, so nothing more can be tried."""


class DeftCommand:
    """The command `deft`, for the daemon at a socket (empty: that of this user, or of root)."""

    def __init__(self, program: str, socket: str = "") -> None:
        self.program, self.socket = program, socket

    def run(self, *words: str) -> subprocess.CompletedProcess:
        where = ["--socket", self.socket] if self.socket else []
        return subprocess.run([self.program, *words, *where], capture_output=True, text=True, check=False)

    def check_daemon(self) -> None:
        """TuneError, with the words of `deft status`, if no daemon answers."""
        asked = self.run("status")
        if asked.returncode != 0:
            raise TuneError(asked.stderr.strip().removeprefix("deft status: "), asked.returncode)

    def jobs(self) -> list[dict]:
        """The jobs of this daemon; none if it does not answer (any more)."""
        asked = self.run("status", "--json")
        return json.loads(asked.stdout)["jobs"] if asked.returncode == 0 else []


class RunningJob:
    """A job that this node leads.

    `look` and `change` are deft's answers: tests give their own. `sleep` too, so that tests need no time.
    """

    def __init__(
        self,
        name: str,
        deft: DeftCommand,
        patience_s: float = 120.0,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name, self.deft, self.patience_s = name, deft, patience_s
        self.sleep, self.clock = sleep, clock
        self.log = StepLog()
        self.in_force: Settings | None = None
        self.counts_from = 0  # the first step that counts for the settings in force
        self.steps_seen = 0

    def leader(self) -> dict:
        """The leader's status of the job; takes in the steps that are new."""
        job = next((job for job in self.deft.jobs() if job["name"] == self.name), None)
        if job is None or job.get("state") == "ended":
            raise JobEnded(self.name)
        if "leader" not in job:
            raise TuneError(f"this node does not lead job '{self.name}': run deft tune on the node of rank 0")
        leader = job["leader"]
        for times in leader.get("step_times", [])[:1]:
            steps = times["first_step"] + len(times["us"])
            if steps < self.steps_seen:  # another run, which has settings of its own
                raise JobEnded(self.name)
            self.steps_seen = steps
            self.log.take(times["first_step"], times["us"])
        return leader

    def own_settings(self) -> Settings:
        """The settings of the job before it is tuned."""
        deadline = self.deadline()
        while not (leader := self.leader()).get("step_times"):
            self.wait(deadline, "its first gradients", 0.2)
        return Settings(**leader["settings"])

    def changes(self, leader: dict) -> list[dict]:
        """Of the first group: all groups of a job change alike."""
        listed = leader.get("policies", [])
        return [change for change in listed if change["group"] == leader["step_times"][0]["group"]]

    def set(self, settings: Settings) -> None:
        """Returns once the settings are in force."""
        before = max((change["from_step"] for change in self.changes(self.leader())), default=-1)
        done = self.deft.run("set", *settings.words(), self.name)
        if done.returncode != 0:
            if f"no job '{self.name}' runs" in done.stderr:
                raise JobEnded(self.name)  # a status may still show a job that is about to end
            self.leader()  # the daemon may have ended, too
            raise TuneError(done.stderr.strip().removeprefix("deft set: "), done.returncode)
        self.in_force = settings
        deadline = self.deadline()
        while True:
            new = [change for change in self.changes(self.leader()) if change["from_step"] > before]
            if new:
                self.counts_from = new[-1]["from_step"] + SETTLE_STEPS
                self.log.forget_before(self.counts_from)
                return
            self.wait(deadline, "the next step")

    def deadline(self) -> float:
        return self.clock() + self.patience_s

    def wait(self, deadline: float, what: str, seconds: float = LEAST_PAUSE_S) -> None:
        if self.clock() > deadline:
            raise TuneError(f"job '{self.name}' has not come to {what} within {self.patience_s:g} s: see deft status")
        self.sleep(min(MOST_PAUSE_S, max(LEAST_PAUSE_S, seconds)))

    def run(self, settings: Settings, steps: int) -> list[float]:
        """The times of so many steps with these settings, in microseconds: a block of duel.py."""
        if settings != self.in_force:
            self.set(settings)
        else:
            self.leader()
            self.counts_from = max(self.counts_from, self.log.newest())  # a block has steps of its own
        return self.next_steps(steps)

    def untouched(self, steps: int) -> list[float]:
        """The times of so many steps as the job runs now."""
        self.leader()
        self.counts_from = self.log.newest() + SETTLE_STEPS
        return self.next_steps(steps)

    def next_steps(self, steps: int) -> list[float]:
        newest, deadline = self.log.newest(), self.deadline()
        while (missing := steps - self.log.count_from(self.counts_from)) > 0:
            known = self.log.from_step(self.counts_from, steps)
            usual_s = known[-1] / 1e6 if known else 0.0
            self.wait(deadline, "its next steps", 0.9 * missing * usual_s)
            self.leader()
            if self.log.newest() > newest:
                newest, deadline = self.log.newest(), self.deadline()
        return self.log.from_step(self.counts_from, steps)


def variables_of(process: Path) -> dict[str, str]:
    try:
        lines = (process / "environ").read_bytes().split(b"\0")
    except OSError:
        return {}  # it has ended, or it is another user's
    pairs = (line.decode(errors="replace").partition("=") for line in lines)
    return {name: value for name, _, value in pairs}


def descendants(pid: int, proc: Path = Path("/proc")) -> list[Path]:
    """The processes that a process has started, with theirs."""
    parents: dict[int, list[Path]] = {}
    for folder in proc.iterdir():
        if folder.name.isdigit():
            try:
                after_name = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents.setdefault(int(after_name[1]), []).append(folder)
    found, rest = [], [pid]
    while rest:
        children = parents.get(rest.pop(), [])
        found += children
        rest += [int(child.name) for child in children]
    return found


def first_worker(pid: int) -> dict[str, str] | None:
    """The variables of the worker of rank 0 among the processes that `pid` has started."""
    for process in descendants(pid):
        variables = variables_of(process)
        if variables.get("DEFT_RANK", variables.get("RANK")) == "0":
            return variables
    return None


def job_of(command: subprocess.Popen, program: str, socket: str, patience_s: float) -> RunningJob:
    """The job that a command has started, once its gradients are declared."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        if command.poll() is not None:
            raise TuneError(
                f"the command ended with {command.returncode} before its job trained", command.returncode or 1
            )
        worker = first_worker(command.pid)
        if worker is not None:
            deft = DeftCommand(program, worker.get("DEFT_SOCKET", socket))
            name = worker.get("DEFT_JOB") or "default"
            if any(job["name"] == name and job.get("leader", {}).get("step_times") for job in deft.jobs()):
                return RunningJob(name, deft, patience_s)
        time.sleep(0.2)
    raise TuneError(
        f"no rank 0 of a job of Deft trains on this machine within {patience_s:g} s: give it more time (--patience), "
        "or run `deft tune --job JOB` on the node of rank 0 when it trains"
    )
