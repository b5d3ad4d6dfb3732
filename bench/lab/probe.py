"""One end of a plain TCP transfer: `receive ADDRESS` prints the bytes a second that `send ADDRESS BYTES` gets."""

import socket
import sys
import time

PORT = 29590


def receive(address: str) -> None:
    server = socket.create_server((address, PORT))
    print("listening", flush=True)
    connection, _ = server.accept()
    buffer = bytearray(1 << 18)
    total = connection.recv_into(buffer)
    start, last = time.monotonic(), 0.0
    counted = 0
    while got := connection.recv_into(buffer):
        counted += got
        last = time.monotonic()
    print(counted / (last - start) if total and counted else 0, flush=True)


def send(address: str, count: int) -> None:
    with socket.create_connection((address, PORT)) as connection:
        connection.sendall(bytes(count))


if sys.argv[1] == "receive":
    receive(sys.argv[2])
else:
    send(sys.argv[2], int(sys.argv[3]))
