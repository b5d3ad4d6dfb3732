"""Processes that workers left behind in a session of their own, where no signal to a worker's group reaches them.

An agent that adopts them gets them as its children when their parents end, instead of init. Where nobody has adopted
any, these functions do nothing.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable, Collection
from pathlib import Path

from deft_launcher.child import LIBC, Child

PR_SET_CHILD_SUBREAPER, PR_GET_CHILD_SUBREAPER = 36, 37
GRACE = 2.0  # from the request to end to the kill, and from there to the end, which may be the kernel's to delay


def adopt() -> None:
    """From now on, for this process."""
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1)


def are_adopted() -> bool:
    answer = ctypes.c_int()
    LIBC.prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(answer))
    return answer.value != 0


def alive(own: Collection[int]) -> set[int]:
    """This process's children, but for its `own`."""
    found = set()
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) in own:
            continue
        try:
            state, parent = (folder / "stat").read_bytes().rpartition(b")")[2].split()[:2]
        except OSError:
            continue  # it has ended
        if int(parent) == os.getpid() and state != b"Z":
            found.add(int(folder.name))
    return found


def bury(children: Collection[Child]) -> None:
    """Takes the status of strays that have ended, which nobody else does. That of `children` is for their owner."""
    if not are_adopted():
        return
    own = {child.process.pid for child in children}
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return  # there is no child at all
        if ended is None or ended.si_pid in own:
            return
        os.waitpid(ended.si_pid, 0)


def end(children: Collection[Child], hurries: Callable[[], bool]) -> None:
    """Asks all strays to end, and kills them after the grace, or as soon as `hurries`. Spares `children`."""
    if not are_adopted():
        return
    own = {child.process.pid for child in children}
    asked: set[int] = set()
    begun = time.monotonic()
    # The children of a process that ends become ours while we look, and may be missed. The second look finds them.
    while (left := alive(own) or alive(own)) and time.monotonic() - begun < 2 * GRACE:
        if hurries() or time.monotonic() - begun > GRACE:
            send(left, signal.SIGKILL)
        else:
            send(left - asked, signal.SIGTERM)
            asked |= left
        time.sleep(0.02)


def send(strays: Collection[int], number: int) -> None:
    for pid in strays:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            pass
