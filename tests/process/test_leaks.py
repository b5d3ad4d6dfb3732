"""A worker or a node that is killed in the middle of an operation leaves nothing behind, whatever the link: no
descriptor, thread or process, neither in daemons and servers nor in workers that go on living."""

import os
import time
from pathlib import Path

import pytest
from cluster import BUILD, MARGIN_S, TIMEOUT_S, Cluster, wait_for_line, wait_until
from held import held
from test_mpi import children
from test_parameter_servers import TIMEOUT, Servers

FAKES = BUILD / "tests/fakes"
PYTHONPATH = os.pathsep.join([str(BUILD / "python"), str(Path(__file__).parents[1] / "client")])
needs_mpi = pytest.mark.skipif(not (BUILD / "bin/deft-mpi").exists(), reason="this build has no MPI links")
needs_nccl = pytest.mark.skipif(not (FAKES / "libnccl.so.2").exists(), reason="this build has no NCCL link")
LINKS = ["gloo:lo", "ps", "tcp:lo", "gloo:lo,ps", pytest.param("mpi:lo", marks=needs_mpi)]
LINKS += [pytest.param(links, marks=needs_nccl) for links in ("nccl", "nccl,gloo:lo")]

# A worker that outlives its job: what it has open before and after is the same.
SURVIVOR = """
from held import held
def train(session, steps):
    group = session.declare("sgd", [deft.Tensor("fc.weight", deft.FLOAT32, (1 << 20,), 0)])
    for step in range(steps):
        group.ready(0, 1, step)
        group.wait(0, 1, step)
        if step == 5:
            say("training")
session.close()
until = time.monotonic() + 60
while held()[1] > 1 and time.monotonic() < until:  # Python's thread that has opened the session ends a moment later
    time.sleep(0.001)
before = held()  # with all libraries loaded
session = deft.open(job="long")
try:
    train(session, 10**9)
except deft.DeftError as error:
    say(f"ERROR {time.monotonic()} {error}")
session.close()
deadline = time.monotonic() + 60
while held() != before and time.monotonic() < deadline:
    time.sleep(0.02)
say(f"HELD {held() == before} {before} {held()}")
"""


def holds_no_more(process, descriptors: int, threads: int) -> bool:
    now = held(process.pid)
    return now[0] <= descriptors and now[1] <= threads


@pytest.mark.parametrize("links", LINKS)
@pytest.mark.parametrize("victim", ["worker", "node"])
def test_nothing_is_left_behind_by_a_peer_that_is_killed(links, victim):
    with Cluster(2, timeout=TIMEOUT) as cluster:
        servers = Servers(cluster, 1) if "ps" in links else None
        given = links if servers is None else links.replace("ps", servers.link)
        variables = {"DEFT_LINKS": given, "LD_LIBRARY_PATH": str(FAKES), "PYTHONPATH": PYTHONPATH}
        survivors = [cluster.daemons[0], *(servers.processes if servers else [])]
        before = [held(process.pid) for process in survivors]
        workers = cluster.start(SURVIVOR, **variables)
        for worker in workers:
            wait_for_line(worker, "training")
        moment = time.monotonic()
        workers[1].kill()
        if victim == "node":
            cluster.daemons[1].kill()
        _, seconds, text = wait_for_line(workers[0], "ERROR").split(" ", 2)
        assert float(seconds) - moment < TIMEOUT_S + MARGIN_S, text
        assert "rank 1" in text if victim == "worker" else "node 1" in text or "rank 1" in text, text
        counts = wait_for_line(workers[0], "HELD")
        assert counts.startswith("HELD True"), counts
        for process, count in zip(survivors, before, strict=True):
            wait_until(lambda p=process, c=count: holds_no_more(p, *c), what=f"{count} descriptors and threads")
            assert children(process.pid) == []
