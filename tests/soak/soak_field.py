"""The emulated nodes of the soak tests: daemons and a parameter server that live through many cases.

    with netns.Lab(nodes=Field.NODES, nics=2) as lab, Field(lab) as field:
        workers = field.start(per_node=1, steps=60, DEFT_POLICY="fifo")
        ...                                  # faults
        field.leftovers()                    # what is left of the job: nothing, or words
        field.probe()                        # a short job, which must run well

Only inside of what netns.enter has started. One thread, because workers are forks of this process.
"""

import contextlib
import json
import os
import select
import signal
import struct
import subprocess
import time
from pathlib import Path

import soak_worker
from cluster import wait_until
from held import held
from hostile import STATUS, Client, memory_kib
from nic_down import Nodes, netns

PATIENCE_S = 20.0
WORKING_THREADS = 8  # that a daemon keeps for a while for work that may block (daemon/base/blocking_work.h)
DISK_BYTES = 256 << 20  # of sockets, logs and traces of all nodes
SERVER_PORT = 29700


def ask(path: str) -> dict:
    """The status of the daemon at this socket, without a process for it."""
    text, last = b"", False
    with Client(path) as client:
        client.send(STATUS, b"")
        while not last:
            _, body = client.receive()
            assert body, f"the daemon at {path} closed the connection instead of telling its status"
            last = bool(struct.unpack_from("=I", body)[0])
            text += body[8:].split(b"\0")[0]
    return json.loads(text)


class Worker:
    """A forked worker, and what it has told so far."""

    def __init__(self, rank: int, node: int, child: netns.ForkedProcess):
        self.rank, self.node, self.child = rank, node, child
        self.begun_at = self.heard_at = time.monotonic()
        self.end: dict | None = None  # what it told at its end
        self._text = b""

    def read(self) -> None:
        piece = os.read(self.child.stdout.fileno(), 65536)
        self.heard_at = time.monotonic()
        self._text += piece
        *lines, self._text = self._text.split(b"\n")
        for line in map(json.loads, lines):
            if line["event"] == "begun":
                self.begun_at = line["at"]
            elif line["event"] != "step":
                self.end = line
        if not piece and self.end is None:
            self.end = {"event": "gone", "at": time.monotonic(), "text": "the process ended without a word"}

    def send_signal(self, number: int) -> None:
        if self.child.poll() is None:
            os.kill(self.child.pid, number)


def listen_to(workers: list[Worker], seconds: float) -> None:
    """Reads what workers tell, for so long or until all of them have told their end."""
    until = time.monotonic() + seconds
    while waiting := {worker.child.stdout: worker for worker in workers if worker.end is None}:
        left = until - time.monotonic()
        if left <= 0:
            return
        for stream in select.select(list(waiting), [], [], left)[0]:
            waiting[stream].read()


def await_ends(workers: list[Worker], patience_s: float) -> None:
    """Reads what workers tell until all have told their end, or none has told anything for so long: on a busy
    machine a job that goes on may take many times as long as it does alone."""
    heard_at = time.monotonic()
    while any(worker.end is None for worker in workers) and time.monotonic() < heard_at + patience_s:
        listen_to(workers, heard_at + patience_s - time.monotonic())
        heard_at = max(heard_at, *(worker.heard_at for worker in workers))


def listen_to_all(workers: list[Worker], until: float) -> None:
    """Reads what workers tell up to that instant, also if all of them have told their end."""
    listen_to(workers, until - time.monotonic())
    time.sleep(max(until - time.monotonic(), 0))


class Field(Nodes):
    NODES = 3

    def __init__(self, lab: netns.Lab, timeout_s: float = 2.0):
        super().__init__(lab, {"timeout": f"{timeout_s:g}s", "links": "gloo:eth0"})
        self.timeout_s = timeout_s
        self.options |= {"memory_limit": "256MB", "stall_timeout": "1m"}
        self.server: subprocess.Popen | None = None
        self.server_address = f"{lab.address(self.NODES - 1)}:{SERVER_PORT}"
        self.usual: dict[int, tuple[int, int]] = {}  # descriptors and threads of a process without a job
        self.workers: list[Worker] = []

    def __enter__(self) -> "Field":
        # The disk that may be full. Daemons write their traces there, too.
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", self.folder.name], check=True)
        super().__enter__()
        self.start_server()
        with contextlib.suppress(AssertionError):
            self.probe()  # on a busy machine new NICs may lose the first packets for longer than a timeout
        self.probe()
        self.learn()
        return self

    def __exit__(self, *_) -> None:
        for worker in self.workers:
            worker.child.kill()
        self.server.kill()
        self.server.wait()
        for daemon in self.daemons:
            daemon.kill()
            daemon.wait()
        subprocess.run(["umount", "-l", self.folder.name], check=True)
        self.folder.cleanup()

    def start_server(self) -> None:
        self.server = self.start_daemon(
            self.NODES - 1, server=True, links="auto", listen=self.server_address, socket=f"{self.folder.name}/ps.sock"
        )

    # --- Workers

    def start(self, per_node: int, steps: int, **variables: str) -> list[Worker]:
        self.workers = [self.fork(rank, per_node, steps, variables) for rank in range(per_node * self.NODES)]
        return self.workers

    def fork(self, rank: int, per_node: int, steps: int, variables: dict[str, str]) -> Worker:
        def run(_: int, output: int) -> None:
            soak_worker.work(output, steps)

        environment = self.environment(rank, per_node, **variables)
        node = rank // per_node
        child = self.lab.fork(node, run, environment, Path(f"{self.folder.name}/worker{rank}.log"))
        return Worker(rank, node, child)

    def end_workers(self) -> list[str]:
        """Waits for processes that have told their end; kills the others. What went wrong, in words."""
        wrong = []
        for worker in self.workers:
            worker.send_signal(signal.SIGCONT)
            try:
                worker.child.wait(PATIENCE_S if worker.end else 0)
            except subprocess.TimeoutExpired:
                if worker.end:
                    wrong.append(f"rank {worker.rank} told its end, but its process goes on")
                worker.child.kill()
                worker.child.wait()
            worker.child.stdin.close()
            worker.child.stdout.close()
        self.workers = []
        return wrong

    def probe(self) -> None:
        """A short job over all nodes; AssertionError if it does not run well."""
        workers = self.start(1, 3, DEFT_JOB="probe", DEFT_POLICY="fifo")
        await_ends(workers, PATIENCE_S)
        ends = [worker.end for worker in workers]
        self.end_workers()
        assert all(end and end["event"] == "done" for end in ends), f"the next job did not run: {ends}"

    # --- Daemons

    def processes(self) -> dict[str, subprocess.Popen]:
        named = {f"the daemon of node {node}": daemon for node, daemon in enumerate(self.daemons)}
        return {**named, "the parameter server": self.server}

    def ended_by_themselves(self, killed: set[str]) -> list[str]:
        for name in killed:
            self.processes()[name].wait(PATIENCE_S)
        return [name for name, process in self.processes().items() if process.poll() is not None and name not in killed]

    def restart_dead(self) -> None:
        """Starts again what a fault has killed."""
        for node, daemon in enumerate(self.daemons):
            if daemon.poll() is not None:
                self.daemons[node] = self.start_daemon(node)
        if self.server.poll() is not None:
            self.start_server()

    def learn(self) -> None:
        """Notes what a process without a job holds. After the probe: the first job loads and opens what stays."""
        for process in self.processes().values():
            if process.pid not in self.usual:
                self.settle(process.pid)
                self.usual[process.pid] = held(process.pid)

    def settle(self, pid: int) -> None:
        if pid != self.server.pid:
            node = next(node for node, daemon in enumerate(self.daemons) if daemon.pid == pid)
            wait_until(lambda: not ask(self.socket(node))["jobs"], PATIENCE_S, what="the end of the probe")

    def leftovers(self, threads: int = WORKING_THREADS) -> list[str]:
        """What jobs have left behind although it had time to go away, in words. `threads`: so many more are right."""
        left: list[str] = []

        def gone() -> bool:
            left[:] = [words for node in range(self.NODES) for words in self._left_in_daemon(node)]
            left.extend(self.held_too_much(threads))
            return not left

        with contextlib.suppress(AssertionError):
            wait_until(gone, PATIENCE_S / 2)
        left += [f"/dev/shm/{name}" for name in os.listdir("/dev/shm") if "deft" in name]
        return left

    def _left_in_daemon(self, node: int) -> list[str]:
        status = ask(self.socket(node))
        where = f"node {node}: "
        left = [f"{where}job {job['name']} ({job['state']})" for job in status["jobs"]]
        if status["memory_bytes"]:
            left.append(f"{where}{status['memory_bytes']} bytes of shared memory")
        if any(user["sessions"] > 1 for user in status["users"]):
            left.append(f"{where}sessions {status['users']}")
        if not left and "deft-" in Path(f"/proc/{self.daemons[node].pid}/maps").read_text():
            left.append(f"{where}a mapped segment")
        return left

    def held_too_much(self, threads: int) -> list[str]:
        """Descriptors, threads and child processes that are too many. It asks no daemon, which would work for it."""
        left = []
        for name, process in self.processes().items():
            usual, now = self.usual.get(process.pid), held(process.pid)
            if usual and (now[0] > usual[0] or now[1] > usual[1] + threads):
                left.append(f"{name}: (descriptors, threads) {now} instead of {usual}")
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
            if children:
                left.append(f"{name}: child processes {children}")
        return left

    def memory_kib(self) -> dict[str, int]:
        return {name: memory_kib(process.pid) for name, process in self.processes().items()}

    def log_sizes(self) -> list[int]:
        return [os.path.getsize(f"{self.folder.name}/node{node}.log") for node in range(self.NODES)]

    def logs_since(self, sizes: list[int]) -> str:
        return "\n".join(f"-- node {node}\n{self.log(node)[size:]}" for node, size in enumerate(sizes))
