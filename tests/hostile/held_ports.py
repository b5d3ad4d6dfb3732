"""Ports that are open for a moment only, held open for as long as an attack lasts: of gloo and tcp links, and that of
`deft probe`.

    with held_open(cluster, join) as held:       # `join`: a JOIN of these daemons, of the job FORGED
        held.gloo, held.tcp, held.probe.address  # HOST:PORT of each
        ...                                      # the attack
        held.probe.end()                         # its second process comes, and both run to their end

Each link opens between a real member and one that publishes where it is, and then never calls: the member takes
connections until its deadline, which is far.
"""

import contextlib
import os
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

from cluster import BUILD, IMPORTS, Cluster, wait_until
from flood import incarnation_of, listening_ports
from hostile import STORE_SET, WELCOME, Client, memory_kib
from ports import free_port
from zmtp import dealer, message

FORGED = b"attack-0000000"
GLOO_JOB, TCP_JOB = b"held-gloo-port", b"held-tcp-port"
NOWHERE = bytes(16) + b"127.0.0.1 9"  # what a member publishes: a secret, and an address
FAR = "3600s"
LINK = 14  # a message of the unix socket


def number_in(varint: bytes) -> int:
    return sum((byte & 127) << 7 * place for place, byte in enumerate(varint))


def new_port(pid: int, before: list[tuple[str, int]]) -> str:
    found: list[tuple[str, int]] = []
    wait_until(lambda: found.extend(set(listening_ports([pid])) - set(before)) or found, what="the port of a link")
    return f"{found[0][0]}:{found[0][1]}"


@contextlib.contextmanager
def held_gloo(cluster: Cluster, join: bytes) -> Iterator[str]:
    """The port of daemon 0. Its job's second node is made here."""
    assert len(GLOO_JOB) == len(FORGED)
    pid = cluster.daemons[0].pid
    before = listening_ports([pid])
    with Client(cluster.socket(0)) as worker, dealer(cluster.listen[0]) as node:
        settings = f"timeout={FAR}\n".encode()
        worker.hello(rank=0, world=2, job=GLOO_JOB, leader=cluster.listen[0].encode(), settings=settings)
        wait_until(lambda: GLOO_JOB.decode() in [job["name"] for job in cluster.status()["jobs"]], what="the job")
        node.send(join.replace(FORGED, GLOO_JOB))
        incarnation = incarnation_of(node.receive())
        key = GLOO_JOB + b"/%d/0/gloo/1" % number_in(incarnation[1:])
        published = message(f7=message(f1=key, f2=NOWHERE))
        node.send(message(f1=join[1], f2=GLOO_JOB) + incarnation + message(f40=published))
        yield new_port(pid, before)


@contextlib.contextmanager
def held_tcp(cluster: Cluster) -> Iterator[str]:
    """The port of a worker of daemon 0. The second worker is made here."""
    variables = {"DEFT_JOB": TCP_JOB.decode(), "DEFT_LINKS": "tcp:lo", "DEFT_TIMEOUT": FAR}
    first = cluster.start_program(IMPORTS + "import signal\nsession = deft.open()\nsignal.pause()", 0, **variables)
    with Client(cluster.socket(1)) as second:
        settings = f"links=tcp:lo\ntimeout={FAR}\n".encode()
        second.hello(rank=1, world=2, job=TCP_JOB, leader=cluster.listen[0].encode(), settings=settings)
        kind, body = second.receive()
        assert kind == WELCOME, f"message {kind} came: {body!r}"
        kind, body = second.receive()
        assert kind == LINK
        prefix = body[8:].split(b"\0")[3]
        second.send(STORE_SET, struct.pack("=II", 0, 0) + prefix + b"/tcp/1\0" + NOWHERE)
        yield new_port(first.pid, [])
        assert first.poll() is None, f"the worker has ended:\n{first.stderr.read()}"


class WaitingProbe:
    """`deft probe` of two processes, of which the second comes at the end."""

    def __init__(self) -> None:
        self.leader = f"127.0.0.1:{free_port()}"
        host, port = self.leader.split(":")
        self.address = f"{host}:{int(port) + 1}"
        self.processes: list[subprocess.Popen] = []
        self.first = self.start(0)
        wait_until(lambda: (host, int(port) + 1) in listening_ports([self.first.pid]), what="the store of deft probe")
        self.kib = memory_kib(self.first.pid)

    def start(self, rank: int) -> subprocess.Popen:
        place = {"DEFT_RANK": str(rank), "DEFT_WORLD_SIZE": "2", "DEFT_LOCAL_RANK": "0", "DEFT_LOCAL_SIZE": "1"}
        process = subprocess.Popen(
            [BUILD / "bin/deft", "probe", "--seconds=0.1", f"--timeout={FAR}"],
            env={**os.environ, **place, "DEFT_LEADER": self.leader, "DEFT_LINKS": "gloo:lo"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.processes.append(process)
        return process

    def grown_kib(self) -> int:
        return memory_kib(self.first.pid) - self.kib

    def end(self) -> None:
        self.start(1)
        for process in self.processes:
            output, complaint = process.communicate(timeout=120)
            assert process.returncode == 0, output + complaint

    def __enter__(self) -> "WaitingProbe":
        return self

    def __exit__(self, *_) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


@dataclass
class Held:
    gloo: str
    tcp: str
    probe: WaitingProbe


@contextlib.contextmanager
def held_open(cluster: Cluster, join: bytes) -> Iterator[Held]:
    with held_gloo(cluster, join) as gloo, held_tcp(cluster) as tcp, WaitingProbe() as probe:
        yield Held(gloo, tcp, probe)
