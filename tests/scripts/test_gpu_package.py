"""What tests/gpu/pack carries to a machine with a GPU runs there: here without a GPU, from the package alone."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def environment() -> dict[str, str]:
    """That of a machine on which nothing of Deft is installed."""
    dropped = ("DEFT_", "PYTHONPATH", "LD_LIBRARY_PATH")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    return kept | {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}


def test_the_package_is_small_and_trains_from_where_it_was_unpacked(tmp_path):
    package = tmp_path / "deft-gpu.tar.gz"
    subprocess.run([ROOT / "tests/gpu/pack", package], check=True, capture_output=True, timeout=120)
    assert package.stat().st_size < 60 << 20
    unpacked = tmp_path / "unpacked"
    unpacked.mkdir()
    subprocess.run(["tar", "-C", unpacked, "-xzf", package], check=True)
    run = [unpacked / "tests/gpu/run", "--cpu"]  # with twenty other processes on two cores 240 s were too few for it
    result = subprocess.run(run, capture_output=True, text=True, timeout=600, env=environment())
    assert result.returncode == 0, result.stdout + result.stderr
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["ok"] * 3, result.stdout


def test_without_a_gpu_it_says_that_nothing_is_tested(tmp_path):
    hidden = {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT / "build/python")}
    words = [sys.executable, ROOT / "tests/gpu/gpu_checks.py"]
    result = subprocess.run(words, capture_output=True, text=True, timeout=60, env=environment() | hidden)
    assert result.returncode == 2
    assert "no GPU that PyTorch can use: nothing is tested" in result.stdout
