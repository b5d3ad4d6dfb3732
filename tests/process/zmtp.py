"""Enough of ZeroMQ's wire protocol (ZMTP 3.0, without encryption) to attack the control port: a dealer, and a router
for one dealer. `message` makes the protobuf of proto/control.proto from the numbers of its fields.
"""

import contextlib
import socket
import struct
from collections.abc import Iterator

import pytest

GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
MORE, LONG, COMMAND = 1, 2, 4


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def message(**fields) -> bytes:
    """`f3=7` is field 3 as a varint, `f2=b"x"` as bytes or message, `f1=0.5` as a double; a list repeats the field."""
    out = b""
    for name, values in fields.items():
        number = int(name[1:])
        for value in values if isinstance(values, list) else [values]:
            if isinstance(value, bytes):
                out += varint(number << 3 | 2) + varint(len(value)) + value
            elif isinstance(value, float):
                out += varint(number << 3 | 1) + struct.pack("<d", value)
            else:
                out += varint(number << 3) + varint(value)
    return out


class Connection:
    """One end of a ZMTP connection over a connected TCP socket."""

    def __init__(self, stream: socket.socket, kind: bytes, seconds: float):
        self.stream = stream
        self.stream.settimeout(seconds)
        self.stream.sendall(GREETING)
        self.read(64)
        ready = b"\x05READY\x0bSocket-Type" + struct.pack(">I", len(kind)) + kind
        self.stream.sendall(bytes([COMMAND, len(ready)]) + ready)
        assert self.frame()[0] & COMMAND

    def __enter__(self) -> "Connection":
        return self

    def __exit__(self, *_) -> None:
        self.stream.close()

    def read(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            piece = self.stream.recv(count - len(data))
            if not piece:
                raise EOFError("the other end has closed the connection")
            data += piece
        return data

    def frame(self) -> tuple[int, bytes]:
        flags = self.read(1)[0]
        size = struct.unpack(">Q", self.read(8))[0] if flags & LONG else self.read(1)[0]
        return flags, self.read(size)

    def send(self, *parts: bytes) -> None:
        for i, part in enumerate(parts):
            more = MORE if i + 1 < len(parts) else 0
            self.stream.sendall(bytes([more | LONG]) + struct.pack(">Q", len(part)) + part)

    def receive(self) -> bytes:
        flags, body = self.frame()
        while flags & COMMAND:
            flags, body = self.frame()
        return body


def large_frame(size: int) -> bytes:
    """One that is not the last of its message."""
    return bytes([MORE | LONG]) + struct.pack(">Q", size) + bytes(size)


def whole_frame(body: bytes) -> bytes:
    """A message of this one frame."""
    return bytes([LONG]) + struct.pack(">Q", len(body)) + body


EMPTY_FRAMES = bytes([MORE, 0]) * (64 << 10)  # each of the two bytes takes ZeroMQ 32 bytes of memory


def send_without_end(line: Connection, frames: bytes, most_bytes: int) -> None:
    """One message of more and more frames, until the other end hangs up. If its window was shut then, the kernel of
    this end may not notice, and only nothing more is taken.
    """
    line.stream.settimeout(10)
    with pytest.raises(OSError):
        for _ in range(most_bytes // len(frames)):
            line.stream.sendall(frames)


@contextlib.contextmanager
def unfinished_messages(address: str) -> Iterator[None]:
    """64 strangers. Each brings a whole message, and behind it half a megabyte of one without an end."""
    with contextlib.ExitStack() as strangers:
        for _ in range(64):
            line = strangers.enter_context(dealer(address))
            with contextlib.suppress(OSError):
                line.stream.sendall(whole_frame(b"x") + EMPTY_FRAMES * 4)
        yield


def dealer(address: str, seconds: float = 60) -> Connection:
    host, port = address.rsplit(":", 1)
    return Connection(socket.create_connection((host, int(port)), timeout=seconds), b"DEALER", seconds)


class Router:
    """Listens as the leader of a job would, for one follower at a time."""

    def __init__(self, host: str = "127.0.0.1"):
        self.listener = socket.create_server((host, 0))
        self.listener.settimeout(60)
        self.address = f"{host}:{self.listener.getsockname()[1]}"

    def __enter__(self) -> "Router":
        return self

    def __exit__(self, *_) -> None:
        self.listener.close()

    def accept(self, seconds: float = 60) -> Connection:
        return Connection(self.listener.accept()[0], b"ROUTER", seconds)
