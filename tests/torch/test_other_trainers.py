"""Accelerate, the Trainer of transformers and Lightning over Deft. `scripts/setup test` installs these packages."""

import importlib.util
from pathlib import Path

import pytest
from launching import SCRIPT_MODULES, run_ranks

EXAMPLES = Path(__file__).resolve().parents[2] / "examples/torch"
SCRIPTS = {
    "accelerate": "accelerate_ddp.py",
    "transformers": "hugging_face_trainer.py",
    "lightning": "lightning_ddp.py",
}
INSTALLED = [package for package in SCRIPTS if importlib.util.find_spec(package)]
ON_DEMAND = {
    "transformers": "transformers.trainer",
    "lightning": "lightning.pytorch.strategies",
}  # modules that the package imports when they are asked for
MODULES = (*SCRIPT_MODULES, *(ON_DEMAND.get(package, package) for package in INSTALLED))


@pytest.mark.parametrize("package", SCRIPTS)
def test_the_example_trains_over_deft(start, package):
    if package not in INSTALLED:
        pytest.skip(f"{package} is not installed: run scripts/setup test")
    cluster = start(2, policy="bytescheduler")
    environments = cluster.torchrun_environments()
    for one in environments:  # Lightning knows torchrun by the first
        one.update({"TORCHELASTIC_RUN_ID": "test", "HF_HUB_OFFLINE": "1"})
    outcomes = run_ranks([EXAMPLES / SCRIPTS[package]], environments, MODULES)
    assert [status for status, _ in outcomes] == [0, 0], outcomes
    assert "backend deft, " in outcomes[0][1] and "replicas equal: True" in outcomes[0][1], outcomes[0][1]
    assert f"[job{cluster.jobs}] group 'ddp.0'" in (cluster.folder / "daemon0.log").read_text()
