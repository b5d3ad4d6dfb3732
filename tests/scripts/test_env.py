"""scripts/env.sh finds its tree from whichever shell sources it."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("shell", ["bash", "sh"])
@pytest.mark.parametrize("places", ["", ".", "FOLDER"])
def test_the_paths_are_those_of_its_tree(tmp_path, shell, places):
    (tmp_path / "scripts").mkdir()
    places = places.replace("FOLDER", str(tmp_path))
    script = f"CDPATH={places}; . scripts/env.sh; echo $PATH; echo $PYTHONPATH"
    variables = {"PATH": os.defpath}
    done = subprocess.run([shell, "-c", script], cwd=ROOT, env=variables, capture_output=True, text=True, timeout=60)
    wanted = [f"{ROOT}/build/bin:{ROOT}/.venv/bin:{os.defpath}", f"{ROOT}/build/python"]
    assert (done.stdout.splitlines(), done.stderr) == (wanted, "")


@pytest.mark.parametrize(
    ("active", "python_of"),
    [
        ({"VIRTUAL_ENV": "/own"}, "/own/bin"),
        ({"CONDA_DEFAULT_ENV": "train", "CONDA_PREFIX": "/conda/envs/train"}, "/own/bin"),
        ({"CONDA_DEFAULT_ENV": "base", "CONDA_PREFIX": "/conda"}, f"{ROOT}/.venv/bin"),
    ],
    ids=["venv", "conda", "conda's base"],
)
def test_whoever_has_activated_an_environment_keeps_its_python(active, python_of):
    variables = {"PATH": f"/own/bin:{os.defpath}", **active}
    script = "set -eu; . scripts/env.sh; echo $PATH; . scripts/env.sh; echo $PATH"
    done = subprocess.run(["bash", "-c", script], cwd=ROOT, env=variables, capture_output=True, text=True, timeout=60)
    first, again = done.stdout.splitlines()
    assert first.split(":")[:2] == [f"{ROOT}/build/bin", python_of]
    assert again == first
