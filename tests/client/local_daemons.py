"""Daemons on loopback, one an emulated node, and worker programs that attach to them."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from forked_worker import ForkedWorker, finish, start_script
from ports import free_port
from under_test import BUILD, ROOT

DAEMON = BUILD / "bin" / "deftd"
WORKER = Path(__file__).with_name("worker.py")


class Daemons:
    def __init__(self, folder: Path, nodes: int, **options: object):
        self.folder, self.nodes, self.jobs = folder, nodes, 0
        self.variables = {"DEFT_TIMEOUT": "60s", "DEFT_LINKS": "gloo:lo"}
        self.variables |= {f"DEFT_{name.upper()}": str(value) for name, value in options.items()}
        self.addresses = [f"127.0.0.1:{free_port()}" for _ in range(nodes)]
        self.processes = [self._start(node) for node in range(nodes)]

    def _start(self, node: int) -> subprocess.Popen:
        read_end, write_end = os.pipe()
        words = [DAEMON, "--socket", self.socket(node), "--listen", self.addresses[node], f"--ready_fd={write_end}"]
        environment = os.environ | self.variables
        with (self.folder / f"daemon{node}.log").open("w") as log:
            process = subprocess.Popen(words, env=environment, stdout=log, stderr=log, pass_fds=[write_end])
        os.close(write_end)
        with os.fdopen(read_end) as ready:
            assert ready.readline() == "ready\n", self.log(node)
        return process

    def socket(self, node: int) -> str:
        return str(self.folder / f"node{node}.sock")

    def log(self, node: int) -> str:
        return (self.folder / f"daemon{node}.log").read_text()

    def start_workers(
        self, scenario: str, workers: int = 2, own=None, **variables: str
    ) -> list[subprocess.Popen | ForkedWorker]:
        """`own`: variables of single ranks."""
        self.jobs += 1
        each = workers // self.nodes
        started = []
        for rank in range(workers):
            environment = os.environ | {
                "DEFT_SOCKET": self.socket(rank // each),
                "DEFT_LEADER": self.addresses[0],
                "DEFT_JOB": f"job{self.jobs}",
                "DEFT_TIMEOUT": self.variables["DEFT_TIMEOUT"],
                "RANK": str(rank),
                "WORLD_SIZE": str(workers),
                "LOCAL_RANK": str(rank % each),
                "LOCAL_WORLD_SIZE": str(each),
                "PYTHONPATH": os.pathsep.join([str(BUILD / "python"), str(ROOT / "tests/torch")]),  # for arena_memory
                "OMP_NUM_THREADS": "1",
                "ARRIVALS": str(self.folder / f"job{self.jobs}.here"),  # of workers that have imported all they need
                **variables,
                **(own or {}).get(rank, {}),
            }
            started.append(start_worker([str(WORKER), scenario], environment))
        return started

    def run(self, scenario: str, workers: int = 2, **variables: str) -> list[str]:
        """Runs scenarios of worker.py in every worker; gives what each printed. All must end well."""
        results = finish(self.start_workers(scenario, workers, **variables))
        logs = "\n".join(self.log(node) for node in range(self.nodes))
        for rank, (status, output) in enumerate(results):
            assert status == 0, f"rank {rank} ended with {status}:\n{output}\n{logs}"
        return [output for _, output in results]

    def close(self) -> None:
        for process in self.processes:
            process.send_signal(signal.SIGTERM)
        for node, process in enumerate(self.processes):
            try:
                status = process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()
                status = process.wait()
            assert status in (0, -signal.SIGKILL), f"daemon {node} ended with {status}:\n{self.log(node)}"


def start_worker(words: list[str], environment: dict[str, str]) -> subprocess.Popen | ForkedWorker:
    if "LD_LIBRARY_PATH" in environment:  # read by the loader alone, when a program begins
        pipe = subprocess.PIPE
        return subprocess.Popen(
            [sys.executable, *words], env=environment, stdout=pipe, stderr=subprocess.STDOUT, text=True
        )
    return start_script(words, environment)


def wait_until(condition, seconds: float = 60, what: str = "the condition") -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come within {seconds} s"
        time.sleep(0.01)
