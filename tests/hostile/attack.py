"""Trains a victim job while hostile peers flood all ports of its daemons and its server; prints what it costs.

    scripts/attack [--seconds 20] [--seed 1] [--rate 100000]

The victim: two nodes, gradients over gloo and a parameter server. It trains undisturbed, then while the load goes to a
sink on this machine, then while the same load goes to its daemons; the ratio of the last two step times is the cost of
the attack. Beside the ports that are always open, the load goes to a port of a gloo link, one of a tcp link and one of
`deft probe`, which held_ports.py holds open. Ends with 1 if the ratio is above 1.2, if a loss differs from that of a
training without an attack, or if memory or descriptors grow.
"""

import argparse
import contextlib
import hashlib
import http.client
import json
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from cluster import Cluster, free_port, wait_until
from held_ports import FORGED, Held, held_open
from hostile import Client, memory_kib
from hostile_messages import GATHERING
from zmtp import COMMAND, GREETING, Router

HERE = Path(__file__).parent
PYTHON = {**os.environ, "PYTHONPATH": f"{HERE}:{HERE.parent}/process"}  # of the processes that this one starts
ROUTER_READY = b"\x05READY\x0bSocket-Type\0\0\0\x06ROUTER"
ELEMENTS, TENSORS, REPORT = 1 << 14, 4, 25
ROOM_KIB = 16 << 10  # that memory may grow by
VICTIM = (
    f"elements, tensors, report = {ELEMENTS}, {TENSORS}, {REPORT}"
    + """
group = session.declare("sgd", [deft.Tensor(f"w{i}", deft.FLOAT32, (elements,), i) for i in range(tensors)]
                               + [deft.Tensor("last", deft.FLOAT32, (1,), tensors)])
import hashlib
weights = np.zeros(elements * tensors, np.float32)
wave = np.sin(np.arange(weights.size)).astype(np.float32)
step, last, times = 0, False, []
while not last:
    began = time.monotonic()
    gradient = (weights - 1) + wave * np.float32(((step * 7 + rank * 3) % 11) / 11)
    time.sleep(0.004)  # a GPU computes
    for i in range(tensors):
        vector(group, i)[:] = gradient[i * elements : (i + 1) * elements]
    vector(group, tensors)[:] = rank == 0 and not os.path.exists(os.environ["GO_ON"])
    group.ready(0, tensors + 1, step)
    group.wait(0, tensors + 1, step)
    total = np.concatenate([vector(group, i) for i in range(tensors)])
    last = vector(group, tensors)[0] != 0
    weights -= np.float32(0.025) * total
    step += 1
    times.append(time.monotonic() - began)
    if step % report == 0:
        digest = hashlib.sha256(weights.tobytes()).hexdigest()
        say(f"{step} {digest} " + " ".join(f"{1e3 * t:.3f}" for t in times))
        times = []
session.close()
say("done")
"""
)
SMALL_JOB = """
group = session.declare("sgd", [deft.Tensor("w", deft.FLOAT32, (1000,), 0)])
vector(group, 0)[:] = rank
group.ready(0, 1, 0)
group.wait(0, 1, 0)
assert (vector(group, 0) == sum(range(size))).all()
session.close()
say("done")
"""


def losses_without_attack(steps: int) -> dict[int, str]:
    """The digest of the weights after each REPORT steps, computed here alone."""
    weights = np.zeros(ELEMENTS * TENSORS, np.float32)
    wave = np.sin(np.arange(weights.size)).astype(np.float32)
    digests = {}
    for step in range(steps):
        parts = [(weights - 1) + wave * np.float32(((step * 7 + rank * 3) % 11) / 11) for rank in range(2)]
        weights -= np.float32(0.025) * (parts[0] + parts[1])
        if (step + 1) % REPORT == 0:
            digests[step + 1] = hashlib.sha256(weights.tobytes()).hexdigest()
    return digests


def page(address: str) -> str:
    """A flood may crowd a question out: whoever asks again is heard."""
    for _ in range(100):
        with contextlib.suppress(OSError, http.client.HTTPException), urllib.request.urlopen(address, timeout=60) as it:
            return it.read().decode()
    raise AssertionError(f"{address} is not served")


class Victim:
    """The job, its daemons (0 and 1) and its parameter server (2)."""

    def __init__(self, cluster: Cluster, folder: Path):
        self.cluster, self.go_on = cluster, folder / "go-on"
        self.go_on.touch()
        address = f"127.0.0.100:{free_port('127.0.0.100')}"
        cluster.listen.append(address)
        cluster.daemons.append(cluster.start_daemon(2, server=True, links="auto"))
        self.links = f"gloo:lo,ps:{address}"
        self.workers = cluster.start(
            VICTIM, GO_ON=str(self.go_on), DEFT_JOB="victim", DEFT_LINKS=self.links, DEFT_POLICY="bytescheduler"
        )
        self.lines: list[list[str]] = [[] for _ in self.workers]
        self.readers = [threading.Thread(target=self._read, args=(rank,)) for rank in range(2)]
        for reader in self.readers:
            reader.start()
        self.trains()

    def _read(self, rank: int) -> None:
        for line in self.workers[rank].stdout:
            self.lines[rank].append(line)

    def trains(self) -> None:
        """Both workers take many steps that begin after this call."""
        for rank, worker in enumerate(self.workers):
            count = len(self.lines[rank]) + 2
            wait_until(lambda r=rank, c=count, w=worker: len(self.lines[r]) >= c or w.poll() is not None, 120, "steps")
            assert worker.poll() is None, f"rank {rank} ended:\n{worker.stderr.read()}"

    def step_ms(self, seconds: float) -> float:
        """The median step of rank 0 from now on."""
        self.trains()
        begin = len(self.lines[0])
        time.sleep(seconds)
        self.trains()
        return statistics.median(float(word) for line in self.lines[0][begin:] for word in line.split()[2:])

    def end(self) -> dict[int, str]:
        """Ends the job; the digests that both ranks printed."""
        self.go_on.unlink()
        for worker, reader in zip(self.workers, self.readers, strict=True):
            assert worker.wait(120) == 0, worker.stderr.read()
            reader.join(120)
        assert all(lines[-1] == "done\n" for lines in self.lines)
        printed = [{int(w[0]): w[1] for w in map(str.split, lines[:-1])} for lines in self.lines]
        assert printed[0] == printed[1]
        return printed[0]

    def http(self, node: int) -> str:
        return re.findall(r"metrics are on http://(\S+)/metrics", self.cluster.log(node))[-1]

    def metrics(self, node: int) -> dict[str, float]:
        text = page(f"http://{self.http(node)}/metrics")
        return {name: float(value) for name, value in re.findall(r"^([a-z]\S*) (\S+)$", text, re.MULTILINE)}

    def dropped(self) -> dict[str, float]:
        """What was dropped so far, by reason."""
        found: dict[str, float] = {}
        for node in range(3):
            for name, value in self.metrics(node).items():
                reason = re.search(r'reason="(\w+)"', name)
                if reason and value and re.match("deft_(control_|clients_refused|link_strangers|server_drops)", name):
                    key = f"{name.split('{')[0].removeprefix('deft_').removesuffix('_total')} {reason[1]}"
                    found[key] = found.get(key, 0) + value
        return found

    def sizes(self) -> list[tuple[int, int]]:
        """Memory in KiB and descriptors of the daemons and the server."""
        pids = [daemon.pid for daemon in self.cluster.daemons]
        return [(memory_kib(pid), len(os.listdir(f"/proc/{pid}/fd"))) for pid in pids]


@contextlib.contextmanager
def victim_in(folder: Path):
    with Cluster(2, metrics="127.0.0.1:0") as cluster:
        yield Victim(cluster, folder)


# --- The load ---


@dataclass
class Targets:
    """HOST:PORT of each port, and the path of the unix socket."""

    path: str
    control: str
    server: str
    http: str
    gloo: str
    tcp: str
    probe: str


def load_on(to: Targets, rate: float, version: int) -> list[dict]:
    return [
        {"surface": "control", "address": to.control, "rate": 0.64 * rate, "version": version},
        {"surface": "server", "address": to.server, "rate": 0.15 * rate, "node": 0},
        {"surface": "server", "address": to.server, "rate": 0.15 * rate, "node": 1},
        {"surface": "session", "path": to.path, "rate": 0.05 * rate},
        {"surface": "probe", "address": to.probe, "rate": 0.01 * rate},
        {"surface": "frames", "address": to.control, "rate": 100},
        {"surface": "frames", "address": to.server, "rate": 100},
        {"surface": "http", "address": to.http, "rate": 100},
        {"surface": "greetings", "address": to.gloo, "rate": 100},
        {"surface": "greetings", "address": to.tcp, "rate": 100},
    ]


class Flood:
    """Hostile peers, each a process of its own, until stop()."""

    def __init__(self, orders: list[dict], seed: int):
        self.began = time.monotonic()
        self.peers = [
            subprocess.Popen(
                [sys.executable, str(HERE / "flood.py"), json.dumps({"seed": seed + number, **order})],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=PYTHON,
            )
            for number, order in enumerate(orders)
        ]

    def stop(self) -> dict[str, int]:
        """How many messages each surface was sent."""
        for peer in self.peers:
            peer.stdin.close()
        sent: dict[str, int] = {}
        for peer in self.peers:
            output = peer.stdout.read()
            assert peer.wait(120) == 0, "a hostile peer failed"
            counts = json.loads(output.splitlines()[-1])
            sent[counts["surface"]] = sent.get(counts["surface"], 0) + counts["messages"]
        self.seconds = time.monotonic() - self.began
        return sent

    def __enter__(self) -> "Flood":
        return self

    def __exit__(self, *_) -> None:
        for peer in self.peers:
            if peer.poll() is None:
                peer.kill()
            peer.wait()


class Sink:
    """Takes the same load, and does nothing with it: a ZeroMQ port and a unix socket."""

    def __init__(self, folder: Path):
        self.port = socket.create_server(("127.0.0.1", 0))
        self.unix = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.path = str(folder / "sink.sock")
        self.unix.bind(self.path)
        self.unix.listen(64)
        self.address = f"127.0.0.1:{self.port.getsockname()[1]}"
        threading.Thread(target=self._serve, args=(self.port, self._swallow), daemon=True).start()
        threading.Thread(target=self._serve, args=(self.unix, lambda end: end.recv(1 << 16)), daemon=True).start()

    @staticmethod
    def _serve(listener: socket.socket, take) -> None:
        def one(end: socket.socket) -> None:
            with end, contextlib.suppress(OSError):
                end.settimeout(10)
                take(end)

        while True:
            threading.Thread(target=one, args=(listener.accept()[0],), daemon=True).start()

    @staticmethod
    def _swallow(end: socket.socket) -> None:
        end.sendall(GREETING + bytes([COMMAND, len(ROUTER_READY)]) + ROUTER_READY)
        while end.recv(1 << 20):
            pass


def sink_main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        sink = Sink(Path(folder))
        print(sink.address, sink.path, flush=True)
        sys.stdin.read()


@contextlib.contextmanager
def sink_process():
    words = [sys.executable, str(HERE / "attack.py"), "--sink"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=PYTHON) as process:
        yield process.stdout.readline().split()
        process.stdin.close()


def join_of(victim: Victim) -> bytes:
    """A JOIN as these daemons send it, of the second node of the job FORGED."""
    with Router() as leader, Client(victim.cluster.socket(0)) as worker:
        worker.hello(rank=1, world=2, job=FORGED, leader=leader.address.encode())
        with leader.accept() as line:
            return line.receive()


class GatheringJob:
    """The job GATHERING: its first node is here, and its second node comes when the attack is over."""

    def __init__(self, cluster: Cluster):
        self.cluster = cluster
        self.options = {"DEFT_JOB": GATHERING.decode(), "DEFT_JOB_TOKEN": "only its own", "DEFT_TIMEOUT": "3600s"}
        self.first = cluster.start_one(SMALL_JOB, 0, **self.options)
        wait_until(lambda: "joining" in self.states(), what="the job that gathers")

    def states(self) -> list[str]:
        return [job["state"] for job in self.cluster.status()["jobs"] if job["name"] == GATHERING.decode()]

    def end(self) -> None:
        """The second node comes, and the job runs to its end."""
        outputs = self.cluster.finish([self.first, self.cluster.start_one(SMALL_JOB, 1, **self.options)])
        assert all("done" in output for output in outputs)


def attack_on(victim: Victim, held: Held, rate: float, join: bytes) -> list[dict]:
    cluster = victim.cluster
    control, server = cluster.listen[0], cluster.listen[2]
    to = Targets(cluster.socket(0), control, server, victim.http(0), held.gloo, held.tcp, held.probe.address)
    return load_on(to, rate, join[1])


def load_on_sink(address: str, path: str, rate: float, join: bytes) -> list[dict]:
    return load_on(Targets(path, *[address] * 6), rate, join[1])


def stutter(processes: list[subprocess.Popen], workers: list[subprocess.Popen]) -> None:
    """Stops these processes now and then, so that ports stay open that would be closed within a millisecond."""
    while any(worker.poll() is None for worker in workers):
        for number, seconds in ((signal.SIGSTOP, 0.05), (signal.SIGCONT, 0.02)):
            for process in processes:
                process.send_signal(number)
            time.sleep(seconds)


def open_jobs_under_fire(victim: Victim, join: bytes, seed: int, jobs: int) -> dict[str, int]:
    """Jobs open gloo and tcp links while strangers knock at these ports, and while a node and a leader lie."""
    cluster = victim.cluster
    pids = [*(daemon.pid for daemon in cluster.daemons), os.getpid()]
    orders = [
        {"surface": "links", "pids": pids},
        {"surface": "node", "path": cluster.socket(0), "address": cluster.listen[0], "join": join.hex()},
        {"surface": "leader", "path": cluster.socket(0)},
    ]
    with Flood(orders, seed) as flood:
        for number in range(jobs):
            links = ("gloo:lo", "tcp:lo")[number % 2]
            workers = cluster.start(SMALL_JOB, DEFT_JOB=f"small-{number}", DEFT_LINKS=links)
            stutter([cluster.daemons[1], workers[1]], workers)
            outputs = cluster.finish(workers)
            assert all("done" in output for output in outputs)
        return flood.stop()


class Trial:
    """The measurements of main(), and what was wrong with them."""

    def __init__(self, victim: Victim, held: Held, join: bytes, options: argparse.Namespace):
        self.victim, self.held, self.join, self.options = victim, held, join, options
        self.failures: list[str] = []

    def before(self) -> None:
        quiet = self.victim.step_ms(self.options.seconds / 2)
        print(f"{'the load goes to':<22}{'messages/s':>12}{'step':>12}")
        print(f"{'nobody':<22}{'':>12}{quiet:>9.2f} ms", flush=True)

    def at_sink(self) -> float:
        options = self.options
        with (
            sink_process() as (address, path),
            Flood(load_on_sink(address, path, options.rate, self.join), options.seed) as flood,
        ):
            step = self.victim.step_ms(options.seconds)
            sent = flood.stop()
        print(f"{'a sink':<22}{sum(sent.values()) / flood.seconds:>12,.0f}{step:>9.2f} ms", flush=True)
        return step

    def under_attack(self, at_sink: float) -> None:
        options, victim = self.options, self.victim
        gathering = GatheringJob(victim.cluster)
        with Flood(attack_on(victim, self.held, options.rate, self.join), options.seed) as flood:
            victim.step_ms(min(5, options.seconds / 2))
            self.sizes_before = victim.sizes()
            attacked = victim.step_ms(options.seconds)
            self.sizes_after = victim.sizes()
            sent = flood.stop()
        gathering.end()
        total = sum(sent.values()) / flood.seconds
        print(f"{'daemons and server':<22}{total:>12,.0f}{attacked:>9.2f} ms\n")
        ratio = attacked / at_sink
        print(f"ratio of the last two steps: {ratio:.2f}; sent: {sent}")
        if ratio > 1.2:
            self.failures.append(f"the victim's step is {ratio:.2f} of that with a sink")
        if self.held.probe.grown_kib() > ROOM_KIB:
            self.failures.append(f"the memory of deft probe grew by {self.held.probe.grown_kib()} KiB")

    def compare_sizes(self) -> None:
        rest = self.victim.sizes()
        print(f"\n{'':<10}{'memory, KiB: then':>20}{'now':>10}{'descriptors: then':>20}{'now':>6}{'at the end':>12}")
        for name, (kib, fds), (kib2, fds2), (_, fds3) in zip(
            ("node 0", "node 1", "server"), self.sizes_before, self.sizes_after, rest, strict=True
        ):
            print(f"{name:<10}{kib:>20}{kib2:>10}{fds:>20}{fds2:>6}{fds3:>12}")
            if kib2 > kib + ROOM_KIB:
                self.failures.append(f"the memory of {name} grew by {kib2 - kib} KiB")
            if fds3 > fds:
                self.failures.append(f"the descriptors of {name} grew to {fds3}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20, help="of each of the three trainings")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=float, default=100_000, help="messages a second")
    parser.add_argument("--jobs", type=int, default=10, help="that open their links under fire afterwards")
    parser.add_argument("--sink", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.sink:
        sink_main()
        return 0
    with tempfile.TemporaryDirectory() as folder, victim_in(Path(folder)) as victim:
        join = join_of(victim)
        with held_open(victim.cluster, join) as held:
            trial = Trial(victim, held, join, options)
            trial.before()
            at_sink = trial.at_sink()
            before_drops = victim.dropped()
            trial.under_attack(at_sink)
            held.probe.end()
        print("links under fire:", open_jobs_under_fire(victim, join, options.seed, options.jobs))
        time.sleep(12)  # half connections end after 10 s
        trial.compare_sizes()
        print("\ndropped, by reason:")
        for reason, count in sorted(victim.dropped().items()):
            print(f"  {reason:<44}{count - before_drops.get(reason, 0):>14,.0f}")
        printed = victim.end()
    wanted = losses_without_attack(max(printed))
    same = all(wanted[step] == digest for step, digest in printed.items())
    print(f"\nweights after {max(printed)} steps: {'the same as' if same else 'not those'} without an attack")
    if not same:
        trial.failures.append("the training has other losses than without an attack")
    for failure in trial.failures:
        print(f"FAILED: {failure}")
    return 1 if trial.failures else 0


if __name__ == "__main__":
    sys.exit(main())
