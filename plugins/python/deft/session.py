"""Sessions, groups of gradients and collectives. Addresses are plain integers; frameworks wrap them as they like."""

import atexit
import ctypes
import hashlib
import os
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from ctypes import byref, c_char_p, c_size_t, c_uint32, c_uint64, c_void_p, create_string_buffer
from typing import NamedTuple, Self

from deft import _native
from deft._native import EINVALID, DeftError, call, call_back, lib, wait
from deft.interruptible import interruptible
from deft.interrupts import raise_if_interrupted
from deft.joining import Call, Joining
from deft.names_in_flight import NamesInFlight
from deft.session_optimizers import SessionOptimizers
from deft.stage_reporters import StageReporters
from deft.step_memory import StepMemory

FLOAT32, FLOAT64, FLOAT16, BFLOAT16, INT32, INT64, UINT8, INT8 = range(1, 9)
SUM, MIN, MAX = 1, 2, 3
FORWARD, BACKWARD = 1, 2

_ALLREDUCE, _BROADCAST, _ALLGATHER, _BARRIER = 1, 2, 3, 4
MOST_TERMS_BYTES = 512  # of a call, for ranks to compare
_STORE_VALUE_BYTES = 4096
_LOOK_S = 0.002
_DTYPE_BYTES = {FLOAT32: 4, FLOAT64: 8, FLOAT16: 2, BFLOAT16: 2, INT32: 4, INT64: 8, UINT8: 1, INT8: 1}


# Is called once, on a thread of libdeft, which runs one at a time: with None, or with the error that came instead. It
# should not wait. It must not close the session.
Callback = Callable[[DeftError | None], None]


class Tensor(NamedTuple):
    """One tensor of a group; forward needs the tensor with forward_position 0 first."""

    name: str
    dtype: int
    shape: Sequence[int]
    forward_position: int = 0
    codec: str = ""  # how it is encoded; empty: as the option `compression` says


class Generation(NamedTuple):
    """The gradients that one update applies: of first_step to last_step, before the forward of apply_step."""

    number: int
    first_step: int
    last_step: int
    apply_step: int
    slot: int

    @property
    def merged(self) -> int:
        return self.last_step - self.first_step + 1


def runs_of(places: Iterable[int]) -> list[tuple[int, int]]:
    """Places as runs of neighbours, each (first, count): [3, 1, 2, 7] -> [(1, 3), (7, 1)]."""
    runs: list[tuple[int, int]] = []
    for place in sorted(places):
        if runs and place == sum(runs[-1]):
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((place, 1))
    return runs


class Statistics(NamedTuple):
    """Plans are judged by these numbers of one step. Norms are squared, as in deft_statistics of deft.h."""

    step: int
    local_norm: float
    average_norm: float
    learning_rate: float
    loss: float
    target: float = 0.0
    merged_as_sums: bool = False


class Group:
    """The tensors of one optimizer, in the shared arena. Made by Session.declare; release() gives the arena back."""

    def __init__(self, session: "Session", handle: c_void_p, size: int):
        self._session = session
        self._handle: c_void_p | None = handle
        self._owner = os.getpid()
        self._size = size
        self._found = (_native.Generation * size)()

    def __len__(self) -> int:
        return self._size

    def handle(self) -> c_void_p:
        """libdeft's handle; DeftError if the arena has gone: the session was closed, or the group was released."""
        self._session.handle()
        if self._handle is None:
            raise DeftError(EINVALID, "this group of gradients was released")
        return self._handle

    def release(self) -> None:
        """This rank uses the group no more: no other call works afterwards, and addresses in the arena are invalid.

        It waits for no rank; the memory is free when all ranks have released the group. Other threads must not hand
        over gradients of it meanwhile. A second time does nothing, nor does it in a session that was closed."""
        if self._handle is None or self._session._handle is None or self._owner != os.getpid():
            return
        all_reduced = call(lib.deft_release, self._session.handle(), self._handle) == 1
        self._handle = None
        if all_reduced:  # else links may still work on device memory
            self._session._kept.pop(self, None)

    def data(self, tensor: int, slot: int = 0) -> int:
        """The address of a tensor in the arena; it is valid until release(), or until the session is closed."""
        address = lib.deft_tensor_data(self.handle(), tensor, slot)
        if address is None:
            raise IndexError(f"this group of {self._size} tensors has no tensor {tensor}, or no slot {slot}")
        return address

    def bytes(self, tensor: int) -> int:
        if not 0 <= tensor < self._size:
            raise IndexError(f"this group of {self._size} tensors has no tensor {tensor}")
        return lib.deft_tensor_bytes(self.handle(), tensor)

    def arena_bytes(self) -> int:
        return lib.deft_arena_bytes(self.handle())

    def keep_mapped(self, memory: object) -> None:
        """The arena stays at its place until `memory` goes, also after release() and after the session.

        What it holds goes with the group, unless own_arena() is called before."""
        kept = c_void_p()
        call(lib.deft_keep_arena, self.handle(), byref(kept))
        weakref.finalize(memory, lib.deft_free_arena, kept).atexit = False

    def own_arena(self) -> None:
        """Gives the arena memory of this process at the same place, with what it holds: release() comes next.

        All that was handed over is reduced. Other threads may work in the arena meanwhile."""
        call(lib.deft_own_arena, self.handle())

    def use_device_arena(self, address: int, owner: object) -> None:
        """Lets links work on device memory instead of the shared arena, if Session.on_device() says that they can.

        `owner` is kept until release(), or until the session is closed, and the memory with it."""
        call(lib.deft_use_device_arena, self.handle(), address)
        self._session._kept[self] = owner

    def ready(self, first: int, count: int, step: int, slot: int = 0) -> None:
        """Hands over tensors [first, first + count) of `step`; they must not be written until wait() has returned.

        Where updates are delayed (several slots), `step` is the number of a generation, here and below."""
        call(lib.deft_ready, self.handle(), first, count, step, slot)

    def wait(self, first: int, count: int, step: int) -> None:
        """Waits until the arena holds these tensors of `step`, reduced over all workers."""
        wait(lib.deft_test_for, self.handle(), first, count, step, between=self._session.look)

    def test(self, first: int, count: int, step: int) -> bool:
        return call(lib.deft_test, self.handle(), first, count, step) == 1

    def when_reduced(self, first: int, count: int, step: int, callback: Callback) -> None:
        """Has `callback` called when wait() would return."""
        call_back(lib.deft_when_reduced, self.handle(), first, count, step, callback=callback)

    def generations_of(self, step: int) -> list[Generation]:
        """Of each tensor the generation that merges the gradients of `step`; known once all that is due before it was
        waited for."""
        lib.deft_generations_of_step(self.handle(), step, self._found)
        return self._described()

    def generations(self, numbers: Sequence[int]) -> list[Generation]:
        """Of each tensor the generation with that number."""
        lib.deft_generations_at(self.handle(), (c_uint64 * self._size)(*numbers), self._found)
        return self._described()

    def _described(self) -> list[Generation]:
        return [Generation(f.number, f.first_step, f.last_step, f.apply_step, f.slot) for f in self._found]

    def flush(self, step: int) -> None:
        """Ends the generation under way before `step`, on all ranks alike; then hand over the gradients so far."""
        call(lib.deft_flush, self.handle(), step)

    def send_residuals(self, step: int) -> None:
        """The gradients of `step`, the next one, travel as they are, with all that encodings have left out so far."""
        call(lib.deft_send_residuals, self.handle(), step)

    def record_memory(self, memory: StepMemory) -> None:
        """Tells of the memory of a step, while a trace is written."""
        layers = (_native.Layer * len(memory.layers))(*memory.layers)
        amounts = (_native.Memory * len(memory.amounts))(*memory.amounts)
        told = _native.StepMemory(memory.step, memory.samples, layers, len(layers), amounts, len(amounts))
        call(lib.deft_record_memory, self.handle(), byref(told))

    def report(self, statistics: Statistics) -> None:
        """Tells what plans are judged by; of the same steps on all ranks, each step once."""
        call(lib.deft_report_statistics, self.handle(), byref(_native.Statistics(*statistics)))


class Operation:
    """A collective under way. finish() ends it, once."""

    def __init__(self, session: "Session", handle: c_void_p, name: str):
        self._session = session
        self._handle = handle
        self._name = name

    def _open(self) -> c_void_p:
        self._session.handle()
        if self._handle is None:
            raise DeftError(EINVALID, "the operation was finished before")
        return self._handle

    def poll(self) -> bool:
        ended = call(lib.deft_poll, self._open()) == 1
        if ended:
            self._session._names.forget(self._name, self)
        else:
            self._session.look()
        return ended

    def when_done(self, callback: Callback) -> None:
        """Has `callback` called when finish() would return; finish() is still to be called, also by the callback."""
        call_back(lib.deft_when_done, self._open(), callback=callback)

    def finish(self, address: int | None = None, keep_name: bool = False) -> None:
        """Waits and writes the result to `address` (None: drop it). If a signal's handler raises, finish() may be
        called again.

        keep_name: no other collective of this process may have the name before release_name()."""
        handle = self._open()
        try:
            wait(lib.deft_poll_for, handle, between=self._session.look)
        except DeftError:
            pass  # deft_finish reports it, too
        self._handle = None
        self._session._names.ended(self._name, self, keep_name)
        call(lib.deft_finish, handle, address)

    def release_name(self) -> None:
        """After finish(keep_name=True)."""
        self._session._names.forget(self._name, self)


class Question:
    """A question to the job's key-value store. Made by Session.ask()."""

    def __init__(self, session: "Session", number: int):
        self._session = session
        self._number = number
        self._value: bytes | None = None

    def answer(self, timeout_s: float = 0.0) -> bytes | None:
        """The value, as soon as a worker has set the key; None if that does not happen within the time."""
        ends = time.monotonic() + timeout_s
        while self._value is None:
            left = max(ends - time.monotonic(), 0.0)
            if not self._look(min(left, 0.2)) and left == 0.0:
                break
        return self._value

    def _look(self, timeout_s: float) -> bool:
        value, size = create_string_buffer(_STORE_VALUE_BYTES), c_size_t()
        waited_us = max(int(timeout_s * 1e6), 1)
        found = call(lib.deft_store_answer, self._session.handle(), self._number, waited_us, value, byref(size))
        if found == 1:
            self._value = value.raw[: size.value]
        return found == 1


def finish_all(finishes: Iterable[Callable[[], object]]) -> list:
    """Calls functions that each wait for a collective and give its result. The first error is raised when all have
    ended: what nobody waited for would hold its name."""
    results, errors = [], []
    for finish in finishes:
        try:
            results.append(finish())
        except Exception as error:
            errors.append(error)
    if errors:
        raise errors[0]
    return results


class Session:
    """This worker's session with the daemon of its node. Made by open()."""

    def __init__(self, handle: c_void_p):
        self._handle = handle
        self._kept: dict[Group, object] = {}  # device memory that links work on
        self._names = NamesInFlight()
        self.optimizers = SessionOptimizers(self)
        self.joining = Joining(self)
        self._names.on_end = self.joining.ended
        world = lib.deft_get_world(handle)
        self.rank, self.size = world.rank, world.size
        self.local_rank, self.local_size = world.local_rank, world.local_size
        self.node, self.nodes = world.node, world.nodes
        self.reporters = StageReporters(self.rank)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def handle(self) -> c_void_p:
        """libdeft's handle; DeftError if the session is closed."""
        if self._handle is None:
            raise DeftError(EINVALID, "the session was closed")
        return self._handle

    def close(self) -> None:
        """Ends the session; addresses in its arenas are invalid afterwards. A second time does nothing."""
        with self.joining.lock:  # another thread may look at what ranks have joined
            handle, self._handle = self._handle, None
        if handle is not None:
            lib.deft_close(handle)
            self._kept.clear()

    def look(self) -> None:
        """A collective, or a round of gradients, has not ended yet: other ranks may not come to it."""
        raise_if_interrupted()
        self.joining.look()
        self.optimizers.look()

    def node_of(self, rank: int) -> int:
        node = lib.deft_node_of(self.handle(), rank)
        if node < 0:
            raise IndexError(f"there is no rank {rank}; the job has ranks 0 to {self.size - 1}")
        return node

    def declare(self, name: str, tensors: Sequence[Tensor], slots: int = 1, op: int = SUM) -> Group:
        """Declares tensors in the order in which backward produces them. Every rank declares the same."""
        specs = (_native.TensorSpec * len(tensors))()
        for spec, tensor in zip(specs, tensors, strict=True):
            spec.name = tensor.name.encode()
            spec.dtype = tensor.dtype
            spec.dims = len(tensor.shape)
            spec.shape = (c_uint64 * len(tensor.shape))(*tensor.shape)
            spec.forward_position = tensor.forward_position
        handle = c_void_p()
        codecs = (c_char_p * len(tensors))(*(tensor.codec.encode() or None for tensor in tensors))
        call(
            lib.deft_declare_encoded,
            self.handle(),
            name.encode(),
            specs,
            codecs,
            len(tensors),
            slots,
            op,
            byref(handle),
        )
        return Group(self, handle, len(tensors))

    def on_device(self) -> bool:
        """Whether every link of the job reduces a GPU's memory in place."""
        return lib.deft_on_device(self.handle()) == 1

    def stage(self, stage: int, step: int) -> None:
        """A stage (FORWARD or BACKWARD) of `step` begins."""
        call(lib.deft_stage, self.handle(), stage, step)

    # `terms`: words about what else must be the same on all ranks ("shape [2, 3]"); a difference is an error that
    # quotes them, of this collective alone and on all ranks.

    def allreduce(self, name: str, address: int, count: int, dtype: int, op: int = SUM, terms: str = "") -> Operation:
        return self._start(_ALLREDUCE, name, address, [count], dtype, op=op, terms=terms)

    def broadcast(self, name: str, address: int, count: int, dtype: int, root: int = 0, terms: str = "") -> Operation:
        return self._start(_BROADCAST, name, address, [count], dtype, root=root, terms=terms)

    def allgather(self, name: str, address: int, counts: Sequence[int], dtype: int, terms: str = "") -> Operation:
        """Each rank gives counts[rank] elements; the result holds all of them in the order of ranks."""
        if len(counts) != self.size:
            raise ValueError(f"allgather '{name}' needs {self.size} counts, one a rank, not {len(counts)}")
        return self._start(_ALLGATHER, name, address, counts, dtype, terms=terms)

    def traces(self) -> int:
        """How many traces of the job have begun since this worker attached."""
        return lib.deft_traces(self.handle())

    def set(self, key: str, value: bytes) -> None:
        """Writes to the job's key-value store, for small values: a collective would cost more. Up to 4096 bytes.

        b"" takes the key away, for when no rank reads it any more."""
        call(lib.deft_store_set, self.handle(), key.encode(), value, len(value))

    def ask(self, key: str) -> Question:
        """Asks for a key that some worker has set or will set. It does not wait."""
        number = c_uint32()
        call(lib.deft_store_ask, self.handle(), key.encode(), byref(number))
        return Question(self, number.value)

    def barrier(self, name: str = "barrier") -> None:
        self.start_barrier(name).finish()

    def start_barrier(self, name: str, terms: str = "", announced: bool = True) -> Operation:
        """Ends when all ranks have called it. If it is not `announced`, ranks that have joined do not hear of it."""
        return self._start(_BARRIER, name, None, (), UINT8, terms=terms, announced=announced)

    def start_with_zeros(self, announced: Call) -> Operation | None:
        """A collective that another rank has announced, with zeros; None if zeros mean nothing there."""
        zeros = bytes(announced.count * _DTYPE_BYTES.get(announced.dtype, 0))
        if announced.collective == _ALLREDUCE and announced.op == SUM and zeros:
            address = ctypes.cast(zeros, c_void_p).value
            return self.allreduce(announced.name, address, announced.count, announced.dtype, terms=announced.terms)
        if announced.collective == _BARRIER and announced.terms.startswith("allreduce,"):  # on no elements
            return self.start_barrier(announced.name, announced.terms)
        return None

    def wait_for_own(self) -> None:
        """Waits until all collectives that this rank has started have ended, well or not. Their results stay."""
        while not self._names.all_ended():
            self.look()
            time.sleep(_LOOK_S)

    def _start(
        self,
        collective: int,
        name: str,
        address: int | None,
        counts: Sequence[int],
        dtype: int,
        *,
        op: int = SUM,
        root: int = 0,
        terms: str,
        announced: bool = True,
    ) -> Operation:
        self._names.check(name)
        self.joining.begins()
        sizes = (c_size_t * len(counts))(*counts) if counts else None
        spec = _native.Collective(collective, dtype, op, root, name.encode(), shortened(terms), address, sizes)
        handle = c_void_p()
        call(lib.deft_start, self.handle(), byref(spec), byref(handle))
        operation = Operation(self, handle, name)
        self._names.add(name, operation, handle)
        if announced:
            self.joining.started(Call(collective, name, counts[0] if counts else 0, dtype, op, terms))
        return operation


def shortened(terms: str) -> bytes:
    """`terms` in at most MOST_TERMS_BYTES: of longer ones the beginning, and a hash of all."""
    text = terms.encode()
    if len(text) <= MOST_TERMS_BYTES:
        return text
    return text[:400].decode(errors="ignore").encode() + b"... " + hashlib.sha256(text).hexdigest().encode()


def has_failed() -> bool:
    """Whether an uncaught exception ends this process. At a prompt and in a notebook it ends nothing."""
    return getattr(sys, "last_type", None) is not None and not hasattr(sys, "ps1")


_sessions: "weakref.WeakSet[Session]" = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    # A worker that ends by an error says no goodbye: so the daemon tells the others that it died.
    if has_failed():
        return
    for session in list(_sessions):
        session.close()


def open(**options: object) -> Session:
    """Attaches to this node's daemon and blocks until all workers of the job have come, or a signal's handler raises.

    `options` win over the DEFT_* variables, for instance open(job="a", timeout="3s")."""
    texts = [f"{name}={_text(value)}".encode() for name, value in options.items()]
    session = Session(interruptible(lambda: _attached(texts), undo=lib.deft_close))
    _sessions.add(session)
    return session


def _attached(texts: list[bytes]) -> c_void_p:
    given = (c_char_p * (len(texts) + 1))(*texts, None)
    handle = c_void_p()
    call(lib.deft_open, ctypes.cast(given, ctypes.POINTER(c_char_p)), byref(handle))
    return handle


def _text(value: object) -> str:
    return ("on" if value else "off") if isinstance(value, bool) else str(value)
