"""Whole scripts in fresh interpreters, as a launcher runs them."""

import re
import time
from pathlib import Path

import pytest

HOROVOD_SCRIPT = Path(__file__).with_name("horovod_script.py")


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
    began = time.monotonic()
    (zero, output), (one, _) = start(2, timeout="5s").run_script(script)
    assert time.monotonic() - began < 45
    lost = "rank 1" if how.startswith("raise") else "node 1"  # its only rank has left in good order
    assert zero == 1 and (lost in output or "rank 1" in output), output
    assert one == {"r": 1, "s": 3}[how[0]]
