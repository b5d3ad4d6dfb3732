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
from pathlib import Path

from cluster import Cluster

EVERY_PROTOCOL = 3  # ETH_P_ALL
ENOUGH = 3 * 500_000 * 4  # bytes of all that passes
# What the watcher is too slow for is dropped. So the job goes on until it has seen enough; rank 0 tells the other.
SUMS = """
import hashlib
n = 500_000
group = session.declare("sgd", [deft.Tensor("a", deft.FLOAT32, (n,), 0), deft.Tensor("last", deft.FLOAT32, (1,), 1)])
digest = hashlib.sha256()
step, last = 0, False
while not last:
    gradient = vector(group, 0)[:n]
    gradient[:] = np.random.default_rng((step, rank)).standard_normal(n).astype(np.float32)
    gradient[1000 : n // 2] = 1 + rank
    gradient[n // 2 + 1000 :] = 1 + rank
    vector(group, 1)[:] = rank == 0 and os.path.exists(os.environ["SEEN"])
    group.ready(0, 2, step)
    group.wait(0, 2, step)
    if step < 3:
        digest.update(gradient.tobytes())
    step += 1
    last = step >= 3 and vector(group, 1)[0] > 0
session.close()
say(digest.hexdigest())
"""
# What each rank sends, and what the sums are.
PATTERNS = [struct.pack("<f", value) * 8 for value in (1.0, 2.0, 3.0)]


class Watch:
    """`seen` is made once enough has passed."""

    def __init__(self, seen: Path):
        self.seen = seen
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
            if self.bytes - len(packet) <= ENOUGH < self.bytes:
                self.seen.touch()

    def end(self):
        self.done.set()
        self.thread.join()


def main():
    case = json.loads(sys.argv[1])
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    with Cluster(2, links=case["links"], policy="fifo", encrypt_gradients=case["encrypt"]) as cluster:
        seen = Path(cluster.folder.name, "seen")
        watch = Watch(seen)
        try:
            outputs = cluster.finish(cluster.start(SUMS, SEEN=str(seen)))
        finally:
            watch.end()
    print(json.dumps({"outputs": outputs, "bytes": watch.bytes, "readable": watch.readable}))


if __name__ == "__main__":
    main()
