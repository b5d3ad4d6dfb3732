"""The interpreter ends when no thread of MXNet's engine needs it any more: otherwise the process aborts at times."""

import os
import subprocess
import sys

from launching import PACKAGE

UNDER_WAY_AT_THE_END = """
import threading, time
import mxnet as mx
from deft.mxnet import engine
def later(function):
    thread = threading.Timer(0.5, function)
    thread.daemon = True
    thread.start()
def returns_late(done):
    done()
    time.sleep(1)
    print("returned", flush=True)
arrays = [mx.nd.ones(1), mx.nd.ones(1)]
engine.push(later, writes=arrays[:1], ended=lambda: print("ended", flush=True))
engine.push(returns_late, writes=arrays[1:])
"""


def test_the_end_waits_for_the_engines_threads():
    environment = os.environ | {"PYTHONPATH": str(PACKAGE)}
    words = [sys.executable, "-c", UNDER_WAY_AT_THE_END]
    ran = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120)
    assert (ran.returncode, sorted(ran.stdout.split())) == (0, ["ended", "returned"]), ran.stderr
