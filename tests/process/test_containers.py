"""Daemon and workers in different process namespaces, as in containers: they learn no process ids of each other."""

import signal
import subprocess
import time

import pytest
from cluster import BUILD, Cluster, wait_until
from test_faults import TIMEOUT, TRAIN, error_after, start_training

CONTAINER = ["unshare", "-Urpf", "--kill-child"]


@pytest.fixture(autouse=True)
def containers():
    if subprocess.run([*CONTAINER, "true"], capture_output=True).returncode != 0:
        pytest.skip("no process namespace can be made here")


class Contained(Cluster):
    """Either the daemon or the workers have a process namespace of their own, each."""

    def __init__(self, contained: str, **options):
        super().__init__(**options)
        self.contained, self.starts = contained, "workers"

    def prefix(self, node: int) -> list[str]:
        return CONTAINER if self.starts == self.contained else []

    def start_daemon(self, *arguments, **options) -> subprocess.Popen:
        self.starts = "daemon"
        try:
            return super().start_daemon(*arguments, **options)
        finally:
            self.starts = "workers"


@pytest.mark.parametrize("contained", ["daemon", "workers"])
def test_a_worker_trains_dies_and_is_named_across_process_namespaces(contained):
    with Contained(contained, nodes=1, timeout=TIMEOUT) as cluster:
        workers = start_training(cluster, per_node=2)
        told = cluster.status()["jobs"][0]["workers"]
        assert all((worker["pid"] == 0) == (contained == "daemon") for worker in told), told
        moment = time.monotonic()
        workers[1].kill()
        assert "rank 1 (pid" in error_after(workers[0], moment)
        wait_until(lambda: cluster.status()["memory_bytes"] == 0, what="shared memory given back")
        cluster.finish(cluster.start(TRAIN, 2, STEPS="10"))


def test_who_cannot_see_the_daemons_process_is_told_how_to_drain_it():
    with Cluster(1) as cluster:
        drain = [BUILD / "bin/deft", "drain", f"--socket={cluster.socket(0)}"]
        outside = subprocess.run([*CONTAINER, *drain], capture_output=True, text=True)
        assert outside.returncode == 1 and "runs in another process namespace" in outside.stderr
        assert "SIGUSR1" in outside.stderr and cluster.status()["takes_jobs"] is True
        cluster.daemons[0].send_signal(signal.SIGUSR1)
        wait_until(lambda: cluster.status()["takes_jobs"] is False, what="the drain")
    with Contained("daemon", nodes=1) as cluster:  # from the outside its process is seen
        drained = subprocess.run(
            [BUILD / "bin/deft", "drain", f"--socket={cluster.socket(0)}"],
            capture_output=True,
            text=True,
        )
        assert drained.returncode == 0, drained.stderr
        assert cluster.status()["takes_jobs"] is False
