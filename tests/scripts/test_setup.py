"""scripts/setup installs what is missing, or says what an administrator has to install."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ("bash", "cat", "dirname", "env", "grep", "mktemp", "rm", "sed", "tail", "tr")
FAKES = {
    "id": 'echo "$USER_ID"',
    "dpkg-query": 'for package; do :; done; case " $MISSING " in *" $package "*) ;; *) echo installed ;; esac',
    "apt-get": 'echo "$@" >>"$HOME/apt-get"',
    "apt-cache": ":",
}


@pytest.fixture
def run_setup(tmp_path):
    """Runs it on a machine whose packages, whose Python environment and whose data set are fakes; there is no sudo."""
    for folder in ("scripts", "programs", ".venv/bin", ".cache/fashion-mnist"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / ".cache/fashion-mnist/train-images-idx3-ubyte.gz").touch()
    for name in ("setup", "requirements.txt"):
        shutil.copy(ROOT / "scripts" / name, tmp_path / "scripts" / name)
    for tool in TOOLS:
        (tmp_path / "programs" / tool).symlink_to(shutil.which(tool))
    for name, text in FAKES.items():
        (tmp_path / "programs" / name).write_text(f"#!/bin/sh\n{text}\n")
    (tmp_path / ".venv/bin/python").write_text("#!/bin/sh\n")  # it has all that the requirements ask for
    for program in (*(tmp_path / "programs" / name for name in FAKES), tmp_path / ".venv/bin/python"):
        program.chmod(0o755)

    def run(user: int, missing: str) -> tuple[int, str, str]:
        variables = {
            "PATH": str(tmp_path / "programs"),
            "HOME": str(tmp_path),
            "USER_ID": str(user),
            "MISSING": missing,
        }
        command = [tmp_path / "scripts/setup"]
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60)
        log = tmp_path / "apt-get"
        return done.returncode, done.stderr, log.read_text() if log.exists() else ""

    return run


def test_root_gets_what_is_missing(run_setup):
    status, _, installed = run_setup(0, "cmake universal-ctags")
    assert status == 0
    assert installed.splitlines()[-1] == "install -y --no-install-recommends cmake universal-ctags"


def test_where_all_is_there_nothing_is_installed(run_setup):
    assert run_setup(0, "") == (0, "", "")


def test_an_ordinary_user_is_told_what_an_administrator_has_to_install(run_setup):
    status, said, installed = run_setup(1000, "cmake g++ universal-ctags")
    assert (status, installed) == (1, "")
    assert said.splitlines()[-1] == "  apt-get install g++ cmake"


def test_an_ordinary_user_builds_without_what_only_makes_it_quicker(run_setup):
    assert run_setup(1000, "universal-ctags") == (0, "", "")
