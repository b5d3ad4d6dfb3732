"""What whoever runs the tests has set for Deft or a launcher reaches nothing that tests start."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SET = {"DEFT_POLICY": "nonsense", "DEFT_RANK": "3", "OMPI_COMM_WORLD_RANK": "3", "SLURM_PROCID": "3", "RANK": "3"}


def test_settings_are_forgotten_and_the_build_is_known(tmp_path):
    program = "import json, os, under_test; print(json.dumps([str(under_test.BUILD), dict(os.environ)]))"
    environment = os.environ | SET | {"DEFT_TEST_BUILD": str(tmp_path), "PYTHONPATH": str(ROOT / "tests/process")}
    again = f"import os, subprocess, sys; subprocess.run([sys.executable, '-c', {program!r}]); {program}"
    words = [sys.executable, "-c", f"import under_test; {again}"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    for line in lines:  # a process of xdist is the child of one that has forgotten them
        build, left = json.loads(line)
        assert build == str(tmp_path)
        assert not [name for name in left if name in SET or name.startswith("DEFT_")]


def test_a_test_that_starts_a_daemon_passes_whatever_is_set():
    test = "tests/tools/test_deft.py::test_status_of_an_idle_daemon"
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test]
    done = subprocess.run(words, env=os.environ | SET, cwd=ROOT, capture_output=True, text=True)
    assert "1 passed" in done.stdout, done.stdout
