"""Emulated nodes for process tests: real deftd processes on loopback addresses, real worker processes.

    with Cluster(nodes=2) as cluster:
        workers = cluster.start(SCRIPT, per_node=1)
        cluster.finish(workers)              # all exit 0, or the test fails with their output

A worker script runs with `session`, `rank`, `size`, `np`, `vector(group, tensor)` and `pointer(array)` ready.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from forked_worker import MODULES, ForkedWorker
from ports import free_port
from under_test import BUILD, PRELOAD, ROOT, sanitizer_environment  # noqa: F401

# What a busy machine may add to a deadline of Deft's. Without the deadline an error never comes, so a wide margin is as
# good a test as a narrow one.
MARGIN_S = 10.0
# Of a cluster whose test waits for a deadline. A node that gets no processor for half of it counts as lost, so that all
# other tests have PATIENT.
TIMEOUT_S = 5.0
PATIENT = "60s"
SANITIZED_END_S = 60

IMPORTS = """
import ctypes, os, sys, time
import numpy as np
import deft
def vector(group, tensor, dtype=np.float32, slot=0):
    raw = (ctypes.c_char * group.bytes(tensor)).from_address(group.data(tensor, slot))
    return np.frombuffer(raw, dtype=dtype)
def pointer(array):
    return array.ctypes.data
def say(text):
    print(text, flush=True)
"""
PROLOGUE = (
    IMPORTS
    + """
if "GATE" in os.environ:
    arrivals, gate = map(int, os.environ["GATE"].split(","))
    try:
        os.write(arrivals, b".")
    except BrokenPipeError:
        pass  # another worker has ended, so nobody waits for this one
    os.read(gate, 1)  # ends when the gate is closed, which opens it
    os.close(gate)
    os.close(arrivals)
session = deft.open()
rank, size = session.rank, session.size
"""
)

Worker = subprocess.Popen | ForkedWorker


class Cluster:
    def __init__(self, nodes: int = 1, timeout: str = PATIENT, **options: str):
        self.nodes = nodes
        self.options = {"timeout": timeout, "links": "gloo:lo", **options}
        self.folder = tempfile.TemporaryDirectory(prefix="deft-test-")
        self.listen = [self.address_to_listen_on(node) for node in range(nodes)]
        self.daemons: list[subprocess.Popen] = []
        self.workers: list[Worker] = []

    def __enter__(self) -> "Cluster":
        for node in range(self.nodes):
            self.daemons.append(self.start_daemon(node))
        return self

    def __exit__(self, *_) -> None:
        for process in [*self.workers, *self.daemons]:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                end(process)
        reports = [log for log in map(self.log, range(len(self.daemons))) if "Sanitizer" in log]
        self.folder.cleanup()
        assert not reports, "\n".join(reports)

    def address_to_listen_on(self, node: int) -> str:
        return f"127.0.0.{node + 1}:{free_port(f'127.0.0.{node + 1}')}"

    def prefix(self, node: int) -> list[str]:
        """What to put before a command to run it on this node."""
        return []

    def place(self, node: int) -> dict | None:
        """Where a forked worker of this node goes (worker_server.py); None: a worker is a program with the prefix."""
        return None if self.prefix(node) else {}

    def socket(self, node: int) -> str:
        return f"{self.folder.name}/node{node}.sock"

    def log(self, node: int) -> str:
        return Path(f"{self.folder.name}/node{node}.log").read_text()

    def start_daemon(
        self, node: int, program: Path = BUILD / "bin/deftd", server: bool = False, **options: str
    ) -> subprocess.Popen:
        reader, writer = os.pipe()
        flags = {"socket": self.socket(node), "listen": self.listen[node], "ready_fd": str(writer), **self.options}
        flags |= options
        words = ["server"] if server else []
        with open(f"{self.folder.name}/node{node}.log", "a") as log:
            process = subprocess.Popen(
                [*self.prefix(node), program, *words, *(f"--{n}={v}" for n, v in flags.items())],
                stderr=log,
                stdout=log,
                pass_fds=[writer],
                env={**os.environ, "STATE_DIRECTORY": f"{self.folder.name}/state"},  # of traces of failed jobs
            )
        os.close(writer)
        with os.fdopen(reader) as ready:
            if ready.readline() != "ready\n":
                process.wait()
                raise RuntimeError(f"deftd did not start:\n{self.log(node)}")
        return process

    def environment(self, rank: int, per_node: int, **variables: str) -> dict[str, str]:
        node = rank // per_node
        return (
            os.environ
            | sanitizer_environment()
            | {
                "PYTHONPATH": str(BUILD / "python"),
                "DEFT_SOCKET": self.socket(node),
                "DEFT_LEADER": self.listen[0],
                "DEFT_RANK": str(rank),
                "DEFT_WORLD_SIZE": str(per_node * self.nodes),
                "DEFT_LOCAL_RANK": str(rank % per_node),
                "DEFT_LOCAL_SIZE": str(per_node),
                "OPENBLAS_NUM_THREADS": "1",
            }
            | variables
        )

    def start_one(
        self, script: str, rank: int, per_node: int = 1, pass_fds: tuple[int, ...] = (), **variables: str
    ) -> Worker:
        return self.start_program(PROLOGUE + script, rank, per_node, pass_fds, **variables)

    def start_without_session(self, script: str, per_node: int = 1, **variables: str) -> list[Worker]:
        """A worker a rank, each with `np`, `vector`, `pointer` and `say`, which opens its sessions itself."""
        ranks = range(per_node * self.nodes)
        return [self.start_program(IMPORTS + script, rank, per_node, **variables) for rank in ranks]

    def start_program(
        self,
        program: str,
        rank: int,
        per_node: int = 1,
        pass_fds: tuple[int, ...] = (),
        modules: tuple[str, ...] = MODULES,
        **variables: str,
    ) -> Worker:
        """A worker without the prologue: it opens its own session. `modules`: of those that it imports."""
        node, environment = rank // per_node, self.environment(rank, per_node, **variables)
        place = self.place(node)
        begins_otherwise = any(name.startswith(("LD_", "PYTHON")) for name in variables)
        if place is not None and not begins_otherwise:
            self.workers.append(ForkedWorker(program, environment, pass_fds, modules=modules, place=place))
            return self.workers[-1]
        process = subprocess.Popen(
            [*self.prefix(node), sys.executable, "-c", program],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            pass_fds=pass_fds,
        )
        self.workers.append(process)
        return process

    def start(self, script: str, per_node: int = 1, **variables: str) -> list[Worker]:
        """A worker a rank. They open their sessions together once all have imported what they need: on a busy machine
        imports of one rank can take longer than a short timeout after those of another."""
        arrivals, arrive = os.pipe()
        gate, opened_gate = os.pipe()
        ends = {"pass_fds": (arrive, gate), "GATE": f"{arrive},{gate}"}
        workers = [self.start_one(script, rank, per_node, **ends, **variables) for rank in range(per_node * self.nodes)]
        await_arrivals(arrivals, workers)
        for end in (arrivals, arrive, gate, opened_gate):
            os.close(end)
        return workers

    def finish(self, workers: list[Worker], seconds: float = 120) -> list[str]:
        outputs, failures = [], []
        for rank, worker in enumerate(workers):
            try:
                out, err = worker.communicate(timeout=seconds)
            except subprocess.TimeoutExpired:
                worker.kill()
                out, err = worker.communicate()
                err += f"\nit had not ended after {seconds} s, and was killed"
            outputs.append(out)
            if worker.returncode != 0:
                failures.append(f"rank {rank} exited with {worker.returncode}:\n{out}{err}")
        logs = "\n".join(f"-- node {node}\n{self.log(node)}" for node in range(self.nodes))
        assert not failures, "\n".join(failures) + "\n" + logs
        return outputs

    def status(self, node: int = 0) -> dict:
        result = subprocess.run(
            [BUILD / "bin/deft", "status", "--json", "--socket", self.socket(node)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 0, result.stderr + self.log(node)
        return json.loads(result.stdout)


def end(process: Worker) -> None:
    """A daemon with a sanitizer reports what it has leaked when it ends in good order."""
    if PRELOAD:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(SANITIZED_END_S)
    process.kill()
    process.wait()


def await_arrivals(arrivals: int, workers: list[Worker]) -> None:
    """Waits until every worker has written a byte, or one has ended."""
    arrived = 0
    while arrived < len(workers) and all(worker.poll() is None for worker in workers):
        if select.select([arrivals], [], [], 0.1)[0]:
            arrived += len(os.read(arrivals, len(workers)))


def deft(*words: str | Path) -> subprocess.CompletedProcess:
    """The command `deft`, when it has ended."""
    return subprocess.run([BUILD / "bin/deft", *words], capture_output=True, text=True, timeout=600)


def json_of(done: subprocess.CompletedProcess):
    """What a command has printed; if that is no JSON, what it complains of."""
    assert done.stdout.startswith(("{", "[")), f"{done.args} ended with {done.returncode}:\n{done.stderr}"
    return json.loads(done.stdout)


def wait_until(condition, seconds: float = 60, what: str = "the condition") -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not hold within {seconds} s")
        time.sleep(0.01)


def wait_for_line(worker: Worker, text: str) -> str:
    """Reads the worker's output up to a line that holds `text`."""
    before = []
    for line in worker.stdout:
        if text in line:
            return line
        before.append(line)
    raise AssertionError(f"the worker ended without printing '{text}':\n{''.join(before)}{worker.stderr.read()}")
