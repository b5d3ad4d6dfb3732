"""bench/lateness: the updates that it makes late are those that it says."""

import argparse
import re
import subprocess
from pathlib import Path

import pytest
import torch
from lab.dates import PLAIN, parse
from lab.lateness import Late, parts_of

PROGRAM = Path(__file__).resolve().parents[2] / "bench/lateness"
RATE = 0.125  # powers of two: sums and products are exact


def weights(case, gradients):
    """The weight after each step, from 0, with these gradients."""
    param = torch.zeros(1)
    late, seen = Late([param], parse(case), RATE), []
    for step, gradient in enumerate(gradients):
        param.grad = torch.tensor([gradient])
        late.step(step)
        seen.append(late.weights[0].item())
    return seen


def plain(gradients, momentum=0.9, factor=1.0):
    """The weight after each update of momentum SGD."""
    velocity = weight = torch.zeros(1)
    seen = []
    for gradient in gradients:
        velocity = momentum * velocity + gradient
        weight = weight - RATE * factor * velocity
        seen.append(weight.item())
    return seen


def test_nothing_late_is_momentum_sgd():
    assert weights("all:1+0", [1.0, 2.0, -4.0]) == plain([1.0, 2.0, -4.0])


def test_merged_steps_make_one_update_of_their_mean():
    first, second = plain([1.5, 6.0])
    assert weights("all:2+0", [1.0, 2.0, 4.0, 8.0, 16.0]) == [0.0, first, first, second, second]


def test_late_updates_come_as_many_steps_later():
    first, second = plain([1.0, 2.0])
    assert weights("all:1+2", [1.0, 2.0, 4.0, 8.0]) == [0.0, 0.0, first, second]
    merged = plain([1.5])[0]
    assert weights("all:2+1", [1.0, 2.0, 4.0]) == [0.0, 0.0, merged]


def test_late_updates_may_have_a_rate_and_a_momentum_of_their_own():
    assert weights("all:1+0x4m0.5", [1.0, 2.0, 4.0]) == plain([1.0, 2.0, 4.0], momentum=0.5, factor=4)


def test_looking_ahead_moves_where_gradients_are_taken_until_training_ends():
    param = torch.zeros(1)
    late = Late([param], parse("all:1+0~2"), RATE)
    param.grad = torch.tensor([1.0])
    late.step(0)
    assert param.item() == -3 * RATE  # two more updates like the last one
    late.settle()
    assert param.item() == late.weights[0].item() == -RATE


def test_before_the_step_from_which_it_is_late_it_is_plain_training():
    first, second = plain([1.0, 2.0])
    assert weights("all:2+1@2", [1.0, 2.0, 4.0, 8.0])[:4] == [first, second, second, second]
    assert weights("all:2+1@2", [1.0, 2.0, 4.0, 8.0, 0.0])[4] == plain([1.0, 2.0, 6.0])[2]


def test_the_largest_matrices_are_late_and_all_else_is_merged_as_said():
    sizes = [torch.zeros(4), torch.zeros(16), torch.zeros(8)]

    def split(case):
        return [
            ([p.numel() for p in part.params], part.case.merged, part.case.delay) for part in parts_of(sizes, case, 1)
        ]

    assert split(parse("2:3+1/5")) == [([16, 8], 3, 1), ([4], 5, 0)]
    assert split(parse("all:3+1")) == [([16, 8, 4], 3, 1), ([], 1, 0)]
    assert split(PLAIN) == [([], 1, 0), ([16, 8, 4], 1, 0)]


def test_the_program_trains_with_the_updates_of_its_cases():
    arguments = ["--seeds", "1", "--steps", "60", "--batch", "64", "0:1+0", "all:61+0"]
    shown = subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=300)
    assert shown.returncode == 0, shown.stderr
    found = {name: float(accuracy) for name, accuracy, _ in (line.split() for line in shown.stdout.splitlines()[1:])}
    assert found["0:1+0"] > 15 > found["all:61+0"]  # the other one has no update at all


@pytest.mark.parametrize(
    "case", ["x", "1:1+1@", "1:0+1", "1:1", "-1:1+1", "1:1+1~", "1:1+1x1.2.3", "1:1+1/", "1:1+1/0"]
)
def test_a_case_that_is_none_is_named(case):
    with pytest.raises(argparse.ArgumentTypeError, match=f"'{re.escape(case)}' is no case"):
        parse(case)


def test_the_program_refuses_a_case_that_is_none():
    shown = subprocess.run([PROGRAM, "--", "1:0+1"], capture_output=True, text=True, timeout=120)
    assert shown.returncode == 2 and "'1:0+1' is no case" in shown.stderr
