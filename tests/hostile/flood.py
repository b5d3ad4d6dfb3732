"""A hostile peer that sends what hostile_messages.py makes, as fast as it is told to, until its standard input ends.

    python flood.py '{"surface": "control", "address": "127.0.0.1:4711", "seed": 1, "rate": 60000, "version": 9}'

Surfaces: `control`, `server` and `probe` are ZeroMQ ports, `session` is a unix socket, `frames` sends what is no ZeroMQ
to such a port, `greetings` and `http` are the port of a gloo or tcp link and that of /metrics, `links` finds the ports
of links that the processes `pids` open, `node` is a node of a job that lies, and `leader` a leader that does. The last
line of the output is a JSON object: how many messages and connections there were.
"""

import contextlib
import errno
import json
import os
import random
import select
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import hostile_messages as messages
from hostile import Client
from zmtp import GREETING, MORE, Router, dealer, message

BATCH = 250  # messages in one call of send
COUNTS = {"messages": 0, "connections": 0}


def told_to_end() -> bool:
    return bool(select.select([sys.stdin], [], [], 0)[0])


class Pace:
    """Keeps to a number of messages a second."""

    def __init__(self, rate: float):
        self.rate, self.due = rate, time.monotonic()

    def sent(self, count: int) -> None:
        COUNTS["messages"] += count
        self.due = max(self.due, time.monotonic() - 0.1) + count / self.rate
        time.sleep(max(0.0, self.due - time.monotonic()))


def zmtp_frame(body: bytes, more: int = 0) -> bytes:
    return bytes([more | 2]) + struct.pack(">Q", len(body)) + body


def frames_of(parts: list[bytes]) -> bytes:
    """One message of several parts."""
    return b"".join(zmtp_frame(part, MORE if place + 1 < len(parts) else 0) for place, part in enumerate(parts))


def batches(dice: random.Random, encoded: list[bytes]) -> Iterator[bytes]:
    """For ever, in an order that is never the same."""
    while True:
        yield b"".join(dice.choices(encoded, k=BATCH))


def flood_zeromq(address: str, dice: random.Random, encoded: list[bytes], rate: float, opening=b"", most=10**9) -> None:
    """`opening` begins each connection, which ends after `most` messages."""
    pace = Pace(rate)
    made = batches(dice, encoded)
    while not told_to_end():
        with contextlib.suppress(OSError, EOFError), dealer(address, 5) as line:
            COUNTS["connections"] += 1
            line.stream.setblocking(False)
            waiting, left = memoryview(opening + next(made)), most
            while left > 0 and not told_to_end():
                can_read, can_write, _ = select.select([line.stream], [line.stream], [], 0.5)
                if can_read and not line.stream.recv(1 << 20):  # the answers are of no interest
                    break
                if can_write:
                    waiting = waiting[line.stream.send(waiting) :]
                if not waiting:
                    waiting, left = memoryview(next(made)), left - BATCH
                    pace.sent(BATCH)
            line.stream.shutdown(socket.SHUT_WR)
            line.stream.settimeout(5)
            while line.stream.recv(1 << 20):  # so that all that was sent is read
                pass


def no_zeromq(dice: random.Random) -> bytes:
    """What ends, or goes wrong, before ZeroMQ sees a message."""
    ready = b"\x04\x1a\x05READY\x0bSocket-Type\0\0\0\x06DEALER"
    talk = dice.choice([b"", b"GET / HTTP/1.1\r\n\r\n", GREETING[:11], GREETING, GREETING + ready[:9]])
    return talk + dice.choice([b"", b"\xff" * 200, dice.randbytes(dice.randrange(2000))])


def flood_connections(address: str, dice: random.Random, rate: float, say: Callable[[], bytes]) -> None:
    """Connections that each say one thing; they stay open, and are closed in any order."""
    host, port = address.rsplit(":", 1)
    pace, idle = Pace(rate), []
    while not told_to_end():
        with contextlib.suppress(OSError):
            stream = socket.create_connection((host, int(port)), timeout=2)
            COUNTS["connections"] += 1
            idle.append(stream)
            stream.sendall(say())
        if len(idle) > 100:
            idle.pop(dice.randrange(len(idle))).close()
        pace.sent(1)


def flood_session(path: str, dice: random.Random, rate: float) -> None:
    """Connections that say several things; the daemon ends most of them at the first one."""
    packets = messages.session_packets(dice)
    ranks = struct.pack("=IIII", 0, 1, 0, 1)
    pace = Pace(rate)
    while not told_to_end():
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client, contextlib.suppress(OSError):
            client.settimeout(2)
            client.connect(path)
            COUNTS["connections"] += 1
            job = b"attack-%d" % COUNTS["connections"]
            said = [messages.packet(1, ranks + job + b"\0\0\0" + b"0\0")] if dice.random() < 0.05 else []
            for one in said + dice.choices(packets, k=4):
                client.send(one)
                pace.sent(1)


def listening_ports(pids: list[int]) -> list[tuple[str, int]]:
    """Where these processes, and the children of the last one, listen on 127.x.x.x."""
    inodes = set()
    with contextlib.suppress(OSError):
        pids = pids + [int(pid) for pid in Path(f"/proc/{pids[-1]}/task/{pids[-1]}/children").read_text().split()]
    for pid in pids:
        with contextlib.suppress(OSError):
            for name in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    inodes.add(os.readlink(f"/proc/{pid}/fd/{name}"))
    found = []
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        if words[3] == "0A" and f"socket:[{words[9]}]" in inodes:
            host, port = words[1].split(":")
            found.append((socket.inet_ntoa(struct.pack("<I", int(host, 16))), int(port, 16)))
    return found


def flood_links(pids: list[int], dice: random.Random) -> None:
    """Ports that were open at the beginning are those of other surfaces."""
    told = messages.greetings(dice)
    others, idle = set(listening_ports(pids)), []
    while not told_to_end():
        for place in listening_ports(pids):
            if place in others:
                continue
            for _ in range(50):
                with contextlib.suppress(OSError):
                    stream = socket.create_connection(place, timeout=0.2)
                    idle.append(stream)
                    stream.sendall(dice.choice(told))
                    COUNTS["connections"] += 1
                    COUNTS["messages"] += 1
        while len(idle) > 200:
            idle.pop(0).close()
        time.sleep(0.001)


def incarnation_of(answer: bytes) -> bytes:
    """Field 3 of an envelope as it is written, behind the version and a job's name of less than 128 bytes."""
    at = 4 + answer[3]
    end = at + 1
    while answer[end] > 127:
        end += 1
    return answer[at : end + 1]


def flood_node(path: str, address: str, join: bytes, dice: random.Random) -> None:
    """Makes a job of its own, joins it as its second node, and lies: each lie ends the job, and nothing else."""
    lies = messages.bodies_of(dice, messages.TO_LEADER)
    for number in range(10**9):
        if told_to_end():
            return
        job = b"attack-%07d" % number  # as long as the one in `join`
        with contextlib.suppress(OSError, EOFError), Client(path) as worker, dealer(address, 5) as node:
            worker.hello(rank=0, world=2, job=job, leader=address.encode())
            time.sleep(0.02)  # the job is there; if it is not, the message is one of a stranger
            node.send(join.replace(b"attack-0000000", job))
            incarnation = incarnation_of(node.receive())
            for lie in dice.choices(lies, k=20):
                node.send(message(f1=join[1], f2=job) + incarnation + message(f40=lie))
                COUNTS["messages"] += 1
            COUNTS["connections"] += 2


def flood_leader(path: str, dice: random.Random) -> None:
    """Leads jobs of which the daemon has the second node, and lies to it: each lie ends the job, and nothing else."""
    lies = messages.bodies_of(dice, messages.TO_NODE)
    for number in range(10**9):
        if told_to_end():
            return
        with contextlib.suppress(OSError, EOFError), Router() as leader, Client(path) as worker:
            job = b"misled-%07d" % number
            worker.hello(rank=1, world=2, job=job, leader=leader.address.encode())
            with leader.accept() as line:
                version = line.receive()[1]
                for lie in dice.choices(lies, k=20):
                    line.send(message(f1=version, f2=job, f3=9, f41=lie))
                    COUNTS["messages"] += 1
                worker.receive()
            COUNTS["connections"] += 2


def main() -> None:
    order = json.loads(sys.argv[1])
    dice = random.Random(order["seed"])
    surface, rate = order["surface"], order.get("rate", 1000)
    if surface == "control":
        made = [zmtp_frame(frame) for frame in messages.control_frames(dice, order["version"])]
        flood_zeromq(order["address"], dice, made, rate)
    elif surface == "server":
        # Two such peers are the nodes of one link, so that it begins and the lies behind that are heard.
        made = [zmtp_frame(first, MORE) + zmtp_frame(rest) for first, rest in messages.server_messages(dice)]
        first, rest = messages.server_hello(order["node"], b"attack")
        flood_zeromq(order["address"], dice, made, rate, zmtp_frame(first, MORE) + zmtp_frame(rest), 10 * BATCH)
    elif surface == "probe":
        made = [frames_of(parts) for parts in messages.probe_questions(dice)]
        flood_zeromq(order["address"], dice, made, rate)
    elif surface == "frames":
        flood_connections(order["address"], dice, rate, lambda: no_zeromq(dice))
    elif surface in ("greetings", "http"):
        told = messages.greetings(dice) if surface == "greetings" else messages.http_requests(dice)
        flood_connections(order["address"], dice, rate, lambda: dice.choice(told))
    elif surface == "session":
        flood_session(order["path"], dice, rate)
    elif surface == "links":
        flood_links(order["pids"], dice)
    elif surface == "node":
        flood_node(order["path"], order["address"], bytes.fromhex(order["join"]), dice)
    elif surface == "leader":
        flood_leader(order["path"], dice)
    else:
        raise SystemExit(errno.EINVAL)
    print(json.dumps({"surface": surface, **COUNTS}))


if __name__ == "__main__":
    main()
