"""The fixtures of tests that run jobs of one framework: a server that forks workers, and clusters of daemons.

worker_server, start = job_fixtures(make_cluster, here, ["numpy"], {"OMP_NUM_THREADS": "1"})     # in a conftest.py
"""

import os
import sys

import pytest
from launching import DAEMON, PACKAGE, start_worker_server


def job_fixtures(cluster, folders, modules, variables, nodes=2):
    """`cluster` makes a Cluster. Workers import from `folders`, are forked with `modules` loaded, and have `variables`.

    `nodes`: how many daemons a cluster has, unless a test says it.
    """
    sys.path.insert(0, str(PACKAGE))

    @pytest.fixture(scope="session", autouse=True)
    def worker_server():
        if not DAEMON.exists() or not (PACKAGE / "deft" / "libdeft.so").exists():
            pytest.fail(f"{DAEMON} or {PACKAGE} is missing: build the targets deftd and python first")
        with pytest.MonkeyPatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            patch.setenv("PYTHONPATH", os.pathsep.join(str(folder) for folder in (PACKAGE, *folders)))
            start_worker_server(modules)

    @pytest.fixture(scope="module")
    def start(tmp_path_factory):
        """start(nodes, policy=...) gives a cluster; equal ones are shared by the tests of a module."""
        clusters = {}

        def get(nodes=nodes, **options):
            key = (nodes, tuple(sorted(options.items())))
            if key not in clusters:
                clusters[key] = cluster(tmp_path_factory.mktemp("cluster"), nodes, **options)
            return clusters[key]

        yield get
        for one in clusters.values():
            one.close()

    return worker_server, start
