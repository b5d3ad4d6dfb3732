"""Operations on MXNet's engine that end when Deft says so.

They are made through MXNet's C interface; nothing is compiled.

    def start(done):
        session().allreduce(...).when_done(done)

    push(start, writes=[array], priority=-3)

The engine calls start(done) on one of its threads, once all earlier operations on these arrays have ended. Whatever
uses the arrays afterwards waits inside the engine until done(None) or done(error) was called, once, on any thread. An
error goes with the arrays, as MXNet's own do: who waits for them, or for what was computed from them, gets MXNetError.
"""

import atexit
import contextlib
import ctypes
import functools
import itertools
import os
import threading
import time
from ctypes import CFUNCTYPE, POINTER, c_bool, c_char_p, c_int, c_int32, c_void_p

from deft import DeftError
from deft.session import has_failed

from .importing import mxnet as mx


class _OnComplete(ctypes.Structure):  # Engine::CallbackOnComplete of mxnet/engine.h
    _fields_ = [("callback", c_void_p), ("engine", c_void_p), ("param", c_void_p)]


class _Context(ctypes.Structure):  # mxnet::Context
    _fields_ = [("device", c_int), ("number", c_int32)]


_CPU = _Context(1, 0)
_PRIORITIZED = c_int(3)  # FnProperty::kCPUPrioritized: threads that do not compute
_START = CFUNCTYPE(None, c_void_p, POINTER(_OnComplete), c_void_p)  # EngineAsyncFunc, as c_api.cc calls it
_FORGET = CFUNCTYPE(None, c_void_p)
_COMPLETE = CFUNCTYPE(None, c_void_p, c_void_p, c_void_p)
_ERROR_BYTES = 64  # more than a std::runtime_error needs

_push = mx.base._LIB.MXEnginePushAsyncND
_push.argtypes = [
    *(_START, c_void_p, _FORGET, c_void_p),
    *(POINTER(c_void_p), c_int, POINTER(c_void_p), c_int),
    *(c_void_p, c_int, c_char_p, c_bool),
]
# dmlc::Error is a std::runtime_error, and the engine copies it: so one made by the C++ library serves.
_cxx = ctypes.CDLL("libstdc++.so.6")
_make_error = _cxx["_ZNSt13runtime_errorC1EPKc"]
_make_error.argtypes, _make_error.restype = [c_void_p, c_char_p], None
_end_error = _cxx["_ZNSt13runtime_errorD1Ev"]
_end_error.argtypes, _end_error.restype = [c_void_p], None

_one_error_at_a_time = threading.Lock()  # MXNet keeps errors in a list without a lock
_numbers = itertools.count(1)
_operations = {}  # (start, ended) by number, until the engine has forgotten the operation
_starting = set()  # numbers of those in whose start() a thread is
_changed = threading.Condition()  # of these two
_EXIT_S = 10
_RETURN_S = 0.02  # more than a thread needs to leave Python after its last word


class _Done:
    """Ends one operation of the engine."""

    def __init__(self, on_complete):
        self._complete = _COMPLETE(on_complete.callback)
        self._engine, self._param = on_complete.engine, on_complete.param

    def __call__(self, error=None):
        if error is None:
            self._complete(self._engine, self._param, None)
            return
        with _one_error_at_a_time:
            self._fail(error)

    def _fail(self, error):
        memory = ctypes.create_string_buffer(_ERROR_BYTES)
        _make_error(memory, str(error).encode())
        self._complete(self._engine, self._param, ctypes.addressof(memory))
        _end_error(memory)


@_START
def _start(_run_context, on_complete, number):
    _starting.add(number)
    done = _Done(on_complete.contents)
    try:
        _operations[number][0](done)
    except Exception as error:  # the engine's thread cannot raise; whoever waits for the arrays does
        done(error)
    finally:
        with _changed:
            _starting.remove(number)
            _changed.notify_all()


@_FORGET
def _forget(number):
    _, ended = _operations[number]
    try:
        if ended is not None:
            ended()
    finally:
        with _changed:
            del _operations[number]
            _changed.notify_all()


def wait_for_threads():
    """Waits, for a while, until no thread of the engine is in these functions or comes to them.

    A thread that wants Python's lock when the interpreter ends would abort the process."""
    with _changed:
        had_some = bool(_operations or _starting)
        _changed.wait_for(lambda: not _operations and not _starting, _EXIT_S)
    if had_some:
        time.sleep(_RETURN_S)


@atexit.register
def _at_exit():
    if not has_failed():  # otherwise the other ranks are to hear of it at once
        wait_for_threads()


def _after_fork():
    global _changed
    _changed = threading.Condition()
    _operations.clear()
    _starting.clear()


os.register_at_fork(after_in_child=_after_fork)


def _handles(arrays):
    return (c_void_p * len(arrays))(*[array.handle for array in arrays]), len(arrays)


def push(start, reads=(), writes=(), priority=0, name="deft", ended=None):
    """`reads` and `writes`: NDArrays, each in one of the two lists. The engine prefers higher priorities.

    ended() is called when the operation has ended, and also if an error of its arrays came instead."""
    number = next(_numbers)
    _operations[number] = start, ended
    mx.base.check_call(
        _push(
            _start,
            number,
            _forget,
            ctypes.addressof(_CPU),
            *_handles(reads),
            *_handles(writes),
            ctypes.addressof(_PRIORITIZED),
            priority,
            name.encode(),
            False,
        )
    )


def view_of(array):
    """An NDArray in the memory of a numpy array, which must live as long."""
    return mx.nd.from_numpy(array.view(), zero_copy=True)  # the given array becomes read-only


def wait_for_all():
    """Waits until the engine has nothing to do. Errors go with their arrays."""
    with contextlib.suppress(mx.base.MXNetError):
        mx.nd.waitall()


def mxnet_errors(function):
    """`function`, whose DeftError becomes MXNetError with the same text. If it is a ValueError, too, it stays."""

    @functools.wraps(function)
    def wrapped(*arguments, **named):
        try:
            return function(*arguments, **named)
        except DeftError as error:
            if isinstance(error, ValueError):
                raise
            raise mx.base.MXNetError(str(error)) from error

    return wrapped
