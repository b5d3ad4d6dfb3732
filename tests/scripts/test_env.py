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
