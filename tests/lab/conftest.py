import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))
from lab_commands import run_compare


@pytest.fixture(scope="session")
def emulated():
    """Skips if the system gives no emulated nodes."""
    done = run_compare("--nics", "1", "--lab-shell", "true")
    if "No emulated nodes" in done.stderr:
        pytest.skip(done.stderr.splitlines()[0])
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="session")
def fashion_mnist():
    from lab import data

    try:
        return data.find()
    except data.MissingData as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def fortunes():
    from lab import data, texts

    try:
        return texts.find()
    except data.MissingData as missing:
        pytest.skip(str(missing))
