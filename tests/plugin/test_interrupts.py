"""Ctrl-C while the main thread is inside a C function, as it is while TensorFlow runs a graph."""

import os
import subprocess
import sys

from under_test import BUILD

SCRIPT = """
import ctypes, os, signal, sys, threading
from deft import interrupts

libc, mutex, held = ctypes.CDLL(None), ctypes.create_string_buffer(64), threading.Event()
main = threading.main_thread().ident


def block():
    try:
        libc.pthread_mutex_lock(mutex)  # no signal ends it
    finally:
        libc.pthread_mutex_unlock(mutex)


def is_blocked():
    state = open(f"/proc/self/task/{os.getpid()}/stat").read().rpartition(")")[2].split()[0]
    return state == "S" and sys._current_frames()[main].f_code is block.__code__


def interrupted():
    try:
        interrupts.raise_if_interrupted()
    except RuntimeError as error:
        return str(error) == "interrupted by Ctrl-C"


def wait_for_ranks(ends):
    libc.pthread_mutex_lock(mutex)
    held.set()
    while not is_blocked():
        pass
    ends()
    libc.pthread_mutex_unlock(mutex)


def step(ends):
    held.clear()
    thread = threading.Thread(target=wait_for_ranks, args=(ends,))
    thread.start()
    held.wait()
    try:
        block()
    finally:
        thread.join()


def ctrl_c():
    os.kill(os.getpid(), signal.SIGINT)
    while not interrupted():
        pass


interrupts.listen()
for _ in range(2):
    try:
        step(ctrl_c)
        print("went on")
    except KeyboardInterrupt:
        print("ended")
    seen = []
    step(lambda: seen.append(interrupted()))
    print("the next one:", seen)
signal.signal(signal.SIGINT, lambda *_: print("noted by the script"))
seen = []
step(lambda: [os.kill(os.getpid(), signal.SIGINT), seen.append(interrupted())])
print(seen, interrupted(), flush=True)
if os.fork() == 0:
    print("in a child:", signal.set_wakeup_fd(-1), flush=True)
    os._exit(0)
os.wait()
"""


def test_a_wait_ends_if_the_main_thread_cannot_come_to_its_handler():
    environment = {**os.environ, "PYTHONPATH": str(BUILD / "python")}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, timeout=100)
    assert done.stdout.splitlines() == [
        *["ended", "the next one: [None]"] * 2,
        "noted by the script",
        "[None] None",
        "in a child: -1",
    ], done.stderr
