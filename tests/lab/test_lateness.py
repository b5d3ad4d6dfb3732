"""bench/lateness: the updates that it makes late are those that it says."""

import subprocess
from pathlib import Path

import pytest

PROGRAM = Path(__file__).resolve().parents[2] / "bench/lateness"


def accuracies(*arguments):
    shown = subprocess.run([PROGRAM, "--seeds", "1", *arguments], capture_output=True, text=True, timeout=120)
    assert shown.returncode == 0, shown.stderr
    rows = (line.split() for line in shown.stdout.splitlines()[1:])
    return {row[0]: row[1] for row in rows}


def test_nothing_late_is_plain_training_however_it_is_said():
    found = accuracies("--steps", "50", "0:1+0", "1:1+0", "all:1+0", "all:60+0")
    assert found["0:1+0"] == found["1:1+0"] == found["all:1+0"]
    assert found["all:60+0"] != found["0:1+0"]  # no update at all in 50 steps


def test_late_updates_may_have_a_momentum_of_their_own():
    found = accuracies("--steps", "40", "--learning-rate", "0.1", "all:1+0", "all:1+0m0.9", "all:1+0m0.5")
    assert found["all:1+0"] == found["all:1+0m0.9"] != found["all:1+0m0.5"]


def test_looking_ahead_moves_where_gradients_are_taken():
    found = accuracies("--steps", "60", "--learning-rate", "0.1", "all:2+0", "all:2+0~0", "all:2+0~1")
    assert found["all:2+0"] == found["all:2+0~0"] != found["all:2+0~1"]


def test_before_the_step_from_which_it_is_late_it_is_plain_training():
    found = accuracies("--steps", "50", "0:1+0", "all:60+0@50", "all:60+0@25")
    assert found["0:1+0"] == found["all:60+0@50"] != found["all:60+0@25"]


@pytest.mark.parametrize("case", ["x", "1:1+1@", "1:0+1", "1:1", "-1:1+1", "1:1+1~", "1:1+1x1.2.3"])
def test_a_case_that_is_none_is_named(case):
    shown = subprocess.run([PROGRAM, "--", case], capture_output=True, text=True, timeout=60)
    assert shown.returncode == 2 and f"'{case}' is no case" in shown.stderr
