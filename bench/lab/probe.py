"""One end of a plain TCP transfer: `receive ADDRESS` prints the bytes a second that `send ADDRESS BYTES` gets.

The two ends may be started in any order: the sender waits for the receiver. On a busy machine the figure may be too
low, and never too high: bytes that came before the clock was read do not count.
"""

import array
import fcntl
import socket
import sys
import termios
import time

PORT = 29590
PATIENCE_S = 30


def receive(address: str) -> None:
    server = socket.create_server((address, PORT))
    print("listening", flush=True)
    connection, _ = server.accept()
    buffer = bytearray(1 << 18)
    total = connection.recv_into(buffer)
    start, last = time.monotonic(), 0.0
    counted = -waiting_bytes(connection)
    while got := connection.recv_into(buffer):
        counted += got
        last = time.monotonic()
    print(counted / (last - start) if total and counted > 0 else 0, flush=True)


def waiting_bytes(connection: socket.socket) -> int:
    count = array.array("i", [0])
    fcntl.ioctl(connection, termios.FIONREAD, count)
    return count[0]


def connect(address: str) -> socket.socket:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return socket.create_connection((address, PORT))
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def send(address: str, count: int) -> None:
    with connect(address) as connection:
        connection.sendall(bytes(count))


if sys.argv[1] == "receive":
    receive(sys.argv[2])
else:
    send(sys.argv[2], int(sys.argv[3]))
