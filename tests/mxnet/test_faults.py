"""What is lost or differs is MXNetError with Deft's text, within DEFT_TIMEOUT, on every rank that lives."""

import os
import signal
import subprocess
import sys
import time

import pytest
from launching import PACKAGE, ROOT, WorkerFailed
from mxnet_jobs import WAYS, MXNetCluster, backward, make_step, small_net
from training_checks import batches

TIMEOUT_SECONDS = 10


def shapes_that_differ():
    """The trainer is the last one, since the ranks declare its gradients: then the job is over."""
    import deft.mxnet as hvd
    import mxnet as mx

    for way in reversed(WAYS):
        net = mx.gluon.nn.Dense(2 + hvd.rank(), in_units=3)
        net.initialize()
        step = make_step(way, net)
        with mx.autograd.record():
            loss = net(mx.nd.ones((1, 3))).sum()
        loss.backward()
        with pytest.raises(mx.base.MXNetError, match=r"rank 0.*rank 1|rank 1.*rank 0"):
            step(1)
            net.weight.data().wait_to_read()
    return True


def test_shapes_that_differ_are_an_error_that_names_both_ranks(start):
    assert all(start(policy="fifo", timeout=f"{TIMEOUT_SECONDS}s").run(shapes_that_differ))


def train_until_killed(victim, words, way):
    """Rank 1 kills process `victim` (0: itself) in the middle of training. words[rank] is in that rank's error."""
    import deft.mxnet as hvd
    import mxnet as mx

    net = small_net()
    step = make_step(way, net)
    for number in range(200):
        if number == 5 and hvd.rank() == 1:
            os.kill(victim or os.getpid(), signal.SIGKILL)
        if number == 5:
            began = time.monotonic()
        x, y = next(batches(1))
        try:
            loss = backward(net, x, y)
            step(len(x))
            loss.wait_to_read()
        except mx.base.MXNetError as error:
            assert time.monotonic() - began < TIMEOUT_SECONDS + 30
            assert words[hvd.rank()] in str(error)
            hvd.shutdown()
            return not hvd.is_initialized()
    raise AssertionError("nothing failed")


@pytest.mark.parametrize("way", ["trainer", "kvstore"])
def test_a_killed_worker_is_named(start, way):
    cluster = start(policy="bytescheduler", timeout=f"{TIMEOUT_SECONDS}s")
    with pytest.raises(WorkerFailed) as failed:
        cluster.run(train_until_killed, 0, ["rank 1 "], way)
    assert failed.value.errors[0] is None, failed.value


@pytest.mark.parametrize("way", ["trainer", "optimizer"])
def test_a_killed_daemon_is_named(tmp_path, way):
    cluster = MXNetCluster(tmp_path, 2, policy="fifo", timeout=f"{TIMEOUT_SECONDS}s")
    try:
        assert all(cluster.run(train_until_killed, cluster.daemons[1].pid, ["node 1", "daemon"], way))
    finally:
        cluster.daemons[1].wait()
        cluster.daemons.pop()
        cluster.close()


def imported(paths, **variables):
    """What a process says that imports deft.mxnet and starts it."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), **variables}
    words = [sys.executable, "-c", "import deft.mxnet as hvd; hvd.init()"]
    return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120).stderr


def test_a_new_numpy_is_an_error_that_says_which_one_to_install(tmp_path):
    newer = next(iter(sorted((ROOT / ".venv/lib").glob("python3*/site-packages/numpy"))), None)
    if newer is None or newer.parents[1].name != f"python3.{sys.version_info.minor}":
        pytest.skip(f"there is no numpy for this Python in {ROOT / '.venv'}")
    for folder in newer.parent.glob("numpy*"):
        (tmp_path / folder.name).symlink_to(folder)
    said = imported([tmp_path, PACKAGE])
    assert "ImportError: deft.mxnet: MXNet 1.9.1 does not work with numpy 2." in said
    assert "pip install numpy==1.23.5" in said


def test_an_engine_that_runs_one_operation_after_the_other_is_refused():
    assert "needs MXNet's threaded engine" in imported([PACKAGE], MXNET_ENGINE_TYPE="NaiveEngine")
