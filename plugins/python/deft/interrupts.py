"""Ctrl-C while another thread than the main one waits for other ranks.

    listen()                      # once, on the main thread
    raise_if_interrupted()        # between the slices of a wait

Python runs signal handlers on its main thread, between its own instructions. If a framework runs a graph, that thread
is inside the framework until the graph ends, and one of the framework's threads waits for other ranks. So that wait
ends by an error: then the graph ends, and Python's handler runs on the main thread.

Python notes a signal in a file at once (signal.set_wakeup_fd). A main thread that stays at one place after that has not
come to its handler. Handlers of a script's own may only note a signal, so they wait until the graph ends.
"""

import os
import signal
import sys
import threading
import time
from types import FrameType
from typing import NamedTuple

_GRACE_S = 0.2  # in which the main thread comes to its handler, unless it is inside a framework


class _Place(NamedTuple):
    """Where the main thread is. While it keeps the frame, no other frame has the same identity."""

    frame: FrameType
    instruction: int

    def is_left(self) -> bool:
        now = _place()
        return now.frame is not self.frame or now.instruction != self.instruction


_file = -1  # to which Python writes signals; -1: to none of this module
_stuck_at: _Place | None = None  # where the main thread has stayed since Ctrl-C


def listen() -> None:
    """Later calls do nothing, nor do those on other threads or beside an event loop that listens for signals."""
    global _file
    if _file != -1 or threading.current_thread() is not threading.main_thread():
        return
    read, write = os.pipe()
    os.set_blocking(write, False)
    before = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    if before != -1:
        signal.set_wakeup_fd(before)
        os.close(read)
        os.close(write)
        return
    _file = write
    threading.Thread(target=_follow, args=(read,), name="deft signals", daemon=True).start()


def raise_if_interrupted() -> None:
    """RuntimeError if the main thread cannot come to its handler of Ctrl-C. On the main thread it does nothing."""
    global _stuck_at
    if _stuck_at is None or threading.current_thread() is threading.main_thread():
        return
    if not _stuck_at.is_left():
        raise RuntimeError("interrupted by Ctrl-C")
    _stuck_at = None


def _follow(read: int) -> None:
    while True:
        signals = os.read(read, 64)
        if signal.SIGINT in signals and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            _note_if_stuck(_place())


def _note_if_stuck(came_at: _Place) -> None:
    global _stuck_at
    time.sleep(_GRACE_S)
    if not came_at.is_left():
        _stuck_at = came_at


def _place() -> _Place:
    frame = sys._current_frames()[threading.main_thread().ident]
    return _Place(frame, frame.f_lasti)


def _after_fork() -> None:
    """Signals of a forked child are none of its parent's."""
    global _file, _stuck_at
    if _file != -1 and (now := signal.set_wakeup_fd(-1)) != _file:
        signal.set_wakeup_fd(now)
    _file, _stuck_at = -1, None


os.register_at_fork(after_in_child=_after_fork)
