"""scripts/horovod_suites counts rightly: on tests like Horovod's, since those of Horovod have to be downloaded."""

import subprocess
import sys

from launching import ROOT

TESTS = """
import inspect
import os
import unittest

import pytest
import torch

import horovod.torch as hvd
from common import mpi_env_rank_and_size, skip_or_fail_gpu_test, temppath
from horovod.torch.mpi_ops import synchronize


class TorchTests(unittest.TestCase):
    def test_ranks(self):
        hvd.init()
        assert (hvd.rank(), hvd.size()) == mpi_env_rank_and_size() == (int(os.environ["HOROVOD_RANK"]), 2)
        assert inspect.getargspec(hvd.rank).args == []
        with temppath() as path:
            assert not os.path.exists(path)
        assert synchronize(hvd.allreduce_async(torch.ones(1), op=hvd.Sum)).item() == 2

    def test_one_rank_fails(self):
        assert hvd.rank() == 0, "only one rank"

    def test_gpu(self):
        skip_or_fail_gpu_test(self, "No GPUs available")

    @pytest.mark.skip(reason="for a reason")
    def test_marked(self):
        raise AssertionError("was not to run")
"""


def test_outcomes_are_counted(tmp_path):
    folder = tmp_path / "test" / "parallel"
    folder.mkdir(parents=True)
    (folder / "test_torch.py").write_text(TESTS)
    (folder / "test_adasum_pytorch.py").write_text("")
    command = [sys.executable, str(ROOT / "tests/horovod/suites.py"), "--sources", str(tmp_path), "--verbose"]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.stdout.splitlines() == [
        "passed: test_torch.TorchTests.test_ranks: ",
        "failed: test_torch.TorchTests.test_one_rank_fails: AssertionError: only one rank",
        "needs a GPU: test_torch.TorchTests.test_gpu: No GPUs available",
        "skipped: test_torch.TorchTests.test_marked: for a reason",
        "1 passed, 1 failed, 1 needs a GPU, 1 skipped",
    ], run.stderr
    assert run.returncode == 1
