"""The futures of Deft's collectives, and what their callbacks may do: start another collective and wait for it.

torch's hook for PowerSGD does that. A future runs its callbacks on the thread that gives it its value, and libdeft has
one thread for all callbacks: if that one waited, the end of the other collective would never come. So futures get their
values on threads of this module. While a callback waits, the next future gets its value on another thread.

Callbacks run at different moments on different ranks, or at once if a future has its value already. So a reduction that
a callback starts has a name of its origin, the reduction whose future called back. Without that a counter of all would
give it another number on another rank. torch has no way to see who called a callback. So Future.then() of torch is
wrapped: it behaves as before, and a future that follows one of Deft's has the same origin.
"""

import atexit
import contextlib
import itertools
import os
import queue
import threading

import torch
from torch.utils.weak import WeakIdKeyDictionary

_MOST_FREE = 2  # threads that stay without work
_LAST_S = 1.0  # for callbacks under way when the process ends; one may wait for ever

_origins = WeakIdKeyDictionary()  # future -> its origin; an origin keeps no future alive
_running = threading.local()  # .origin: of the callback that runs on this thread


class Origin:
    """A reduction whose future may call back. `name` is the same on all ranks, and of this reduction alone."""

    def __init__(self, name):
        self._name = name
        self._numbers = itertools.count(1)

    def follow(self, future):
        """Has the reductions that callbacks of `future` start named after this one."""
        _origins[future] = self

    def around(self, callback):
        def call(*arguments):
            before, _running.origin = origin_of_this_call(), self
            try:
                return callback(*arguments)
            finally:
                _running.origin = before

        return call

    def next_name(self):
        return f"{self._name}.{next(self._numbers)}"


def origin_of_this_call():
    """The origin whose callback runs on this thread, or None."""
    return getattr(_running, "origin", None)


def next_name(prefix, numbers):
    """The name of a reduction that begins now. `numbers` counts those that no callback starts."""
    origin = origin_of_this_call()
    return f"{prefix}.{next(numbers)}" if origin is None else origin.next_name()


def _wrap_then():
    plain_then, plain_add = torch._C.Future.then, torch._C.Future.add_done_callback

    def then(future, callback):
        origin = _origins.get(future)
        if origin is None:
            return plain_then(future, callback)
        following = plain_then(future, origin.around(callback))
        origin.follow(following)
        return following

    def add_done_callback(future, callback):
        origin = _origins.get(future)
        return plain_add(future, callback if origin is None else origin.around(callback))

    torch._C.Future.then, torch._C.Future.add_done_callback = then, add_done_callback


_wrap_then()


class CallbackThreads:
    """run(call) calls it soon on a thread. There is always a thread that waits for the next one."""

    def __init__(self):
        self._forget_threads()

    def run(self, call):
        with self._changed:
            if self._closed:
                return
            if not self._started:
                self._start()
            self._left += 1
        self._calls.put(call)

    def close(self, seconds):
        """The process ends: waits for calls under way, and drops further ones.

        Python ends its threads where they take its lock. Inside torch's C++ that would end the process by a signal."""
        with self._changed:
            self._closed = True
            self._changed.wait_for(lambda: self._left == 0, seconds)

    def _forget_threads(self):
        """A forked child has none of its parent's threads."""
        self._changed = threading.Condition()
        self._calls = queue.SimpleQueue()
        self._started = self._closed = False
        self._free = 0  # threads that wait for a call
        self._left = 0  # calls that have not returned

    def _start(self):
        with contextlib.suppress(RuntimeError):  # no more threads: then calls wait for those that run
            threading.Thread(target=self._serve, name="deft futures", daemon=True).start()
            self._free += 1
            self._started = True

    def _serve(self):
        while True:
            call = self._calls.get()
            with self._changed:
                self._free -= 1
                if self._free == 0:
                    self._start()
            call()
            del call  # it keeps a tensor alive
            with self._changed:
                self._left -= 1
                self._changed.notify_all()
                if self._free >= _MOST_FREE:
                    return
                self._free += 1


threads = CallbackThreads()
os.register_at_fork(after_in_child=threads._forget_threads)
atexit.register(threads.close, _LAST_S)
