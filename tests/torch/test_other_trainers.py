"""Accelerate, the Trainer of transformers and Lightning over Deft. `scripts/setup test` installs these packages."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from launching import PACKAGE

HERE = Path(__file__).resolve()
EXAMPLES = HERE.parents[2] / "examples/torch"
SCRIPTS = {
    "accelerate": "accelerate_ddp.py",
    "transformers": "hugging_face_trainer.py",
    "lightning": "lightning_ddp.py",
}
MODULES = {
    "transformers": "transformers.trainer",
    "lightning": "lightning.pytorch.strategies",
}  # imported when asked for
SECONDS = 400


@pytest.fixture(scope="module")
def trained(start):
    """What each rank of each example gave, (status, output), and how its job is called; by package."""
    cluster = start(2, policy="bytescheduler")
    packages = [package for package in SCRIPTS if importlib.util.find_spec(package)]
    jobs, names = [], []
    for package in packages:
        environments = cluster.torchrun_environments()
        for one in environments:  # Lightning knows torchrun by the first
            one.update({"TORCHELASTIC_RUN_ID": "test", "HF_HUB_OFFLINE": "1"})
        jobs.append([str(EXAMPLES / SCRIPTS[package]), environments])
        names.append(f"job{cluster.jobs}")
    command = [sys.executable, HERE.with_name("forked_ranks.py"), "deft.torch", "torch._dynamo"]
    command += [MODULES.get(package, package) for package in packages]
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": str(PACKAGE)},
        input=json.dumps(jobs),
        stdout=subprocess.PIPE,
        text=True,
        timeout=SECONDS,
        check=True,
    )
    log = (cluster.folder / "daemon0.log").read_text()
    return {
        package: (outcomes, log, name)
        for package, outcomes, name in zip(packages, json.loads(done.stdout), names, strict=True)
    }


@pytest.mark.parametrize("package", SCRIPTS)
def test_the_example_trains_over_deft(trained, package):
    if package not in trained:
        pytest.skip(f"{package} is not installed: run scripts/setup test")
    outcomes, log, name = trained[package]
    assert [status for status, _ in outcomes] == [0, 0], outcomes
    assert "backend deft, " in outcomes[0][1] and "replicas equal: True" in outcomes[0][1], outcomes[0][1]
    assert f"[{name}] group 'ddp.0'" in log
