"""Finds and loads libdeft and declares the functions of deft.h."""

import ctypes
import itertools
import json
import pathlib
from collections.abc import Callable
from ctypes import (
    CFUNCTYPE,
    POINTER,
    byref,
    c_char,
    c_char_p,
    c_double,
    c_int,
    c_size_t,
    c_uint,
    c_uint32,
    c_uint64,
    c_void_p,
)
from typing import NamedTuple

INTERFACE_VERSION = 13  # of deft.h: the functions used here exist from this version on


class Error(ctypes.Structure):
    _fields_ = [("kind", c_int), ("message", c_char * 2040)]


class TensorSpec(ctypes.Structure):
    _fields_ = [
        ("name", c_char_p),
        ("dtype", c_int),
        ("dims", c_int),
        ("shape", POINTER(c_uint64)),
        ("forward_position", c_uint32),
    ]


class Generation(ctypes.Structure):
    _fields_ = [(name, c_uint64) for name in ("number", "first_step", "last_step", "apply_step")] + [("slot", c_uint)]


class Statistics(ctypes.Structure):
    _fields_ = [
        ("step", c_uint64),
        ("local_norm", c_double),
        ("average_norm", c_double),
        ("learning_rate", c_double),
        ("loss", c_double),
        ("target", c_double),
        ("merged_as_sums", c_int),
    ]


class Collective(ctypes.Structure):
    _fields_ = [(name, c_int) for name in ("collective", "dtype", "reduce_op", "root")] + [
        ("name", c_char_p),
        ("terms", c_char_p),
        ("input", c_void_p),
        ("counts", POINTER(c_size_t)),
    ]


class Layer(ctypes.Structure):
    _fields_ = [("tensor", c_uint32), ("forward_ns", c_uint64)]


class Memory(ctypes.Structure):
    _fields_ = [
        ("part", c_int),
        ("begin", c_uint32),
        ("end", c_uint32),
        ("input_of", c_uint32),
        ("bytes", c_uint64),
        ("growing", c_uint64),
    ]


class StepMemory(ctypes.Structure):
    _fields_ = [
        ("step", c_uint64),
        ("samples", c_uint32),
        ("layers", POINTER(Layer)),
        ("layer_count", c_size_t),
        ("amounts", POINTER(Memory)),
        ("amount_count", c_size_t),
    ]


class World(ctypes.Structure):
    _fields_ = [(name, c_int) for name in ("rank", "size", "local_rank", "local_size", "node", "nodes")]


# DEFT_E* of deft.h
EINVALID, EMISMATCH, ETIMEOUT, ELOST, EUNAVAILABLE = 1, 2, 3, 4, 7


class DeftError(RuntimeError):
    """An error that libdeft reports. `kind` is one of the DEFT_E* numbers of deft.h."""

    def __init__(self, kind: int, message: str):
        super().__init__(message)
        self.kind = kind

    def __reduce__(self):
        """So that a parent process gets it, by concurrent.futures for instance. Python would give the text alone."""
        return _restored, (type(self), self.kind, str(self))


def _restored(cls, kind, message):
    error = cls.__new__(cls)
    DeftError.__init__(error, kind, message)
    return error


class InvalidCallError(DeftError, ValueError):
    """The caller's mistake, which this side has found: a ValueError, as Horovod's scripts expect."""

    def __init__(self, message: str):
        super().__init__(EINVALID, message)


_E = POINTER(Error)
_CALLBACK = CFUNCTYPE(None, c_void_p, _E)
_FUNCTIONS = {
    "deft_interface_version": (c_int, []),
    "deft_version": (c_char_p, []),
    "deft_option": (c_char_p, [c_char_p, _E]),
    "deft_policy_traits": (c_int, [c_char_p, _E]),
    "deft_open": (c_int, [POINTER(c_char_p), POINTER(c_void_p), _E]),
    "deft_close": (None, [c_void_p]),
    "deft_get_world": (World, [c_void_p]),
    "deft_node_of": (c_int, [c_void_p, c_int]),
    "deft_declare_encoded": (
        c_int,
        [
            c_void_p,
            c_char_p,
            POINTER(TensorSpec),
            POINTER(c_char_p),
            c_size_t,
            c_uint,
            c_int,
            POINTER(c_void_p),
            _E,
        ],
    ),
    "deft_release": (c_int, [c_void_p, c_void_p, _E]),
    "deft_tensor_data": (c_void_p, [c_void_p, c_size_t, c_uint]),
    "deft_tensor_bytes": (c_size_t, [c_void_p, c_size_t]),
    "deft_on_device": (c_int, [c_void_p]),
    "deft_arena_bytes": (c_size_t, [c_void_p]),
    "deft_use_device_arena": (c_int, [c_void_p, c_void_p, _E]),
    "deft_keep_arena": (c_int, [c_void_p, POINTER(c_void_p), _E]),
    "deft_own_arena": (c_int, [c_void_p, _E]),
    "deft_free_arena": (None, [c_void_p]),
    "deft_ready": (c_int, [c_void_p, c_size_t, c_size_t, c_uint64, c_uint, _E]),
    "deft_wait": (c_int, [c_void_p, c_size_t, c_size_t, c_uint64, _E]),
    "deft_test": (c_int, [c_void_p, c_size_t, c_size_t, c_uint64, _E]),
    "deft_test_for": (c_int, [c_void_p, c_size_t, c_size_t, c_uint64, c_uint64, _E]),
    "deft_generations_of_step": (None, [c_void_p, c_uint64, POINTER(Generation)]),
    "deft_generations_at": (None, [c_void_p, POINTER(c_uint64), POINTER(Generation)]),
    "deft_flush": (c_int, [c_void_p, c_uint64, _E]),
    "deft_send_residuals": (c_int, [c_void_p, c_uint64, _E]),
    "deft_report_statistics": (c_int, [c_void_p, POINTER(Statistics), _E]),
    "deft_stage": (c_int, [c_void_p, c_int, c_uint64, _E]),
    "deft_start": (c_int, [c_void_p, POINTER(Collective), POINTER(c_void_p), _E]),
    "deft_when_reduced": (c_int, [c_void_p, c_size_t, c_size_t, c_uint64, _CALLBACK, c_void_p, _E]),
    "deft_when_done": (c_int, [c_void_p, _CALLBACK, c_void_p, _E]),
    "deft_poll": (c_int, [c_void_p, _E]),
    "deft_poll_for": (c_int, [c_void_p, c_uint64, _E]),
    "deft_finish": (c_int, [c_void_p, c_void_p, _E]),
    "deft_store_set": (c_int, [c_void_p, c_char_p, c_char_p, c_size_t, _E]),
    "deft_store_ask": (c_int, [c_void_p, c_char_p, POINTER(c_uint32), _E]),
    "deft_store_answer": (c_int, [c_void_p, c_uint32, c_uint64, c_char_p, POINTER(c_size_t), _E]),
    "deft_daemon_status": (c_char_p, [_E]),
    "deft_trace_start": (c_int, [c_void_p, c_char_p, c_uint, _E]),
    "deft_trace_stop": (c_int, [c_void_p, _E]),
    "deft_traces": (c_uint64, [c_void_p]),
    "deft_record_memory": (c_int, [c_void_p, POINTER(StepMemory), _E]),
}


def _candidates() -> list[str]:
    here = pathlib.Path(__file__).absolute().parent
    beside = here / "libdeft.so"
    in_tree = pathlib.Path(__file__).resolve().parents[3] / "build" / "lib" / "libdeft.so"
    return [str(path) for path in (beside, in_tree) if path.exists()] + ["libdeft.so.0"]


def _load() -> ctypes.CDLL:
    problems = []
    for path in _candidates():
        try:
            library = ctypes.CDLL(path)
        except OSError as error:
            problems.append(f"{path}: {error}")
            continue
        found = library.deft_interface_version()
        if found >= INTERFACE_VERSION:
            return library
        problems.append(f"{path}: has interface version {found}, this package needs {INTERFACE_VERSION}")
    raise ImportError(
        "deft cannot load libdeft.so (" + "; ".join(problems) + "). Build it (cmake --build build --target python) and "
        "put build/python on PYTHONPATH, or install Deft's wheel."
    )


def _bind(library: ctypes.CDLL) -> ctypes.CDLL:
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    return library


lib = _bind(_load())


def raise_error(error: Error) -> None:
    raise DeftError(error.kind, error.message.decode(errors="replace"))


def call(function, *arguments) -> int:
    """Calls a function whose last parameter is the error; raises the error, or returns the result (>= 0)."""
    error = Error()
    code = function(*arguments, byref(error))
    if error.kind != 0:
        raise_error(error)
    return code


class _Callbacks:
    """Functions of Python that libdeft will call, each once: with None, or with the DeftError that came instead."""

    def __init__(self):
        self._functions: dict[int, Callable[[DeftError | None], None]] = {}
        self._numbers = itertools.count(1)
        self._entry = _CALLBACK(self._called)

    def call(self, function, *arguments, callback: Callable[[DeftError | None], None]) -> None:
        """Calls a function of libdeft that takes a callback; if that fails, the callback is never called."""
        number = next(self._numbers)
        self._functions[number] = callback
        try:
            call(function, *arguments, self._entry, number)
        except DeftError:
            del self._functions[number]
            raise

    def _called(self, number: int, error) -> None:
        kind = error.contents.kind
        message = error.contents.message.decode(errors="replace")
        self._functions.pop(number)(DeftError(kind, message) if kind != 0 else None)


call_back = _Callbacks().call

_FIRST_SLICE_US, _SLICE_US = 20_000, 200_000


def wait(function, *arguments, between: Callable[[], None] = lambda: None) -> None:
    """Calls a function whose last parameters are a timeout and the error, until it gives 1; raises the error.

    It waits in slices: between them Python runs signal handlers, so Ctrl-C ends a wait, and `between` is called.
    """
    slice_us = _FIRST_SLICE_US
    while call(function, *arguments, slice_us) == 0:
        between()
        slice_us = min(2 * slice_us, _SLICE_US)


def version() -> str:
    return lib.deft_version().decode()


def daemon_status() -> dict:
    """What this node's daemon tells about itself, as `deft status --json` shows it."""
    error = Error()
    text = lib.deft_daemon_status(byref(error))
    if text is None:
        raise_error(error)
    return json.loads(text)


def option(name: str) -> str:
    """The effective value of a configuration option, for instance option("policy")."""
    error = Error()
    value = lib.deft_option(name.encode(), byref(error))
    if value is None:
        raise_error(error)
    return value.decode()


_OVERLAPS_FORWARD = 1  # DEFT_POLICY_OVERLAPS_FORWARD
_DELAYS_UPDATES = 2  # DEFT_POLICY_DELAYS_UPDATES


class PolicyTraits(NamedTuple):
    """The properties of a policy that a framework's plugin must know (DEFT_POLICY_* of deft.h)."""

    overlaps_forward: bool  # gains if forward overlaps with communication
    delays_updates: bool  # may merge the gradients of several steps, or apply them later


def policy_traits(policy: str | None = None) -> PolicyTraits:
    """The traits of `policy`; None: of the policy that the options choose."""
    error = Error()
    bits = lib.deft_policy_traits((policy or option("policy")).encode(), byref(error))
    if bits < 0:
        raise_error(error)
    return PolicyTraits(bool(bits & _OVERLAPS_FORWARD), bool(bits & _DELAYS_UPDATES))
