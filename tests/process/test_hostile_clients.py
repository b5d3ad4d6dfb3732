"""Clients that lie in HELLO or use the daemon up: each is refused, and a job that runs meanwhile goes on."""

import contextlib
import mmap
import os
import resource
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cluster import BUILD, Cluster, wait_until
from hostile import (
    ERROR,
    OPERATION,
    STATUS,
    STORE_SET,
    TEXT,
    WAKE,
    WELCOME,
    Client,
    busy_daemon,
    goes_on,
    memory_kib,
)


@pytest.fixture(scope="module")
def busy(tmp_path_factory):
    with busy_daemon(tmp_path_factory.mktemp("victim")) as cluster:
        yield cluster


@pytest.mark.parametrize(
    "lie, says",
    [
        ({"world": 2**32 - 1}, "the world's size is 4294967295, more than 16000"),
        ({"world": 16001}, "the world's size is 16001, more than 16000"),
        ({"world": 16000, "local_size": 10**7}, "the local size is 10000000, more than 4096"),
        ({"world": 16000, "local_size": 4097}, "the local size is 4097, more than 4096"),
        ({"rank": 2, "world": 2}, "rank 2 does not exist in a world of 2"),
        ({"world": 0}, "rank 0 does not exist in a world of 0"),
        ({"world": 4, "local_rank": 2, "local_size": 2}, "local rank 2 of 2 on a node does not fit a world of 4"),
        ({"world": 2, "local_size": 3}, "local rank 0 of 3 on a node does not fit a world of 2"),
        ({"job": b"\xff"}, "the job's name is not valid UTF-8"),
        ({"job": b"\xed\xa0\x80"}, "the job's name is not valid UTF-8"),
        ({"job": b"x" * 256}, "the job's name has 256 bytes, more than 255"),
        ({"job": b"a\nE1124 deftd: all is lost"}, "the job's name holds control characters"),
        ({"job": b""}, "the job's name is empty"),
        ({"leader": b"h" * 256}, "the leader's address has 256 bytes, more than 255"),
        ({"leader": b"\xc0\x80"}, "the leader's address is not valid UTF-8"),
        ({"settings": b"policy=fifo\n" * 1000}, "the job's settings has 12000 bytes, more than 8192"),
        ({"settings": b"policy=\xff"}, "the job's settings is not valid UTF-8"),
        ({"settings": b"nonsense=1"}, "'nonsense' is no setting of a job"),
        ({"version": b"v" * 65}, "the library's version has 65 bytes, more than 64"),
    ],
)
def test_a_lie_in_hello_is_refused_by_the_name_of_its_field(busy, lie, says):
    with Client(busy.socket(0)) as client:
        client.hello(**lie)
        assert says in client.refusal()
    assert [job["name"] for job in busy.status()["jobs"]] == ["victim"]


def test_lies_in_hello_cost_no_memory_and_stop_nobody(busy):
    daemon = busy.daemons[0].pid
    before = memory_kib(daemon)
    for _ in range(50):
        for lie in ({"world": 2**32 - 1}, {"world": 16000, "local_size": 10**8}, {"job": b"\xff" * 60000}):
            with Client(busy.socket(0)) as client:
                client.hello(**lie)
                client.refusal()
    goes_on(busy)
    assert memory_kib(daemon) < before + 64 * 1024


def test_a_job_of_the_largest_world_waits_like_any_other(busy):
    with Client(busy.socket(0)) as client:
        client.hello(world=16000, local_size=4096, job=b"large", settings=b"timeout=5s\n")
        wait_until(lambda: any(job["name"] == "large" for job in busy.status()["jobs"]), what="a job that waits")
        goes_on(busy)
        kind, body = client.receive()  # at the deadline
        assert kind == ERROR and b"the worker with local rank 1, 2, 3" in body


def test_a_status_that_is_not_read_stops_nobody(busy):
    with contextlib.ExitStack() as stack:
        lazy, *large = (stack.enter_context(Client(busy.socket(0))) for _ in range(65))
        names = [f"listed{number}" for number in range(len(large))]
        for name, client in zip(names, large):
            client.hello(world=16000, local_size=4096, job=name.encode())
        wait_until(lambda: {*names} <= {job["name"] for job in busy.status()["jobs"]}, what="a long status")
        lazy.send(STATUS, b"")
        goes_on(busy)
        assert {*names} <= {job["name"] for job in busy.status()["jobs"]}
        lazy.send(STATUS, b"")
        kinds = {lazy.receive()[0] for _ in range(20)}
        assert TEXT in kinds, "what was sent before is there"


def test_a_name_of_any_script_is_shown_as_it_is(busy):
    name = "学習-обучение-🚂"
    with Client(busy.socket(0)) as client:
        client.hello(job=name.encode())
        assert client.receive()[0] == WELCOME
        assert name in [job["name"] for job in busy.status()["jobs"]]


def test_descriptors_that_take_long_to_close_stop_nobody(busy):
    """A socket that lingers: whoever closes its last descriptor would wait for a minute."""
    open_files = Path(f"/proc/{busy.daemons[0].pid}/fd")
    with socket.create_server(("127.0.0.1", 0)) as server:
        for _ in range(5):
            lingering = socket.create_connection(server.getsockname())
            lingering.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 60))
            lingering.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while lingering.send(bytes(1 << 16)):
                    pass
            lingering.setblocking(True)
            with Client(busy.socket(0)) as client:
                try:
                    socket.send_fds(client.socket, [b"no message"], [lingering.fileno()])
                    lingering.close()  # the one under way is the last
                    assert "descriptors came with a message" in client.refusal()
                except PermissionError:  # Linux 6.16 and newer
                    lingering.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    lingering.close()
        goes_on(busy)
        before = len([*open_files.iterdir()])
        for _ in range(100):
            Client(busy.socket(0)).socket.close()
        goes_on(busy)
        wait_until(lambda: len([*open_files.iterdir()]) < before + 50, 30, "the sockets of clients that have gone")


def test_doorbells_that_block_stop_nobody(busy):
    """A doorbell is one open file for both sides: a client may make it block, and fill it."""
    sleeping = 262_400 + 128  # core/shm/layout.h: the word of the completion ring
    with Client(busy.socket(0)) as client:
        client.hello(job=b"bells")
        packet, passed, _, _ = socket.recv_fds(client.socket, 65536, 4)
        assert struct.unpack_from("=I", packet, 4)[0] == WELCOME
        try:
            for bell in passed[1:]:
                os.set_blocking(bell, True)
                os.write(bell, struct.pack("=Q", 2**64 - 2))
            with mmap.mmap(passed[0], 0) as rings:
                rings[sleeping] = 1
                client.send(OPERATION, struct.pack("=QIIQQQIIII", 1 << 32, 4, 0, 0, 0, 0, 7, 1, 0, 0) + b"barrier\0\0")
                assert client.receive()[0] == WAKE
                goes_on(busy)
        finally:
            for descriptor in passed:
                os.close(descriptor)


FLOOD = """
import socket, struct, sys, time
path, until, left = sys.argv[1], time.monotonic() + float(sys.argv[2]), 200
while time.monotonic() < until or left > 0:
    left -= 1
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
        client.connect(path)
        try:
            for _ in range(1000):
                client.send(struct.pack("=IIII", 0x54464544, 1, 36, 4) + bytes(20))
        except OSError:
            pass
"""


def test_a_flood_of_clients_fills_no_log_and_stops_nobody(busy):
    """Three processes that connect and send nonsense as fast as they can."""
    lines_before = busy.log(0).count("\n")
    before = sum(one["count"] for one in busy.status()["refusals"])
    flood = [subprocess.Popen([sys.executable, "-c", FLOOD, busy.socket(0), "2"]) for _ in range(3)]
    began = time.monotonic()
    while any(process.poll() is None for process in flood):
        goes_on(busy)
        busy.status()
    seconds = time.monotonic() - began + 1
    refused = sum(one["count"] for one in busy.status()["refusals"]) - before
    assert refused > 200, "this was no flood"
    lines = busy.log(0).count("\n") - lines_before
    assert lines < 20 * seconds, f"{lines} lines in {seconds:.1f} s for {refused} clients"
    assert "lines like this were left out" in busy.log(0)


def test_jobs_that_begin_and_end_in_a_loop_fill_no_log():
    jobs = 300
    with Cluster(1) as cluster:
        for number in range(jobs):
            with Client(cluster.socket(0)) as client:
                client.hello(job=b"loop%d" % number)
                assert client.receive()[0] == WELCOME
        wait_until(lambda: cluster.status()["jobs_served"] == jobs, what="the end of all jobs")
        assert sum(cluster.status()["jobs_ended"].values()) == jobs
        lines = cluster.log(0).count("\n")
        assert 200 < lines < 3 * jobs, f"{lines} lines for {jobs} jobs, of which each has some five to tell"


def test_an_error_that_forges_lines_and_commands_a_terminal_is_shown_as_text(busy):
    with Client(busy.socket(0)) as client:
        client.hello(job=b"forger")
        assert client.receive()[0] == WELCOME
        texts = b"no link\njob forged: running, policy fifo\n\x1b[2J\xc2\x9b2J\0\0\0"
        client.send(ERROR, struct.pack("=IIQ", 1, 0, 0) + texts)
        assert client.receive()[0] == ERROR
    words = [BUILD / "bin/deft", "status", f"--socket={busy.socket(0)}"]
    wait_until(lambda: "forger" in [job["name"] for job in busy.status()["ended_jobs"]], what="the end of the job")
    shown = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    for text in (shown, busy.log(0)):
        assert r"no link\njob forged: running, policy fifo\n\x1b[2J\x9b2J" in text, text
        assert "\x1b" not in text and "\x9b" not in text and "\njob forged" not in text
    goes_on(busy)


@pytest.mark.parametrize("key", [b"", b"k" * 1025, b"\xff"])
def test_a_key_of_the_store_that_no_worker_has_is_refused(busy, key):
    with Client(busy.socket(0)) as client:
        client.hello(job=b"store")
        assert client.receive()[0] == WELCOME
        client.send(STORE_SET, struct.pack("=II", 0, 0) + key + b"\0value")
        assert "a key of the job's store" in client.refusal()
    goes_on(busy)


def test_jobs_that_use_up_threads_and_memory_are_refused_and_the_others_go_on(busy):
    daemon = busy.daemons[0].pid
    room = 256 << 20
    before = resource.prlimit(daemon, resource.RLIMIT_AS)
    resource.prlimit(daemon, resource.RLIMIT_AS, ((memory_kib(daemon, "VmSize") << 10) + room, before[1]))
    refused = 0
    try:
        with contextlib.ExitStack() as clients:
            for number in range(500):
                client = clients.enter_context(Client(busy.socket(0)))
                client.hello(job=b"job-%d" % number)
                refused += client.receive()[0] == ERROR
                if refused == 5:
                    break
            assert refused == 5, "the limit was not reached: this test tests nothing"
            goes_on(busy)
    finally:
        resource.prlimit(daemon, resource.RLIMIT_AS, before)
    wait_until(lambda: [job["name"] for job in busy.status()["jobs"]] == ["victim"], what="the jobs are gone")
    with Client(busy.socket(0)) as client:
        client.hello(job=b"after")
        assert client.receive()[0] == WELCOME
