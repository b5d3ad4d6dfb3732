"""The same training in PyTorch, TensorFlow and MXNet on two nodes, under every policy and codec, all at the same time.

Each framework's workers run same_training.py: two processes, which train in one session after the other.
"""

import functools
import itertools
import json
import subprocess

import numpy as np
import pytest
from cluster import BUILD, ROOT, Cluster, wait_until
from offered import CODECS, policies

HERE = ROOT / "tests/frameworks"
FRAMEWORKS = {"torch": ".venv", "tensorflow": ".venv-tensorflow", "mxnet": ".venv-mxnet"}
# An encoded matrix travels as one part. So it has the same owners in the daemons and in the emulation.
WHOLE_PARTS = {"partition_bytes": "4MB", "bucket_bytes": "4MB", "bucketing": "tensor"}
# What the owner's second encoding leaves out goes into its own residuals.
OWNERS_MATTER = ["bf16", "fp16", "int8", "int4", "int2", "efsignsgd", "onebit"]
LIBRARY = BUILD / "bench/libdeft_emulation.so"


def case(policy, codec, **options):
    # torch alone may delay updates, and then its dates are those of measurements
    options = {"max_staleness_steps": 0} | options if policy == "knapsack" else options
    name = "-".join([policy, codec.replace("/", "-"), *(["delayed"] if "plan" in options else [])])
    fused = policy in ("mergecomp", "auto") and codec in OWNERS_MATTER  # they begin with transfers of 25 MB
    return {"name": name, "codec": codec, "fused": fused, "options": {"policy": policy, **WHOLE_PARTS, **options}}


@functools.cache
def cases_of(framework):
    pairs = itertools.product(policies(), ["none", *CODECS])
    cases = [case(policy, codec) for policy, codec in pairs if (policy, codec == "none") != ("dear", False)]
    if framework == "torch":
        delayed = {"plan": "0-1@3", "max_staleness_steps": 16}
        cases += [case("knapsack", codec, **delayed) for codec in ("none", "int8", "topk/ratio=0.05")]
    return cases


def names_of(framework, *codecs):
    return [one["name"] for one in cases_of(framework) if not codecs or one["codec"] in codecs]


def start_workers(cluster, framework, folder):
    setting = {"framework": framework, "folder": str(folder), "library": str(LIBRARY), "cases": cases_of(framework)}
    file = folder / f"{framework}.json"
    file.write_text(json.dumps(setting))
    quiet = {
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        "DEFT_LOG_LEVEL": "warning",
    }
    words = [ROOT / FRAMEWORKS[framework] / "bin/python", HERE / "same_training.py", file]
    workers = []
    for rank in range(2):
        environment = cluster.environment(rank, 1, **quiet)
        pipe = subprocess.PIPE
        workers.append(subprocess.Popen(words, env=environment, stdout=pipe, stderr=pipe, text=True))
    cluster.workers += workers
    return workers


@pytest.fixture(scope="module")
def present():
    if not LIBRARY.exists():
        pytest.skip("this build has no benchmarks")
    return [name for name, folder in FRAMEWORKS.items() if (ROOT / folder / "bin/python").exists()]


@pytest.fixture(scope="module")
def trained(present, tmp_path_factory):
    """What each framework's two workers have written."""
    folder = tmp_path_factory.mktemp("trainings")
    with Cluster(2, timeout="60s") as cluster:
        workers = [worker for name in present for worker in start_workers(cluster, name, folder)]

        def all_have_begun():
            ended = [worker for worker in workers if worker.poll() is not None]
            if ended:
                cluster.finish(ended)
            return len(list(folder.glob("*.up"))) == len(workers)

        wait_until(all_have_begun, 240, "a session in each worker")
        at_once = {job["name"].partition(".")[0] for job in cluster.status()["jobs"]}
        (folder / "go").touch()
        cluster.finish(workers, seconds=300)
    found = {name: [dict(np.load(folder / f"{name}.{rank}.npz")) for rank in range(2)] for name in present}
    dates = json.loads((folder / "torch.0.dates").read_text())
    return {"at_once": at_once, "dates": dates, **found}


@pytest.fixture(params=FRAMEWORKS)
def framework(request, present):
    if request.param not in present:
        pytest.skip(f"there is no {FRAMEWORKS[request.param]}: run scripts/setup test")
    return request.param


def test_jobs_of_all_frameworks_ran_at_once_on_one_daemon(trained, present):
    assert "torch" in present
    assert trained["at_once"] == set(present)


def test_replicas_have_the_same_bits_under_every_policy_and_codec(trained, framework):
    one, other = trained[framework]
    for name in names_of(framework):
        assert np.isfinite(one[name]).all(), name
        assert np.array_equal(one[name], other[name]), name


def test_exact_policies_train_as_one_process_on_the_whole_batch(trained, framework):
    one, other = trained[framework]
    names = [name for name in names_of(framework, "none") if "delayed" not in name]
    assert len(names) == len(policies())
    for name in names:
        np.testing.assert_allclose(one[name], one["whole"], rtol=1e-4, atol=1e-6, err_msg=name)
        losses = (one[name + ".losses"] + other[name + ".losses"]) / 2
        np.testing.assert_allclose(losses, one["whole.losses"], rtol=1e-4, err_msg=name)
    assert one["whole.losses"][-1] < one["whole.losses"][0]


def test_a_job_gives_the_bits_of_an_emulation_of_its_codec_and_dates(trained, framework):
    results = trained[framework][0]
    differ = {
        name: float(np.abs(results[name] - results[name + ".expected"]).max())
        for name in names_of(framework)
        if not np.array_equal(results[name], results[name + ".expected"])
    }
    assert not differ, "largest differences to the emulation"


def test_what_changes_sums_and_dates_was_in_force(trained, framework):
    results = trained[framework][0]
    exact = results["bytescheduler-none"]
    for name in names_of(framework):
        approximate = "-none" not in name or "delayed" in name
        assert np.array_equal(results[name], exact) != approximate, name
    assert trained["dates"]["knapsack-none-delayed"] == [
        [0, 0, 1],
        [1, 2, 4],
        [1, 2, 4],
        [2, 4, 6],
        [2, 4, 6],
        [3, 5, 6],
    ]


def test_the_frameworks_agree_with_each_other(trained, present):
    for name in present:
        np.testing.assert_allclose(
            trained[name][0]["fifo-none"], trained["torch"][0]["fifo-none"], rtol=1e-3, atol=1e-5, err_msg=name
        )
