"""Whole scripts, as a launcher runs them."""

import gzip
import re
from pathlib import Path

import numpy as np
import pytest

HOROVOD_SCRIPT = Path(__file__).with_name("horovod_script.py")
EXAMPLE = Path(__file__).resolve().parents[2] / "examples/torch/fashion_mnist.py"


@pytest.mark.parametrize(("policy", "arguments"), [("bytescheduler", []), ("fifo", ["--fp16-allreduce"])])
def test_a_horovod_script_runs_after_changing_its_import(start, policy, arguments):
    results = start(2, policy=policy).run_script(HOROVOD_SCRIPT, *arguments)
    assert [status for status, _ in results] == [0, 0], results
    reached = [float(found) for found in re.findall(r"accuracy ([\d.]+)%", results[0][1])]
    assert len(reached) == 3 and reached[-1] > 95, results[0][1]
    assert "accuracy" not in results[1][1]


FAILING = """
import deft.torch as hvd, torch, sys
hvd.init()
model = torch.nn.Linear(3, 3)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
for step in range(1000):
    if step == 3 and hvd.rank() == 1:
        {how}
    optimizer.zero_grad()
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize("how", ["raise ValueError('the cause')", "sys.exit(3)"])
def test_a_rank_that_ends_early_ends_the_others_with_its_name(start, tmp_path, how):
    script = tmp_path / "failing.py"
    script.write_text(FAILING.format(how=how))
    (zero, output), (one, _) = start(2, timeout="60s").run_script(script)
    assert zero == 1 and "rank 1" in output, output
    assert one == {"r": 1, "s": 3}[how[0]]


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Fashion-MNIST's files with few pictures."""
    folder = tmp_path_factory.mktemp("pictures")
    chance = np.random.default_rng(3)
    for part, count in (("train", 64), ("t10k", 20)):
        images, labels = chance.integers(256, size=(count, 28, 28)), chance.integers(10, size=count)
        for kind, header, numbers in (("images-idx3", 16, images), ("labels-idx1", 8, labels)):
            data = bytes(header) + numbers.astype(np.uint8).tobytes()
            (folder / f"{part}-{kind}-ubyte.gz").write_bytes(gzip.compress(data, 1))
    return folder


def test_the_example_trains_and_tests_its_model(start, pictures):
    arguments = ["--data", pictures, "--epochs", "2", "--steps", "2", "--batch", "8"]
    results = start(2, policy="bytescheduler").run_script(EXAMPLE, *map(str, arguments))
    assert [status for status, _ in results] == [0, 0], results
    steps = re.findall(r"epoch (\d), step 2/2: loss ([\d.]+),", results[0][1])
    assert [epoch for epoch, _ in steps] == ["1", "2"], results[0][1]
    assert all(1.8 < float(loss) < 2.8 for _, loss in steps), results[0][1]  # it begins at log(10)
    (accuracy,) = re.findall(r"test accuracy ([\d.]+) %", results[0][1])
    assert float(accuracy) in [5.0 * right for right in range(21)], results[0][1]  # of 20 pictures
    assert results[1][1] == "", "only rank 0 speaks"


ENDING = """
import atexit, hashlib, sys, torch
torch.manual_seed(1)
model = torch.nn.Linear(3, 3)
def digest():
    return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
atexit.register(lambda: print("ended with", digest()))  # registered before Deft's own: it runs after that
import deft.torch as hvd
hvd.init()
if sys.argv[1] == "nothing" and hvd.rank() == 1:  # a notebook, in which a cell has failed before
    sys.ps1, sys.last_type = "In : ", ValueError
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
for step in range(6):
    optimizer.zero_grad()
    model(torch.full((2, 3), 1.0 + hvd.rank() + step)).square().sum().mul(1e-3).backward()
    optimizer.step()
print("left with", digest())
if sys.argv[1] == "flush":
    optimizer.flush()
"""


@pytest.mark.parametrize("policy", ["knapsack 0-1@4", "bytescheduler"])
def test_the_end_of_a_script_applies_what_waits_as_flush_does(start, tmp_path, policy):
    script = tmp_path / "ending.py"
    script.write_text(ENDING)
    ended = set()
    for how in ("flush", "nothing"):
        for status, output in start(2, policy=policy).run_script(script, how):
            assert status == 0, output
            left, end = re.findall(r"(?:left|ended) with (\w+)", output)
            assert left != end, "nothing was waiting"
            ended.add(end)
    assert len(ended) == 1
