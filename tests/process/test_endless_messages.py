"""Peers without a key that send a message without an end, or send while nobody waits for them: parameter servers, links
to them and `deft probe` bound the memory that this takes.
"""

import os
import struct
import subprocess
import threading
import time

import pytest
from cluster import BUILD, PATIENT, Cluster, free_port, wait_for_line, wait_until
from hostile import memory_kib
from test_parameter_servers import Servers
from zmtp import EMPTY_FRAMES, Connection, Router, dealer, large_frame, send_without_end, unfinished_messages

MOST_SENT = {"large frames": (large_frame(128 << 10), 1 << 30), "empty frames": (EMPTY_FRAMES, 64 << 20)}
MOST_KIB = 600 << 10  # by which a process may grow; without a bound it grows by a gigabyte and more

WELCOME, PING = 4, 7  # kinds of messages


def header(kind: int) -> bytes:
    """PsHeader of core/link/ps/wire.h."""
    return struct.pack("<IHHIIQQQQIIBBBBIII", 0x53504644, 5, kind, *[0] * 6, 0, 0xFFFFFFFF, *[0] * 5, 0xFFFFFFFF, 0)


def peak_kib(pid: int) -> int:
    return memory_kib(pid, "VmHWM")


def wait_until_at_rest(pid: int) -> None:
    """The peak of the memory does not grow for a second."""
    peaks = [0]
    while peaks[-1] != peak_kib(pid):
        peaks.append(peak_kib(pid))
        time.sleep(1)


@pytest.mark.parametrize("frames", MOST_SENT)
def test_a_server_ends_a_connection_whose_message_has_no_end(frames):
    with Cluster(1) as cluster:
        server = Servers(cluster, 1)
        pid = server.processes[0].pid
        before = memory_kib(pid)
        with dealer(server.addresses[0]) as stranger:
            send_without_end(stranger, *MOST_SENT[frames])
        assert peak_kib(pid) < before + MOST_KIB


def test_strangers_share_what_they_may_bring_to_a_server():
    with Cluster(1) as cluster:
        server = Servers(cluster, 1)
        pid = server.processes[0].pid
        before = memory_kib(pid)
        with unfinished_messages(server.addresses[0]):
            wait_until(lambda: peak_kib(pid) > before + (100 << 10), what="what they bring")
            wait_until_at_rest(pid)
        assert peak_kib(pid) < before + MOST_KIB


IDLE = """
say("open")
while not os.path.exists(os.environ["GO_ON"]):
    time.sleep(0.01)
group = session.declare("sgd", [deft.Tensor("w", deft.FLOAT32, (1000,), 0)])
try:
    group.ready(0, 1, 0)
    group.wait(0, 1, 0)
except deft.DeftError as error:
    say(f"ERROR {error}")
    raise SystemExit(0)
"""


class FalseServer:
    """A parameter server that welcomes the links of two nodes, and then does what a test likes."""

    def __init__(self):
        self.router = Router()
        self.lines: list[Connection] = []
        self.welcoming = threading.Thread(target=self.welcome)
        self.welcoming.start()

    def welcome(self) -> None:
        for _ in range(2):
            line = self.router.accept()
            assert len(line.receive()) == len(header(WELCOME))
            line.receive()  # the secret and the link's name
            self.lines.append(line)
        for line in self.lines:
            line.send(header(WELCOME), b"")

    def __enter__(self) -> "FalseServer":
        return self

    def __exit__(self, *_) -> None:
        self.welcoming.join()
        for line in self.lines:
            line.stream.close()
        self.router.listener.close()


@pytest.fixture
def idle_job(tmp_path):
    """Two nodes whose links to a false server are open, and nothing is under way."""
    with FalseServer() as server, Cluster(2) as cluster:
        go_on = tmp_path / "go-on"
        workers = cluster.start(IDLE, DEFT_LINKS=f"ps:{server.router.address}", GO_ON=str(go_on))
        for worker in workers:
            wait_for_line(worker, "open")
        yield server, cluster, workers, go_on


def grown_kib(cluster: Cluster, before: list[int]) -> int:
    return max(peak_kib(daemon.pid) - was for daemon, was in zip(cluster.daemons, before, strict=True))


def test_what_a_server_sends_to_a_link_that_waits_for_nothing_is_dropped(idle_job):
    server, cluster, workers, _ = idle_job
    before = [memory_kib(daemon.pid) for daemon in cluster.daemons]
    for line in server.lines:
        for _ in range(1000):
            line.send(header(PING), bytes(1 << 20))
    assert grown_kib(cluster, before) < MOST_KIB
    for worker in workers:
        worker.kill()


@pytest.mark.parametrize("frames", MOST_SENT)
def test_a_link_that_waits_for_nothing_ends_a_connection_whose_message_has_no_end(idle_job, frames):
    server, cluster, workers, go_on = idle_job
    before = [memory_kib(daemon.pid) for daemon in cluster.daemons]
    send_without_end(server.lines[0], *MOST_SENT[frames])
    assert grown_kib(cluster, before) < MOST_KIB
    go_on.touch()
    outputs = cluster.finish(workers)
    said = f"{server.router.address} is no parameter server: it sends a message without an end"
    assert any(said in output for output in outputs), outputs


def start_probe(rank: int, leader: str) -> subprocess.Popen:
    place = {"DEFT_RANK": str(rank), "DEFT_WORLD_SIZE": "2", "DEFT_LOCAL_RANK": "0", "DEFT_LOCAL_SIZE": "1"}
    return subprocess.Popen(
        [BUILD / "bin/deft", "probe", "--seconds", "0.1"],
        env=os.environ | place | {"DEFT_LEADER": leader, "DEFT_LINKS": "gloo:lo", "DEFT_TIMEOUT": PATIENT},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_strangers_share_what_they_may_bring_to_a_probe():
    port = free_port()
    first = start_probe(0, f"127.0.0.1:{port}")
    store = f"127.0.0.1:{port + 1}"
    wait_until(lambda: can_connect(store), what="rank 0 listens")
    before = memory_kib(first.pid)
    with unfinished_messages(store):
        wait_until(lambda: peak_kib(first.pid) > before + (100 << 10), what="what they bring")
        wait_until_at_rest(first.pid)
    assert peak_kib(first.pid) < before + MOST_KIB
    first.kill()
    first.communicate()


@pytest.mark.parametrize("frames", MOST_SENT)
def test_a_probe_ends_a_connection_whose_message_has_no_end(frames):
    port = free_port()
    first = start_probe(0, f"127.0.0.1:{port}")
    store = f"127.0.0.1:{port + 1}"
    wait_until(lambda: can_connect(store), what="rank 0 listens")
    before = memory_kib(first.pid)
    with dealer(store) as stranger:
        send_without_end(stranger, *MOST_SENT[frames])
    assert first.poll() is None, first.communicate()
    assert peak_kib(first.pid) < before + MOST_KIB
    second = start_probe(1, f"127.0.0.1:{port}")
    results = [process.communicate(timeout=120) for process in (first, second)]
    assert [first.returncode, second.returncode] == [0, 0], results


def can_connect(address: str) -> bool:
    try:
        dealer(address, seconds=5).stream.close()
    except OSError:
        return False
    return True
