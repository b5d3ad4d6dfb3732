"""The names of collectives for whose end nobody has waited yet: a name stands for one collective at a time."""

import contextlib
import threading
import weakref
from collections.abc import Callable
from ctypes import byref, c_void_p

from deft import _native
from deft._native import DeftError, InvalidCallError, call, lib

_FEW = 64


class NamesInFlight:
    """Of one session. Any thread may call the methods.

    What counts is that this process has seen the end, and not whether it has come: so all ranks decide alike.
    """

    def __init__(self):
        # Operation and its handle; None: it is finished, and keeps its name.
        self._running: dict[str, tuple[weakref.ref, c_void_p | None]] = {}
        self._full = _FEW  # names, at which those that are over are freed: they hold memory
        self._lock = threading.RLock()  # a handle that is asked is not finished meanwhile: it would be freed
        self.on_end: Callable[[str], None] = lambda name: None

    def check(self, name: str) -> None:
        """InvalidCallError if a collective of this name is under way."""
        with self._lock:
            if name not in self._running:
                return
            if self._is_over(name):
                self._free(name)
                return
        raise InvalidCallError(
            f"operation '{name}': a collective of this name is under way; wait for it first, or give the new one "
            "another name"
        )

    def add(self, name: str, operation: object, handle: c_void_p) -> None:
        with self._lock:
            if len(self._running) >= self._full:
                for other in [other for other in self._running if self._is_over(other)]:
                    self._free(other)
                self._full = max(_FEW, 2 * len(self._running))
            self._running[name] = weakref.ref(operation), handle

    def ended(self, name: str, operation: object, keep_name: bool) -> None:
        """The operation is about to be finished."""
        with self._lock:
            if keep_name and self._is(name, operation):
                self._running[name] = weakref.ref(operation), None
                self.on_end(name)
            else:
                self.forget(name, operation)

    def forget(self, name: str, operation: object) -> None:
        with self._lock:
            if self._is(name, operation):
                del self._running[name]
                self.on_end(name)

    def all_ended(self) -> bool:
        """Whether the result of each, or its error, has come."""
        with self._lock:
            return all(_has_ended(handle) for _, handle in self._running.values())

    def _is_over(self, name: str) -> bool:
        """Whether it has ended, and nobody can wait for it any more."""
        operation, handle = self._running[name]
        return operation() is None and _has_ended(handle)

    def _free(self, name: str) -> None:
        _, handle = self._running.pop(name)
        if handle is not None:
            with contextlib.suppress(DeftError):  # its own error: nobody has asked for that
                call(lib.deft_finish, handle, None)
        self.on_end(name)

    def _is(self, name: str, operation: object) -> bool:
        return name in self._running and self._running[name][0]() is operation


def _has_ended(handle: c_void_p | None) -> bool:
    """Whether the result of a collective, or its error, has come."""
    return handle is None or lib.deft_poll(handle, byref(_native.Error())) != 0
