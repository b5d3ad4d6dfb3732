"""scripts/quickstart passes on what it is given, and nothing that contradicts it."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def quickstart(tmp_path):
    """Gives the words with which it calls bench/compare; what installs and builds does nothing here."""
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts/quickstart", tmp_path / "scripts/quickstart")
    (tmp_path / "scripts/env.sh").touch()
    python = tmp_path / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\nprintf "%s\\n" "$@" >words\n')
    (tmp_path / "scripts/build").write_text('#!/bin/sh\nprintf "%s\\n" "$@" >targets\n')
    for program in (tmp_path / "scripts/setup", tmp_path / "scripts/build", python):
        program.exists() or program.write_text("#!/bin/sh\n")
        program.chmod(0o755)

    def run(*given: str) -> list[str]:
        done = subprocess.run([tmp_path / "scripts/quickstart", *given], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return (tmp_path / "words").read_text().splitlines()

    return run


def test_it_measures_accuracy_of_five_schemes(quickstart):
    words = quickstart("--coverage", "2")
    assert words[0] == "bench/compare" and words[-2:] == ["--coverage", "2"]
    assert "--accuracy" in words
    assert words[words.index("--schemes") + 1] == "compute,ddp,fifo,bytescheduler,knapsack"


@pytest.mark.parametrize(
    ("given", "left_out"),
    [
        (["--accelerator"], ["--accuracy"]),
        (["--predict"], ["--accuracy"]),
        (["--framework", "mxnet"], ["--schemes"]),
        (["--framework=mxnet", "--predict"], ["--schemes", "--accuracy"]),
        (["--nodes", "1"], ["--coverage"]),
        (["--rate", "1gbit"], ["--coverage"]),
    ],
)
def test_it_leaves_out_what_does_not_go_with_what_it_is_given(quickstart, given, left_out):
    words = quickstart(*given)
    assert words[-len(given) :] == given
    assert not set(left_out) & set(words)


def test_it_builds_a_new_tree_in_batches_and_leaves_another_as_it_is(quickstart, tmp_path):
    quickstart()
    targets = ["deftd", "deft_tool", "deftrun", "python"]
    assert (tmp_path / "targets").read_text().split() == ["-DDEFT_UNITY=ON", *targets]
    (tmp_path / "build").mkdir()
    (tmp_path / "build/build.ninja").touch()
    quickstart()
    assert (tmp_path / "targets").read_text().split() == targets
