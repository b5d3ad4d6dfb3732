import os
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "torch")]
from launching import DAEMON, PACKAGE, start_worker_server  # noqa: E402

sys.path.insert(0, str(PACKAGE))
from tensorflow_jobs import TensorFlowCluster  # noqa: E402


@pytest.fixture(scope="session", autouse=True)
def worker_server():
    if not DAEMON.exists() or not (PACKAGE / "deft" / "libdeft.so").exists():
        pytest.fail(f"{DAEMON} or {PACKAGE} is missing: build the targets deftd and python first")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        patch.setenv("PYTHONPATH", os.pathsep.join([str(PACKAGE), str(HERE), str(HERE.parent / "torch")]))
        start_worker_server(["pytest", "tensorflow", "keras", "deft.tensorflow.keras", "tensorflow_jobs"])


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """start(nodes, policy=...) gives a cluster; equal ones are shared by the tests of a module."""
    clusters = {}

    def get(nodes=2, **options):
        key = (nodes, tuple(sorted(options.items())))
        if key not in clusters:
            clusters[key] = TensorFlowCluster(tmp_path_factory.mktemp("cluster"), nodes, **options)
        return clusters[key]

    yield get
    for cluster in clusters.values():
        cluster.close()
