"""Two daemons on a loopback of their own, and somebody who reads all its packets; for test_encryption.py.

    unshare -Urn python wire_watch.py '{"links": "gloo:lo", "encrypt": "on"}'

Prints one JSON object: what the workers printed, how many bytes passed, and how many packets had readable gradients.
"""

import json
import socket
import struct
import subprocess
import sys
import threading

from cluster import Cluster

EVERY_PROTOCOL = 3  # ETH_P_ALL
SUMS = """
import hashlib
n = 500_000
group = session.declare("sgd", [deft.Tensor("a", deft.FLOAT32, (n,), 0)])
digest = hashlib.sha256()
for step in range(3):
    gradient = vector(group, 0)[:n]
    gradient[:] = np.random.default_rng((step, rank)).standard_normal(n).astype(np.float32)
    gradient[1000 : n // 2] = 1 + rank
    gradient[n // 2 + 1000 :] = 1 + rank
    group.ready(0, 1, step)
    group.wait(0, 1, step)
    digest.update(gradient.tobytes())
session.close()
say(digest.hexdigest())
"""
# What each rank sends, and what the sums are.
PATTERNS = [struct.pack("<f", value) * 8 for value in (1.0, 2.0, 3.0)]


class Watch:
    def __init__(self):
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(EVERY_PROTOCOL))
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 26)
        self.socket.bind(("lo", 0))
        self.socket.settimeout(0.1)
        self.bytes = self.readable = 0
        self.done = threading.Event()
        self.thread = threading.Thread(target=self.read)
        self.thread.start()

    def read(self):
        while True:
            try:
                packet = self.socket.recv(1 << 17)
            except TimeoutError:
                if self.done.is_set():
                    return
                continue
            self.bytes += len(packet)
            self.readable += any(pattern in packet for pattern in PATTERNS)

    def end(self):
        self.done.set()
        self.thread.join()


def main():
    case = json.loads(sys.argv[1])
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    watch = Watch()
    try:
        with Cluster(2, links=case["links"], policy="fifo", encrypt_gradients=case["encrypt"]) as cluster:
            outputs = cluster.finish(cluster.start(SUMS))
    finally:
        watch.end()
    print(json.dumps({"outputs": outputs, "bytes": watch.bytes, "readable": watch.readable}))


if __name__ == "__main__":
    main()
