"""Attacks on the control port of a real daemon: by a stranger, by the leader of a job, and by a node of a job.

A job `victim` runs on the daemon meanwhile. It goes on, and a new job of the daemon runs to its end afterwards.
"""

import contextlib
import random
import socket
from pathlib import Path

import pytest
from cluster import wait_until
from hostile import ERROR, Client, busy_daemon, goes_on, memory_kib
from zmtp import (
    EMPTY_FRAMES,
    GREETING,
    Router,
    dealer,
    large_frame,
    message,
    send_without_end,
    unfinished_messages,
    whole_frame,
)

TO_LEADER, TO_NODE = "f40", "f41"
MOST_KIB = 600 << 10  # for 8 MiB of empty frames and what comes in a tenth of a second
JOB = """
group = session.declare("sgd", [deft.Tensor("w", deft.FLOAT32, (1000,), 0)])
for step in range(3):
    vector(group, 0)[:] = rank + step
    group.ready(0, 1, step)
    group.wait(0, 1, step)
    assert (vector(group, 0) == sum(r + step for r in range(size))).all()
session.close()
say("done")
"""


@pytest.fixture(scope="module")
def busy(tmp_path_factory):
    with busy_daemon(tmp_path_factory.mktemp("victim")) as cluster:
        yield cluster
        goes_on(cluster)
        outputs = cluster.finish(cluster.start(JOB, 2, DEFT_JOB="afterwards"))
        assert all("done" in output for output in outputs)


@pytest.fixture(scope="module")
def join(busy) -> bytes:
    """A JOIN as this daemon sends it, for the job `attack-0`: rank 1 of two."""
    with Router() as leader, Client(busy.socket(0)) as worker:
        worker.hello(rank=1, world=2, job=b"attack-0", leader=leader.address.encode())
        with leader.accept() as line:
            return line.receive()


def envelope(join: bytes, job: bytes, incarnation: int, **body: bytes) -> bytes:
    version = join[1]  # field 1 comes first
    return message(f1=version, f2=job, f3=incarnation, **body)


def incarnation_of(answer: bytes) -> int:
    """Field 3 of an envelope, behind the version and a job's name of less than 128 bytes."""
    at = 4 + answer[3]
    assert answer[at] == 3 << 3
    value = shift = 0
    for byte in answer[at + 1 :]:
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value
    raise AssertionError("a number without an end")


def counted(busy) -> int:
    status = busy.status()
    return status["control_messages_rejected"] + status["control_messages_unclaimed"]


def error_of(worker: Client) -> str:
    kind, body = worker.receive()
    assert kind == ERROR, f"message {kind} came in place of an error"
    return " ".join(text.decode() for text in body[16:].split(b"\0"))


# --- A stranger ---


# The random bytes happen to be messages of ZMTP 1.0. The daemon has read them when it closes, so they are counted here.
def test_bytes_that_are_no_zeromq_stop_nobody(busy):
    host, port = busy.listen[0].rsplit(":", 1)
    dice = random.Random(1)
    for attack in (b"GET / HTTP/1.1\r\n\r\n", GREETING[:40], GREETING + b"\xff" * 200, dice.randbytes(5000), b""):
        with socket.create_connection((host, int(port))) as stream:
            stream.settimeout(60)
            with contextlib.suppress(ConnectionError):
                stream.sendall(attack)
                stream.shutdown(socket.SHUT_WR)
                while stream.recv(1000):
                    pass
    goes_on(busy)


def test_frames_of_garbage_are_counted_and_dropped(busy):
    before = counted(busy)
    dice = random.Random(2)
    attacks = [b"", b"\x00", b"\xff" * 1000, *(dice.randbytes(size) for size in range(1, 200))]
    with dealer(busy.listen[0]) as stranger:
        for attack in attacks:
            stranger.send(attack)
        stranger.send(b"one", b"two", b"three")  # parts that no daemon sends
        wait_until(lambda: counted(busy) == before + len(attacks) + 1, what="all of them are counted")
    goes_on(busy)


# An empty frame takes two bytes on the wire and 64 in memory.
@pytest.mark.parametrize(("frames", "most_bytes"), [(large_frame(1 << 20), 1 << 30), (EMPTY_FRAMES, 128 << 20)])
def test_a_message_without_an_end_costs_its_sender_the_connection(busy, frames, most_bytes):
    daemon = busy.daemons[0].pid
    before, cut = memory_kib(daemon), busy.status()["control_drops"]["endless"]
    with dealer(busy.listen[0]) as stranger:
        send_without_end(stranger, frames, most_bytes)
    with Router() as leader, Client(busy.socket(0)) as worker:
        worker.hello(rank=1, world=2, job=b"led-by-a-talker", leader=leader.address.encode())
        with leader.accept() as line:
            line.receive()
            send_without_end(line, frames, most_bytes)
    assert busy.status()["control_drops"]["endless"] == cut + 2
    assert memory_kib(daemon, "VmHWM") < before + MOST_KIB
    wait_until(lambda: memory_kib(daemon) < before + (64 << 10), what="the memory is given back")
    goes_on(busy)


def test_strangers_share_what_they_may_bring_and_never_crowd_out_a_node(busy, join):
    daemon, job = busy.daemons[0].pid, b"attack-6"
    before, cut = memory_kib(daemon), busy.status()["control_drops"]["endless"]
    Path(f"/proc/{daemon}/clear_refs").write_text("5")  # the peak begins anew
    with Client(busy.socket(0)) as worker, dealer(busy.listen[0]) as node:
        worker.hello(rank=0, world=2, job=job, leader=busy.listen[0].encode())
        wait_until(lambda: job.decode() in [one["name"] for one in busy.status()["jobs"]], what="the job is there")
        node.send(join.replace(b"attack-0", job))
        incarnation = incarnation_of(node.receive())
        lie = envelope(join, job, incarnation, **{TO_LEADER: message(f7=message(f1=b"key", f2=bytes(5 << 20)))})
        node.stream.sendall(whole_frame(lie)[:-1])
        with unfinished_messages(busy.listen[0]):
            wait_until(lambda: busy.status()["control_drops"]["endless"] >= cut + 48, what="most strangers are ended")
            assert memory_kib(daemon, "VmHWM") < before + MOST_KIB
        node.stream.sendall(whole_frame(lie)[-1:])
        assert "store_set" in error_of(worker), "the node was heard"
    wait_until(lambda: memory_kib(daemon) < before + (64 << 10), what="the memory is given back")
    assert "control connections were ended" in busy.log(0)
    goes_on(busy)


def test_what_is_too_large_for_a_stranger_is_not_even_read(busy, join):
    drops = busy.status()["control_drops"]
    with dealer(busy.listen[0]) as stranger:
        for size in (1 << 20, 3 << 20):
            stranger.send(envelope(join, b"nobody", 0, **{TO_LEADER: message(f3=message(f2=bytes(size)))}))
        for reason in ("unclaimed", "unreadable"):
            wait_until(lambda r=reason: busy.status()["control_drops"][r] == drops[r] + 1, what=f"one is {reason}")
    goes_on(busy)


# A tensor takes two bytes of a message, and a hundred of memory once it is read.
def test_the_body_of_a_message_that_no_job_awaits_is_not_read(busy, join):
    daemon = busy.daemons[0].pid
    before, unclaimed = memory_kib(daemon), busy.status()["control_drops"]["unclaimed"]
    Path(f"/proc/{daemon}/clear_refs").write_text("5")
    with dealer(busy.listen[0]) as stranger:
        for job, incarnation in ((b"nobody", 0), (b"victim", 4711)):
            stranger.send(envelope(join, job, incarnation, **{TO_LEADER: message(f3=message(f3=b"") * 900_000)}))
        wait_until(lambda: busy.status()["control_drops"]["unclaimed"] == unclaimed + 2, what="both are dropped")
    assert memory_kib(daemon, "VmHWM") < before + (48 << 10)
    goes_on(busy)


def test_a_truncated_join_is_counted_and_dropped(busy, join):
    before = counted(busy)
    with dealer(busy.listen[0]) as stranger:
        for size in range(len(join)):
            stranger.send(join[:size])
        wait_until(lambda: counted(busy) == before + len(join), what="all of them are counted")
    goes_on(busy)


def test_messages_of_the_wrong_job_or_of_a_stranger_are_counted_and_dropped(busy, join):
    before = counted(busy)
    failure = message(f13=message(f1=1, f2=b"give up"))
    attacks = [
        envelope(join, job, incarnation, **{way: failure})
        for job in (b"victim", b"nobody")
        for incarnation in (0, 1, 2**64 - 1)
        for way in (TO_LEADER, TO_NODE)
    ]
    attacks.append(join.replace(b"attack-0", b"victim-2"))
    attacks.append(envelope(join, b"victim", 0, f40=join[join.index(b"\xc2\x02") :]))  # a JOIN inside a JOIN
    with dealer(busy.listen[0]) as stranger:
        for attack in attacks:
            stranger.send(attack)
        wait_until(lambda: counted(busy) == before + len(attacks), what="all of them are counted")
    goes_on(busy)


def test_nobody_who_calls_from_outside_ends_a_job_that_waits_for_its_nodes(busy, join):
    job = b"attack-7"
    refused = message(f1=1, f2=b"give up")
    mismatched = [message(f1=999, f2=job, f40=b""), message(f1=join[1], f2=job, f23=refused)]
    joins = [
        join.replace(b"attack-0", job) + message(f40=message(f1=wrong))
        for wrong in (message(f8=4711), message(f9=b"x"))
    ]
    with Client(busy.socket(0)) as worker, dealer(busy.listen[0]) as node, dealer(busy.listen[0]) as stranger:
        worker.hello(rank=0, world=2, job=job, leader=busy.listen[0].encode())
        wait_until(lambda: job.decode() in [one["name"] for one in busy.status()["jobs"]], what="the job is there")
        before = counted(busy)
        for attack in [*mismatched, *joins]:
            stranger.send(attack)
        wait_until(lambda: counted(busy) == before + len(mismatched) + len(joins), what="all of them are counted")
        answers = [stranger.receive() for _ in range(1 + len(joins))]  # a refusal is not answered
        assert all(b"at this leader is another one" in answer for answer in answers[1:])
        node.send(join.replace(b"attack-0", job))
        assert incarnation_of(node.receive()), "it joins all the same"


def test_the_kernel_asks_after_a_peer_that_says_nothing_so_none_stays_that_is_gone(busy):
    with dealer(busy.listen[0]) as peer:
        _, port = peer.stream.getsockname()

        def seconds_until_asked() -> list[float]:
            """By the timer of the daemon's end: 02 stands for probes, of which the next comes after so many ticks."""
            rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
            timers = [row[5].split(":") for row in rows if int(row[2].split(":")[1], 16) == port]
            return [int(ticks, 16) / 100 for kind, ticks in timers if kind == "02"]

        found: list[float] = []
        wait_until(lambda: found.extend(seconds_until_asked()) or found, what="the kernel's probes")
        assert max(found) <= 31


# --- The leader of a job ---


def spoiled_joined(**fields) -> bytes:
    """JOINED with two nodes, of ranks 0 and 1, for the second of them."""
    nodes = [message(f1=b"host0", f2=b"\x00"), message(f1=b"host1", f2=b"\x01")]
    return message(f1=message(**{"f1": nodes, "f2": 1, **fields}))


@pytest.mark.parametrize(
    "number, body, field",
    [
        (1, spoiled_joined(f2=7), "joined.node"),
        (2, spoiled_joined(f1=[message(f1=b"h", f2=b"\x00\x01")] * 100), "joined"),
        (3, spoiled_joined(f1=[]), "joined.node: 1, and there are 0 nodes"),
        (5, message(f6=message(f1=0, f2=9, f3=b"x", f4=2**60)), "collective_start"),
        (6, message(f4=message(f1=0, f2=message(f6=2**63))), "launch_order"),
        (4, b"", "to_node"),
    ],
)
def test_a_leader_that_lies_ends_its_own_job_by_name(busy, join, number, body, field):
    job = b"attack-%d" % number
    with Router() as leader, Client(busy.socket(0)) as worker:
        worker.hello(rank=1, world=2, job=job, leader=leader.address.encode())
        with leader.accept() as line:
            line.receive()
            line.send(envelope(join, job, 9, **{TO_NODE: body}))
            text = error_of(worker)
    assert field in text and f"the leader at {leader.address}" in text
    goes_on(busy)


def test_what_cannot_be_read_is_dropped_also_from_a_leader(busy, join):
    with Router() as leader, Client(busy.socket(0)) as worker:
        worker.hello(rank=1, world=2, job=b"attack-8", leader=leader.address.encode())
        with leader.accept() as line:
            line.receive()
            before = counted(busy)
            for body in (b"\xff\xff\xff", spoiled_joined()[:-5]):
                line.send(envelope(join, b"attack-8", 9, **{TO_NODE: body}))
            wait_until(lambda: counted(busy) == before + 2, what="both are counted")
            line.send(envelope(join, b"attack-8", 9, **{TO_NODE: spoiled_joined(f2=7)}))
            assert "joined.node" in error_of(worker), "the job hears of the next message"
    goes_on(busy)


# --- A node of a job ---


@pytest.mark.parametrize(
    "number, body, field",
    [
        (1, message(f6=message(f1=-1.0)), "step_time.us"),
        (2, message(f9=message(f1=99)), "link_failed.link"),
        (3, message(f14=message(f1=b"\x00")), "leave.ranks"),
        (4, message(f4=message(f1=b"x", f2=message(f1=1, f2=1, f5=2**60))), "collective_ready"),
        (5, message(f3=message(f2=b"\xff")), "declare"),
        (6, message(f11=message(f1=[message(f2=2**63)] * 3)), "node_progress"),
    ],
)
def test_a_node_that_lies_ends_its_own_job_by_name(busy, join, number, body, field):
    job = b"attack-%d" % number
    with Client(busy.socket(0)) as worker, dealer(busy.listen[0]) as node:
        worker.hello(rank=0, world=2, job=job, leader=busy.listen[0].encode())
        wait_until(lambda: job.decode() in [one["name"] for one in busy.status()["jobs"]], what="the job is there")
        node.send(join.replace(b"attack-0", job))
        incarnation = incarnation_of(node.receive())
        node.send(envelope(join, job, incarnation, **{TO_LEADER: body}))
        text = error_of(worker)
        assert field in text and "node 1: " in text and "(rank 1)" in text
    goes_on(busy)


def test_a_node_that_floods_its_leader_stops_nobody(busy, join):
    with Client(busy.socket(0)) as worker, dealer(busy.listen[0]) as node:
        worker.hello(rank=0, world=2, job=b"attack-9", leader=busy.listen[0].encode())
        wait_until(lambda: "attack-9" in [one["name"] for one in busy.status()["jobs"]], what="the job is there")
        node.send(join.replace(b"attack-0", b"attack-9"))
        incarnation = incarnation_of(node.receive())
        heartbeat = envelope(join, b"attack-9", incarnation, **{TO_LEADER: message(f12=message(f2=1))})
        for _ in range(20_000):
            node.send(heartbeat)
        goes_on(busy)
        assert "attack-9" in [one["name"] for one in busy.status()["jobs"]]
