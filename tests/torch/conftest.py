import os
import sys

import pytest

sys.path.insert(0, os.path.dirname(__file__))
from launching import DAEMON, PACKAGE, Cluster, start_worker_server

sys.path.insert(0, str(PACKAGE))


@pytest.fixture(scope="session", autouse=True)
def worker_server():
    if not DAEMON.exists() or not (PACKAGE / "deft" / "libdeft.so").exists():
        pytest.fail(f"{DAEMON} or {PACKAGE} is missing: build the targets deftd and python first")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("PYTHONPATH", os.pathsep.join([str(PACKAGE), os.path.dirname(__file__)]))
        start_worker_server()


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """start(nodes, policy=...) gives a Cluster; equal ones are shared by the tests of a module."""
    clusters = {}

    def get(nodes=1, **options):
        key = (nodes, tuple(sorted(options.items())))
        if key not in clusters:
            clusters[key] = Cluster(tmp_path_factory.mktemp("cluster"), nodes, **options)
        return clusters[key]

    yield get
    for cluster in clusters.values():
        cluster.close()
