import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
FOLDERS = [TESTS / name for name in ("tensorflow", "frameworks", "torch")]
sys.path[:0] = [str(folder) for folder in FOLDERS]
from job_fixtures import job_fixtures  # noqa: E402
from tensorflow_jobs import TensorFlowCluster  # noqa: E402

MODULES = ["pytest", "tensorflow", "keras", "deft.tensorflow.keras", "tensorflow_jobs"]
VARIABLES = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
worker_server, start = job_fixtures(TensorFlowCluster, FOLDERS, MODULES, VARIABLES)
