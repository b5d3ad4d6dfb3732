"""Follows the storages that a step's operations allocate, until they are freed.

    allocations = Allocations(device, shapes_of_parameters, samples)
    with AllocationMode(allocations, device): ...       # the operations of a step
    allocations.move_to(position)                       # meanwhile: the step goes on
    allocations.amounts(last)                           # what lived from which position to which, as deft.Amount

What an operation allocates and frees by itself counts in its position, unless somebody profiles the process. What the
allocator keeps is not seen.
"""

import contextlib
import weakref
from collections import defaultdict

from deft.step_memory import ACTIVATIONS, GRADIENTS, NO_LAYER, TEMPORARY, Amount

import torch
from torch.utils._python_dispatch import TorchDispatchMode


def tensors_in(value):
    """The tensors in nested lists, tuples and dicts."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, dict):
        yield from tensors_in(tuple(value.values()))


def storage_of(tensor):
    """None: it has none, such as a sparse one."""
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return None


class _Storage:
    """A storage that is alive."""

    __slots__ = ("begin", "bytes", "growing", "input_of", "part", "reference")

    def __init__(self, part, begin, size, growing):
        self.part, self.begin, self.bytes, self.growing = part, begin, size, growing
        self.input_of = NO_LAYER
        self.reference = None


class Allocations:
    """`shapes` of parameters: a gradient does not grow with the batch. `samples`: of the batch; 0: not known."""

    def __init__(self, device, shapes, samples):
        self._device = device
        self._shapes = shapes | {tuple(reversed(shape)) for shape in shapes}
        self._samples = samples
        self._alive = {}  # by address
        self._ended = defaultdict(lambda: [0, 0])  # by part, begin, end and input_of: bytes, and those that grow
        self._now = [0, 0]
        self._peaks = {}  # by position: bytes, and those that grow
        self.position = 0

    def restart(self):
        """A new step begins; what is alive was there before."""
        self._ended.clear()
        self._peaks.clear()
        self.position = 0
        for storage in self._alive.values():
            storage.begin = 0
            storage.input_of = NO_LAYER

    def move_to(self, position):
        """Backwards is no way: layers whose backward is out of order count where the step has come to."""
        while self.position < position:
            self.position += 1
            self._peaks[self.position] = tuple(self._now)

    def made(self, tensor, part=None):
        """An operation has made this tensor; or it exists, and is of this part."""
        storage = storage_of(tensor)
        if storage is None or storage.device != self._device or not storage.nbytes():
            return
        address = storage._cdata
        known = self._alive.get(address)
        if known is None:
            size = storage.nbytes()
            known = _Storage(part or self._part_of(tensor), self.position, size, size if self.grows(tensor) else 0)
            known.reference = weakref.ref(storage, lambda _: self._freed(address))
            self._alive[address] = known
            self._count(known.bytes, known.growing)
        elif part is not None:
            known.part = part
        elif known.bytes != storage.nbytes():  # it was resized
            more = storage.nbytes() - known.bytes
            known.bytes += more
            known.growing += more if known.growing else 0
            self._count(more, more if known.growing else 0)

    def note_within(self, most, grows):
        """Within an operation `most` bytes were allocated. What it has made is noted already; does the rest grow?"""
        more = most - self._now[0]
        if most > self._peaks.get(self.position, (0, 0))[0]:
            self._peaks[self.position] = (most, self._now[1] + (more if grows else 0))

    @property
    def now(self):
        """The bytes that are allocated."""
        return self._now[0]

    def note_inputs(self, values, layer):
        """`layer` is the last so far that takes them as its input."""
        for tensor in tensors_in(values):
            storage = storage_of(tensor)
            known = None if storage is None else self._alive.get(storage._cdata)
            if known is not None:
                known.input_of = layer

    def amounts(self, last):
        """Of the step, which ended in position `last`."""
        ended = defaultdict(lambda: [0, 0], {key: list(sizes) for key, sizes in self._ended.items()})
        for storage in self._alive.values():
            _add(ended[(storage.part, storage.begin, last, storage.input_of)], storage.bytes, storage.growing)
        through = _through(ended, last)
        lasting = [Amount(part, begin, end, layer, *sizes) for (part, begin, end, layer), sizes in ended.items()]
        temporary = []
        for position, (size, growing) in self._peaks.items():
            size = size - through[position][0]
            growing = min(max(growing - through[position][1], 0), size)
            if size > 0 and position < last:
                temporary.append(Amount(TEMPORARY, position, position, NO_LAYER, size, growing))
        return lasting + temporary

    def _freed(self, address):
        storage = self._alive.pop(address)
        self._count(-storage.bytes, -storage.growing)
        if storage.begin < self.position:
            key = (storage.part, storage.begin, self.position, storage.input_of)
            _add(self._ended[key], storage.bytes, storage.growing)

    def _count(self, size, growing):
        _add(self._now, size, growing)
        if size > 0 and self._now[0] > self._peaks.get(self.position, (0, 0))[0]:
            self._peaks[self.position] = tuple(self._now)

    def _part_of(self, tensor):
        return GRADIENTS if self.position and tuple(tensor.shape) in self._shapes else ACTIVATIONS

    def grows(self, tensor):
        """Whether it grows with the batch."""
        shape = tuple(tensor.shape)
        if not shape or not self._samples or shape in self._shapes:
            return False
        return shape[0] % self._samples == 0


def _add(sums, size, growing):
    sums[0] += size
    sums[1] += growing


def _through(ended, last):
    """By position: the bytes that were there before and after it."""
    changes = [[0, 0] for _ in range(last + 2)]
    for (_, begin, end, _), (size, growing) in ended.items():
        if begin + 1 < end:
            _add(changes[begin + 1], size, growing)
            _add(changes[end], -size, -growing)
    through, now = [], [0, 0]
    for change in changes:
        _add(now, *change)
        through.append(tuple(now))
    return through


class OperationMemory:
    """Around an operation: what it allocates, block by block, by torch's own profiler if that is free."""

    def __init__(self, device):
        self._usage = "cpu_memory_usage" if device.type == "cpu" else "cuda_memory_usage"
        self._runs = False
        self._events = []
        self._config = None
        with contextlib.suppress(AttributeError, ImportError, TypeError):  # of another version of torch
            from torch._C._profiler import ProfilerConfig, ProfilerState, _ExperimentalConfig

            torch._C._autograd._disable_profiler_legacy  # noqa: B018
            self._config = ProfilerConfig(ProfilerState.CPU, False, True, False, False, False, _ExperimentalConfig())

    def __enter__(self):
        self._runs = self._config is not None and not torch.autograd._profiler_enabled()
        if self._runs:
            torch._C._autograd._enable_profiler_legacy(self._config)

    def __exit__(self, *_):
        self._events = torch._C._autograd._disable_profiler_legacy() if self._runs else []

    def most(self):
        """The most bytes at a time that were allocated since it began; 0: not known."""
        now = most = 0
        for event in (event for thread in self._events for event in thread if event.kind() == "memory_alloc"):
            now += getattr(event, self._usage)()
            most = max(most, now)
        self._events = []
        return most


class AllocationMode(TorchDispatchMode):
    """Shows each operation's results to the allocations."""

    supports_higher_order_operators = True  # otherwise torch refuses them

    def __init__(self, allocations, device):
        super().__init__()
        self._allocations = allocations
        self._operation = OperationMemory(device)

    def __torch_dispatch__(self, function, _types, args=(), kwargs=None):
        before = self._allocations.now
        with self._operation:
            result = function(*args, **(kwargs or {}))
        self._note_made(result, args, kwargs)
        grows = any(self._allocations.grows(tensor) for tensor in tensors_in((args, kwargs)))
        self._allocations.note_within(before + self._operation.most(), grows)
        return result

    def _note_made(self, result, args, kwargs):
        given = {id(tensor) for tensor in tensors_in((args, kwargs))}
        known = None  # storages that were there before
        for tensor in tensors_in(result):
            if id(tensor) in given:
                continue
            if known is None:
                storages = (storage_of(one) for one in tensors_in((args, kwargs)))
                known = {storage._cdata for storage in storages if storage is not None}
            storage = storage_of(tensor)
            if storage is not None and storage._cdata not in known:
                self._allocations.made(tensor)
