"""Training over MPI links: daemons that mpirun started and daemons that were started one by one, alone and mixed."""

import contextlib
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from cluster import BUILD, MARGIN_S, TIMEOUT_S, Cluster, wait_for_line, wait_until
from test_parameter_servers import SUMS, TIMEOUT, Servers, run

pytestmark = pytest.mark.skipif(
    not (BUILD / "bin/deft-mpi").exists(), reason="this build has no MPI links: see deft check-build"
)


def children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    found = []
    for task in tasks:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that has just ended
            found += [int(child) for child in (task / "children").read_text().split()]
    return found


def helpers(daemon: subprocess.Popen) -> list[int]:
    """The processes deft-mpi of a daemon: servers and the MPI processes below them."""
    servers = children(daemon.pid)
    return servers + [child for server in servers for child in children(server)]


def gone(pid: int) -> bool:
    """Whether the process has ended; if nothing reaps orphans, it stays as a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.parametrize("nodes, per_node", [(2, 1), (2, 2), (3, 1)])
def test_all_ranks_get_the_bits_that_gloo_gives(nodes, per_node):
    with Cluster(nodes) as cluster:
        servers = Servers(cluster, 1)
        digests = {
            links: {output.split()[-1] for output in run(cluster, per_node, links)}
            for links in ("gloo:lo", "mpi:lo", "mpi", "gloo:lo,mpi:lo", f"gloo:lo,{servers.link},mpi:lo")
        }
        assert all(len(digest) == 1 for digest in digests.values()), digests
        assert len(set.union(*digests.values())) == 1, digests
        for daemon in cluster.daemons:
            wait_until(lambda d=daemon: children(d.pid) == [], what="the end of the helpers")


def test_a_lost_node_is_named_and_the_daemons_serve_the_next_job():
    with Cluster(3, timeout=TIMEOUT) as cluster:
        workers = cluster.start(SUMS, DEFT_LINKS="mpi:lo", STEPS="1000000")
        for worker in workers:
            wait_for_line(worker, "training")
        left = helpers(cluster.daemons[2])
        assert len(left) == 2
        moment = time.monotonic()
        cluster.daemons[2].kill()
        for worker in workers[:2]:
            _, seconds, text = wait_for_line(worker, "ERROR").split(" ", 2)
            assert "node 2" in text
            assert float(seconds) - moment < TIMEOUT_S + MARGIN_S, text
        wait_until(lambda: all(gone(pid) for pid in left), what="the end of the killed daemon's helpers")
        cluster.daemons[2].wait()
        cluster.daemons[2] = cluster.start_daemon(2)
        assert len({output.split()[-1] for output in run(cluster, 1, "mpi:lo")}) == 1


@pytest.mark.parametrize("kill", [signal.SIGKILL, signal.SIGSEGV])
def test_a_crash_of_mpi_is_the_end_of_the_link_where_another_one_is_left(kill, tmp_path):
    with Cluster(2) as cluster:
        wanted = {output.split()[-1] for output in run(cluster, 1, "gloo:lo", STEPS="40")}
        options = {"STEPS": "40", "DEFT_PARTITION_BYTES": "64KB", "GO_ON": str(tmp_path / "go-on")}
        workers = cluster.start(SUMS, DEFT_LINKS="gloo:lo,mpi:lo", DEFT_POLICY="bytescheduler", **options)
        wait_for_line(workers[0], "training")
        os.kill(helpers(cluster.daemons[1])[1], kill)
        (tmp_path / "go-on").touch()
        assert {output.split()[-1] for output in cluster.finish(workers)} == wanted
        for node in range(2):
            assert "goes on without link mpi:lo" in cluster.log(node)
        assert f"the MPI process of node 1 was ended by signal {int(kill)}" in cluster.log(1)


@pytest.mark.parametrize("kill", [signal.SIGKILL, signal.SIGSEGV])
def test_a_crash_of_mpi_ends_the_job_with_the_reason_and_not_the_daemon(kill):
    with Cluster(2, timeout="60s") as cluster:
        workers = cluster.start(SUMS, DEFT_LINKS="mpi:lo", STEPS="1000000")
        for worker in workers:
            wait_for_line(worker, "training")
        moment = time.monotonic()
        os.kill(helpers(cluster.daemons[1])[1], kill)
        for worker in workers:
            _, seconds, text = wait_for_line(worker, "ERROR").split(" ", 2)
            assert f"the MPI process of node 1 was ended by signal {int(kill)}" in text
            assert float(seconds) - moment < 40, f"noticed only by the deadline: {text}"
        assert len({output.split()[-1] for output in run(cluster, 1, "mpi:lo")}) == 1


def test_writing_to_a_node_that_has_died_does_not_end_the_own_mpi_process(tmp_path):
    with Cluster(2) as cluster:
        workers = cluster.start(SUMS, DEFT_LINKS="mpi:lo", STEPS="40", GO_ON=str(tmp_path / "go-on"))
        wait_for_line(workers[0], "training")
        os.kill(helpers(cluster.daemons[0])[1], signal.SIGPIPE)  # as the kernel does then
        (tmp_path / "go-on").touch()
        cluster.finish(workers)


def test_a_node_without_the_helper_is_named_on_every_worker(tmp_path):
    with Cluster(2, timeout="80s") as cluster:
        cluster.daemons[1].kill()
        cluster.daemons[1].wait()
        shutil.copy(BUILD / "bin/deftd", tmp_path / "deftd")
        cluster.daemons[1] = cluster.start_daemon(1, program=tmp_path / "deftd")
        for rank, worker in enumerate(cluster.start(SUMS, DEFT_LINKS="mpi:lo")):
            out, err = worker.communicate(timeout=70)  # before the deadline
            assert worker.returncode != 0
            assert f"there is no program deft-mpi in {tmp_path}" in out + err, (rank, out, err)


def test_nodes_with_different_kinds_of_links_are_told():
    with Cluster(2) as cluster:
        workers = [cluster.start_one(SUMS, rank, DEFT_LINKS=links) for rank, links in enumerate(("mpi:lo", "gloo:lo"))]
        for worker in workers:
            out, err = worker.communicate(timeout=120)
            assert worker.returncode != 0
            assert "mpi" in out + err and "gloo" in out + err


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="there is no mpirun")
def test_daemons_under_mpirun_use_mpi_links():
    with Cluster(2) as cluster:
        for node, daemon in enumerate(cluster.daemons):
            daemon.kill()
            daemon.wait()
            Path(cluster.socket(node)).unlink()
        start = (
            f"exec {BUILD}/bin/deftd --socket={cluster.folder.name}/node$OMPI_COMM_WORLD_RANK.sock --links=gloo:lo"
            f' --listen=$(echo {" ".join(cluster.listen)} | cut -d" " -f$((OMPI_COMM_WORLD_RANK + 1)))'
        )
        with open(f"{cluster.folder.name}/mpirun.log", "w") as log:
            mpirun = subprocess.Popen(
                ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2", "sh", "-c", start],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        try:
            for node in range(2):
                wait_until(lambda n=node: os.path.exists(cluster.socket(n)), what="a daemon under mpirun")
            assert len({output.split()[-1] for output in run(cluster, 1, "mpi:lo")}) == 1
        finally:
            mpirun.terminate()
            mpirun.wait(60)
