"""Many at once on real daemons, with printed figures: jobs of several users, ranks of one job, large arenas.

    jobs_of_users(users=4, jobs=16)       # of each user, two workers a job; needs root
    ranks_of_a_job(daemons=4, ranks=1000) # fakes over the real protocol of the unix socket
    nodes_of_a_job(nodes=1000)            # fakes over the real control plane
    large_arenas(count=4, size=2 << 30)

Each gives a dict of figures. `pause_ms` is the longest callback of any daemon's event loop since it started: an event
waits for at most that long and one turn more.
"""

import contextlib
import os
import resource
import select
import time
from collections.abc import Callable, Iterator

import soak_worker
from cluster import Cluster, wait_until
from hostile import WELCOME, Client, memory_kib
from soak_field import ask
from soak_worker import deft, floats, tensors
from zmtp import Connection, Router, dealer, message

FIRST_UID = 61_000
GOODBYE = 9
STEPS = 20
PATIENCE_S = 30
SMALL_SIZES = (5000, 300)
TO_LEADER, TO_NODE = 40, 41  # fields of the control plane's envelope


def pauses(cluster: Cluster) -> dict:
    longest = [cluster.status(node)["reactor"]["longest_callback"] for node in range(cluster.nodes)]
    worst = max(longest, key=lambda one: one["us"])
    return {"pause_ms": round(worst["us"] / 1000, 1), "pause_of": worst["what"]}


def is_idle(cluster: Cluster) -> bool:
    status = ask(cluster.socket(0))
    sessions = sum(user["sessions"] for user in status["users"])
    return not status["jobs"] and status["memory_bytes"] == 0 and sessions == 1  # this question's


def open_limit() -> None:
    """As many descriptors as this process may have, for itself and the daemons that it starts."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


# --- Forked workers


def take_environment(environment: dict[str, str]) -> None:
    """Of a forked worker: no variable of Deft stays that is not given."""
    os.environ.clear()
    os.environ.update(environment)


class Forked:
    def __init__(self, run: Callable[[int], None], uid: int | None = None):
        self.output, out = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            status = 1
            try:
                os.close(self.output)
                if uid is not None:
                    os.setgroups([])
                    os.setresgid(uid, uid, uid)
                    os.setresuid(uid, uid, uid)
                run(out)
                status = 0
            finally:
                os._exit(status)
        os.close(out)
        self.text = b""

    def finish(self) -> str:
        """What it wrote, once it has ended."""
        with os.fdopen(self.output, "rb") as stream:
            self.text = stream.read()
        os.waitpid(self.pid, 0)
        return self.text.decode()


@contextlib.contextmanager
def open_to_all(**options: str) -> Iterator[Cluster]:
    """One daemon whose socket all users of the machine may use."""
    with Cluster(1, timeout="60s", **options) as cluster:
        os.chmod(cluster.folder.name, 0o755)
        os.chmod(cluster.socket(0), 0o666)
        yield cluster


def jobs_of_users(users: int = 4, jobs: int = 16, workers: int = 2) -> dict:
    """Every user has jobs of the same names. All begin together at a word, and train when all are there."""
    with open_to_all() as cluster:
        gates = [os.pipe(), os.pipe()]

        def run(output: int, rank: int, job: int) -> None:
            for _, opener in gates:
                os.close(opener)
            take_environment(cluster.environment(rank, workers, DEFT_JOB=f"job-{job}"))
            os.read(gates[0][0], 1)
            soak_worker.work(output, STEPS, SMALL_SIZES, lambda: os.read(gates[1][0], 1))

        def open_gate(gate: int) -> None:
            for end in gates[gate]:
                os.close(end)

        began = time.monotonic()
        places = [(user, job, rank) for user in range(users) for job in range(jobs) for rank in range(workers)]
        everyone = [
            Forked(lambda output, r=rank, j=job: run(output, r, j), FIRST_UID + user) for user, job, rank in places
        ]
        forked = time.monotonic()
        open_gate(0)
        try:
            wait_until(lambda: len(cluster.status()["jobs"]) == users * jobs, 120, "all jobs at once")
        finally:
            open_gate(1)
        ends = [one.finish() for one in everyone]
        ended = time.monotonic()
        failed = [end for end in ends if '"done"' not in end]
        assert not failed, f"{len(failed)} of {len(ends)} workers failed: {failed[:3]}"
        wait_until(lambda: is_idle(cluster), what="no job, no memory and no connection left")
        return {
            "jobs": users * jobs,
            "workers": len(places),
            "fork_s": round(forked - began, 2),
            "all_s": round(ended - forked, 2),
            "daemon_mb": memory_kib(cluster.daemons[0].pid) >> 10,
            **pauses(cluster),
        }


# --- Fake workers


def hello(fake: Client, rank: int, world: int, local: int, of: int, leader: str, **more: bytes) -> None:
    fake.hello(rank=rank, world=world, local_rank=local, local_size=of, leader=leader.encode(), version=OWN, **more)


OWN = deft.version().encode()


def ranks_of_a_job(daemons: int = 4, ranks: int = 1000, links: str = "gloo:lo") -> dict:
    open_limit()
    each = ranks // daemons
    with Cluster(daemons, timeout="120s", links=links) as cluster, contextlib.ExitStack() as stack:
        fakes = [
            stack.enter_context(Client(cluster.socket(rank // each))) for rank in range(each * daemons)
        ]  # descriptors that come with WELCOME are dropped by the kernel, because nobody asks for them
        began = time.monotonic()
        for rank, fake in enumerate(fakes):
            hello(fake, rank, len(fakes), rank % each, each, cluster.listen[0], job=b"crowd")
        for rank, fake in enumerate(fakes):
            fake.socket.settimeout(120)
            kind, body = fake.receive()
            assert kind == WELCOME, f"rank {rank}: message {kind}: {body[:300]!r}"
        started = time.monotonic()
        figures = {
            "ranks": len(fakes),
            "daemons": daemons,
            "start_s": round(started - began, 2),
            "daemon_mb": max(memory_kib(daemon.pid) for daemon in cluster.daemons) >> 10,
            **pauses(cluster),
        }
        for fake in fakes:
            fake.send(GOODBYE, b"")
        wait_until(lambda: not any(cluster.status(node)["jobs"] for node in range(daemons)), 60, "the end of the job")
        figures["end_s"] = round(time.monotonic() - started, 2)
        return figures | {"pause_ms": max(figures["pause_ms"], pauses(cluster)["pause_ms"])}


# --- Fake nodes


def fields(data: bytes) -> list[tuple[int, int | bytes]]:
    """The fields of a protobuf message, unread inside."""
    found, at = [], 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        tag = varint()
        value = varint()
        if tag & 7 == 2:
            size, value = value, data[at : at + value]
            at += size
        found.append((tag >> 3, value))
    return found


def rebuilt(parts: list[tuple[int, int | bytes]]) -> bytes:
    return b"".join(message(**{f"f{number}": value}) for number, value in parts)


class FakeNodes:
    """All nodes of a job but the leader's, each with one worker, over the real control plane."""

    def __init__(self, leader: str, join: bytes, world: int):
        self.envelope = [(number, value) for number, value in fields(join) if number != TO_LEADER]
        self.incarnation = 0
        [body] = [value for number, value in fields(join) if number == TO_LEADER]
        [(_, self.join)] = fields(body)
        self.lines = [dealer(leader, PATIENCE_S) for _ in range(1, world)]

    def close(self) -> None:
        for line in self.lines:
            line.stream.close()

    def send(self, line: Connection, body: bytes) -> None:
        head = [part for part in self.envelope if part[0] != 3] + [(3, self.incarnation)]
        line.send(rebuilt([*head, (TO_LEADER, body)]))

    def send_joins(self) -> None:
        common = [part for part in fields(self.join) if part[0] != 4]
        for rank, line in enumerate(self.lines, 1):
            self.send(line, message(f1=rebuilt([*common, (4, rank)])))

    def receive(self, line: Connection, kind: int) -> None:
        """Reads up to a message of this kind (a field of ToNode)."""
        while True:
            parts = dict(fields(line.receive()))
            self.incarnation = parts[3]
            [(found, body)] = fields(parts[TO_NODE])
            assert found != 13, f"the leader refuses: {body!r}"
            if found == kind:
                return


def template_of_join(cluster: Cluster, node: int, world: int, settings: bytes) -> bytes:
    """A JOIN as a real daemon sends it."""
    with Router() as leader, Client(cluster.socket(node)) as worker:
        hello(worker, 1, world, 0, 1, leader.address, job=b"crowd", settings=settings)
        with leader.accept() as line:
            return line.receive()


def nodes_of_a_job(nodes: int = 1000) -> dict:
    """Links are those that workers run, because the fakes can open none."""
    open_limit()
    settings = b"links=tcp:lo\n"
    with Cluster(2, timeout="120s") as cluster, Client(cluster.socket(0)) as worker:
        fakes = FakeNodes(cluster.listen[0], template_of_join(cluster, 1, nodes, settings), nodes)
        with contextlib.closing(fakes):
            began = time.monotonic()
            hello(worker, 0, nodes, 0, 1, cluster.listen[0], job=b"crowd", settings=settings)
            wait_until(lambda: ask(cluster.socket(0))["jobs"], what="the job")  # a JOIN before it is nobody's
            fakes.send_joins()
            for line in fakes.lines:
                fakes.receive(line, 1)  # JOINED
            joined = time.monotonic()
            for line in fakes.lines:
                fakes.send(line, message(f2=b""))  # LINKS_OPEN
            for line in fakes.lines:
                fakes.receive(line, 2)  # BEGIN
            worker.socket.settimeout(120)
            kind, body = worker.receive()
            assert kind == WELCOME, f"message {kind}: {body[:300]!r}"
            started = time.monotonic()
            figures = {
                "nodes": nodes,
                "join_s": round(joined - began, 2),
                "start_s": round(started - began, 2),
                "daemon_mb": memory_kib(cluster.daemons[0].pid) >> 10,
                **pauses(cluster),
            }
            worker.socket.close()  # a death, which ends the job
            wait_until(lambda: not cluster.status(0)["jobs"], 60, "the end of the job")
        return figures | {"pause_ms": max(figures["pause_ms"], pauses(cluster)["pause_ms"])}


# --- Large arenas


def large_arenas(count: int = 4, size: int = 2 << 30) -> dict:
    """Workers of one job attach an arena each, write some of it, and leave; the daemon's status is asked meanwhile."""
    with Cluster(1, timeout="120s", memory_limit=str(count * size + (256 << 20))) as cluster:

        def run(output: int, rank: int) -> None:
            take_environment(cluster.environment(rank, count, DEFT_JOB="large"))
            began = time.monotonic()
            session = deft.open()
            group = session.declare("large", tensors((size // 4,)))
            attached = time.monotonic()
            floats(group, 0)[:: 1 << 20] = rank
            session.close()
            os.write(output, f"{attached - began:.2f}".encode())

        workers = [Forked(lambda output, r=rank: run(output, r)) for rank in range(count)]
        waiting = {worker.output for worker in workers}
        slowest_s = 0.0
        while waiting := waiting - set(select.select(list(waiting), [], [], 0.005)[0]):
            asked = time.monotonic()
            ask(cluster.socket(0))
            slowest_s = max(slowest_s, time.monotonic() - asked)
        attached = [worker.finish() for worker in workers]
        assert all(attached), "a worker failed"
        wait_until(lambda: cluster.status()["memory_bytes"] == 0, 60, "the memory given back")
        return {
            "arenas": count,
            "bytes_each": size,
            "attach_s": max(map(float, attached)),
            "slowest_answer_ms": round(slowest_s * 1000, 1),
            **pauses(cluster),
        }
