"""The processes of one scheme besides its workers: daemons, parameter servers, what a framework's own distribution
needs. Each belongs to a node, uses its cores, and has a log."""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from lab import servers
from lab.assignment import Assignment
from lab.governor import cpu_seconds
from lab.netns import ForkedProcess, Nodes

START_DEADLINE_S = 120


class JobFailed(RuntimeError):
    """A scheme could not be run; the text ends with what its processes printed last."""


@dataclass(frozen=True)
class Service:
    node: int
    name: str  # its log has it, too
    process: subprocess.Popen


class Services:
    def __init__(self, lab: Nodes, assignment: Assignment):
        self._lab, self._assignment = lab, assignment
        self._started: list[Service] = []

    def start_deft(self, build: Path) -> None:
        """The servers of ps links, and a daemon on each node; returns when the daemons are ready."""
        daemon = build / "bin" / "deftd"
        if not daemon.exists():
            raise JobFailed(f"{daemon} is not built: run scripts/build")
        for number, link in enumerate(self._assignment.links().split(",")):
            for node, command in enumerate(servers.commands(build, link)):
                self._start(node, f"server{number}.{node}", command, {})
        for node in range(self._lab.nodes):
            self._start(node, f"daemon{node}", self._daemon(daemon, node), self._daemon_variables(node))
        self._await_daemons()

    def _daemon(self, program: Path, node: int) -> list[str]:
        return [
            str(program),
            "--socket",
            self._assignment.socket(node),
            "--listen",
            self._assignment.control(node),
            "--links",
            self._assignment.links(),
            "--insecure=on",  # the emulated network is closed
        ]

    def _daemon_variables(self, node: int) -> dict[str, str]:
        state = str(self._lab.folder(node) / "state")  # of traces of failed jobs
        return {**self._assignment.option_environment(), "STATE_DIRECTORY": state}

    def _await_daemons(self) -> None:
        deadline = time.monotonic() + START_DEADLINE_S
        while missing := [n for n in range(self._lab.nodes) if not os.path.exists(self._assignment.socket(n))]:
            ended = self._ended()
            if ended or time.monotonic() > deadline:
                name = ended[0] if ended else f"daemon{missing[0]}"
                raise self.failure(f"{name} did not start", name)
            time.sleep(0.01)

    def start_helpers(self, framework: str, interpreter: Path) -> None:
        """What a framework's own distribution needs besides the workers."""
        for number, (node, variables) in enumerate(self._assignment.own_place().helpers(framework)):
            self._start(node, f"helper{number}", [str(interpreter), "-c", f"import {framework}"], variables)

    def _start(self, node: int, name: str, argv: list[str], variables: dict[str, str]) -> None:
        with open(self._assignment.log(name), "wb") as log:
            streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            process = self._lab.start(node, argv, env={**os.environ, **variables}, **streams)
        self._started.append(Service(node, name, process))

    def on(self, node: int) -> list[int]:
        """The ids of this node's processes."""
        return [service.process.pid for service in self._started if service.node == node]

    def cpu_ms(self) -> float:
        """What all of them have used."""
        running = [service.process for service in self._started if service.process.poll() is None]
        return sum(1e3 * cpu_seconds(process.pid) for process in running)

    def stop(self) -> None:
        for service in self._started:
            if service.process.poll() is None:
                service.process.terminate()
        end([service.process for service in self._started])

    def failure(self, what: str, name: str) -> JobFailed:
        """`what` went wrong with the process `name`, and what it printed last. Services that have ended are named, too,
        because they may be the reason."""
        time.sleep(0.2)  # lets the others say what they know
        lines = [f"{what}. Its last lines:", *self._last_lines(name)]
        for other in self._ended():
            if other != name:
                lines += [f"  {other} has ended. Its last lines:", *self._last_lines(other)]
        return JobFailed(f"{self._assignment.scheme}: " + "\n".join(lines))

    def _ended(self) -> list[str]:
        return [service.name for service in self._started if service.process.poll() is not None]

    def _last_lines(self, name: str) -> list[str]:
        text = self._assignment.log(name).read_text(errors="replace").strip()
        return [f"    {line}" for line in text.splitlines()[-12:]]


def end(processes: list[subprocess.Popen] | list[ForkedProcess], patience_s: float = 5) -> None:
    """Waits for them together; what does not end is killed."""
    deadline = time.monotonic() + patience_s
    for process in processes:
        try:
            process.wait(max(0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
