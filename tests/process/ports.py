"""Ports for programs that a test starts. No two tests get the same one, also if they run at the same time.

The kernel gives ports of its range (ip_local_port_range) to everybody who asks for any one. So a port of that range
that was free a moment ago may be taken when a daemon begins to listen. The ports here are below it. They are given out
one after the other, by a counter in a file that all test processes of this user share.
"""

import fcntl
import os
import socket

FIRST, LAST = 12_000, 28_000  # Deft's own ports by default are above
EACH = 2  # the port behind one that was given out is nobody's either
COUNTER = f"/tmp/deft-test-ports-{os.getuid()}"


def next_port() -> int:
    with os.fdopen(os.open(COUNTER, os.O_RDWR | os.O_CREAT, 0o600), "r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        text = file.read()
        number = int(text) if text.isdigit() else os.getpid()
        file.seek(0)
        file.truncate()
        file.write(str(number + 1))
    return FIRST + EACH * number % (LAST - FIRST)


def free_port(address: str = "127.0.0.1") -> int:
    """A port of this address on which nobody listens."""
    while True:
        port = next_port()
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a connection of the past is no obstacle
            try:
                probe.bind((address, port))
            except OSError:
                continue
            return port
