import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
FOLDERS = [TESTS / name for name in ("torch", "frameworks")]
sys.path[:0] = [str(folder) for folder in FOLDERS]
from job_fixtures import job_fixtures  # noqa: E402
from launching import TORCH_MODULES, Cluster  # noqa: E402

worker_server, start = job_fixtures(Cluster, FOLDERS, TORCH_MODULES, {"OMP_NUM_THREADS": "1"}, nodes=1)
