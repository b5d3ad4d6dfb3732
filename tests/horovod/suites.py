"""Runs Horovod's own tests, unchanged, against Deft. Each test is a job of two ranks on two daemons.

    scripts/horovod_suites [--framework torch|tensorflow|mxnet] [--sources FOLDER] [--only WORD] [--verbose]

The tests are those of Horovod's source distribution 0.20.2, the newest one that contains any; pip downloads it. With
--sources they are those of a checkout of Horovod. tests/horovod/known.json says which tests of 0.20.2 fail, and why. It
ends with 1 if another one fails, or if one of those passes.
"""

import argparse
import ast
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

HERE = Path(__file__).resolve().parent
TESTS = HERE.parent
FOLDERS = [HERE, HERE / "shim", *(TESTS / name for name in ("torch", "tensorflow", "mxnet", "frameworks"))]
sys.path[:0] = [str(folder) for folder in FOLDERS]
import launching  # noqa: E402

VERSION = "0.20.2"
FILES = {
    "torch": ["test_torch.py", "test_adasum_pytorch.py"],
    "tensorflow": ["test_tensorflow.py", "test_adasum_tensorflow.py", "test_tensorflow2_keras.py"],
    "mxnet": ["test_mxnet.py"],
}
SKIPPED_FOR_GPU = ("No GPUs available", "MPI, GPU or NCCL not available", "no gpu detected")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--framework", choices=sorted(FILES), default="torch")
    parser.add_argument("--sources", type=Path)
    parser.add_argument("--only", default="", help="only tests whose name has this word")
    parser.add_argument("--verbose", action="store_true", help="the tests that pass, too")
    return parser.parse_args()


def downloaded():
    """The folder of Horovod's sources."""
    folder = launching.BUILD / "horovod"
    sources = folder / f"horovod-{VERSION}"
    if not sources.exists():
        folder.mkdir(parents=True, exist_ok=True)
        options = ["--quiet", "--no-deps", "--no-binary", ":all:", "--dest", str(folder)]
        subprocess.run([sys.executable, "-m", "pip", "download", *options, f"horovod=={VERSION}"], check=True)
        shutil.unpack_archive(f"{sources}.tar.gz", folder)
    return sources


def find_file(sources, name):
    """Where a version of Horovod has this file of tests."""
    found = [sources / folder / name for folder in ("test", "test/parallel") if (sources / folder / name).exists()]
    if not found:
        sys.exit(f"horovod_suites: {sources} has no test/{name} and no test/parallel/{name}")
    return found[0]


def cases_of(file):
    """(class, method) of each test."""
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.ClassDef):
            for part in node.body:
                if isinstance(part, ast.FunctionDef) and part.name.startswith("test_"):
                    yield node.name, part.name


def make_cluster(framework, folder):
    os.environ["PYTHONPATH"] = os.pathsep.join(str(path) for path in (launching.PACKAGE, *FOLDERS))
    sys.path.insert(0, str(launching.PACKAGE))
    made, modules = _of_framework(framework)
    launching.start_worker_server([*modules, "cases"])
    launching.JOB_SECONDS = 180
    return made(folder, 2, timeout="60s")


def _of_framework(framework):
    """The class of clusters, and what their workers import before they are forked."""
    if framework == "tensorflow":
        from tensorflow_jobs import TensorFlowCluster

        os.environ.update({"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""})
        return TensorFlowCluster, ("tensorflow", "keras", "deft.tensorflow.keras", "tensorflow_jobs")
    if framework == "mxnet":
        from mxnet_jobs import MXNetCluster

        os.environ["OMP_NUM_THREADS"] = "1"
        return MXNetCluster, ("mxnet_jobs",)
    return launching.Cluster, launching.TORCH_MODULES


def outcome_of(cluster, framework, file, case):
    """(passed, failed or skipped; why), over both ranks."""
    from cases import run_case

    try:
        outcomes = cluster.run(run_case, framework, str(file), *case)
    except launching.WorkerFailed as error:
        return "failed", next((text for text in error.errors if text is not None), str(error))
    for wanted in ("failed", "skipped"):
        found = [outcome for outcome in outcomes if outcome[0] == wanted]
        if found:
            return min(found, key=lambda outcome: "has ended" in outcome[1])  # not what the other rank's failure caused
    return "passed", ""


def main():
    arguments = parse_arguments()
    sources = arguments.sources or downloaded()
    known = {} if arguments.sources else json.loads((HERE / "known.json").read_text())
    counts, wrong = Counter(), []
    with tempfile.TemporaryDirectory() as folder:
        cluster = make_cluster(arguments.framework, folder)
        for name in FILES[arguments.framework]:
            file = find_file(sources, name)
            for case in cases_of(file):
                full = ".".join((file.stem, *case))
                if arguments.only not in full:
                    continue
                outcome, why = outcome_of(cluster, arguments.framework, file, case)
                if outcome == "skipped" and why in SKIPPED_FOR_GPU:
                    outcome = "needs a GPU"
                counts[outcome] += 1
                reason = known.get(full)
                if (outcome == "failed") != (reason is not None):
                    wrong.append(full)
                if outcome != "passed" or arguments.verbose:
                    print(f"{outcome}: {full}: {why}" + (f" [{reason}]" if reason else ""), flush=True)
        cluster.close()
    print(", ".join(f"{counts[outcome]} {outcome}" for outcome in ("passed", "failed", "needs a GPU", "skipped")))
    if wrong and not arguments.sources:
        print(f"not as tests/horovod/known.json says: {', '.join(wrong)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
