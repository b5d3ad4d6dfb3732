"""What tests of attacks share: a daemon with a job that must live through them, and clients that break the protocol."""

import contextlib
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

from cluster import Cluster, wait_until

MAGIC, VERSION = 0x54464544, 7
HELLO, WELCOME, OPERATION, ERROR, STATUS, TEXT, STORE_SET, WAKE = 1, 2, 8, 10, 11, 12, 15, 21
PATIENCE_S = 60

VICTIM = """
group = session.declare("sgd", [deft.Tensor("w", deft.FLOAT32, (1 << 16,), 0)])
go_on, step, last = os.environ["GO_ON"], 0, False
progress = os.open(f"{go_on}.{rank}", os.O_CREAT | os.O_WRONLY)
while not last:
    floats = vector(group, 0)
    floats[:] = rank + step
    floats[0] = rank == 0 and not os.path.exists(go_on)  # rank 0 decides, so that all end with the same step
    group.ready(0, 1, step)
    group.wait(0, 1, step)
    assert (floats[1:] == sum(r + step for r in range(size))).all(), "a wrong sum"
    last = floats[0] != 0
    step += 1
    os.pwrite(progress, b"%20d" % step, 0)
session.close()
say("done")
"""


class Client:
    """A client that knows the protocol and does not keep to it."""

    def __init__(self, path: str):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(PATIENCE_S)
        self.socket.connect(path)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_) -> None:
        self.socket.close()

    def send(self, kind: int, body: bytes) -> None:
        self.socket.send(struct.pack("=IIII", MAGIC, kind, 16 + len(body), VERSION) + body)

    def hello(self, rank=0, world=1, local_rank=0, local_size=1, job=b"mine", leader=b"", settings=b"", version=b"0"):
        texts = b"".join(text + b"\0" for text in (job, leader, settings, version))
        self.send(HELLO, struct.pack("=IIII", rank, world, local_rank, local_size) + texts)

    def receive(self) -> tuple[int, bytes]:
        packet = self.socket.recv(65536)
        return (struct.unpack_from("=I", packet, 4)[0], packet[16:]) if packet else (0, b"")

    def refusal(self) -> str:
        kind, body = self.receive()
        assert kind == ERROR, f"message {kind} came in place of an error"
        assert self.receive() == (0, b""), "the daemon keeps a client that it refused"
        return body[16:].split(b"\0")[0].decode()


def memory_kib(pid: int, field: str = "VmRSS") -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field + ":"))


@contextlib.contextmanager
def busy_daemon(folder: Path) -> Iterator[Cluster]:
    """A daemon whose job `victim` of two workers goes on until the end; then it ends well, or this fails."""
    go_on = folder / "go-on"
    go_on.touch()
    with Cluster(1) as cluster:
        workers = cluster.start(VICTIM, 2, GO_ON=str(go_on), DEFT_JOB="victim")
        cluster.victims = [Path(f"{go_on}.{rank}") for rank in range(2)]
        wait_until(lambda: all(path.exists() for path in cluster.victims), what="the job has begun")
        goes_on(cluster)
        yield cluster
        go_on.unlink()
        outputs = cluster.finish(workers)
        assert all("done" in output for output in outputs)


def goes_on(cluster: Cluster) -> None:
    """Both workers of the job `victim` take steps that began after this call."""
    before = _steps(cluster)
    wait_until(lambda: min(_steps(cluster)) >= max(before) + 2, what="the job goes on")


def _steps(cluster: Cluster) -> list[int]:
    """How many each of its workers has made. They tell by files: a pipe that nobody reads fills, and stops them."""
    return [int(path.read_text() or 0) for path in cluster.victims]
