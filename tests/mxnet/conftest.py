import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
FOLDERS = [TESTS / name for name in ("mxnet", "frameworks", "torch")]
sys.path[:0] = [str(folder) for folder in FOLDERS]
from job_fixtures import job_fixtures  # noqa: E402
from mxnet_jobs import MXNetCluster  # noqa: E402

# MXNet's engine has threads from its import on, so it is imported after the fork.
MODULES = ["pytest", "numpy", "mxnet_jobs"]
worker_server, start = job_fixtures(MXNetCluster, FOLDERS, MODULES, {"OMP_NUM_THREADS": "1"})
