"""How gradients get from a GPU into the arena and back, on a model of a GPU whose streams run as late as they may."""

import contextlib
import threading
import types

import deft
import pytest
import torch
from deft.gradient_round import Phase


@pytest.fixture(scope="module")
def device():
    from deft.torch import device

    return device


class Event:
    """Passes when the test says so."""

    def __init__(self):
        self.passed = threading.Event()

    def synchronize(self):
        assert self.passed.wait(60)


def test_a_gradient_is_handed_over_when_the_gpu_has_written_it_and_not_before(device):
    events, handed = [Event(), Event()], []
    arrived = threading.Semaphore(0)
    waiting = iter(events)

    def ready(*arguments):
        handed.append((arguments, [event.passed.is_set() for event in events]))
        arrived.release()

    handover = device.Handover(lambda: next(waiting), None)
    handover.once_written(ready, 3, 1, 0, 0)
    handover.once_written(ready, 2, 1, 0, 0)
    events[1].passed.set()  # the second copy cannot overtake the first: they share a stream
    assert not arrived.acquire(timeout=0.1)
    events[0].passed.set()
    handover.drain()
    assert handed == [((3, 1, 0, 0), [True, True]), ((2, 1, 0, 0), [True, True])]
    handover.close()


def test_draining_waits_for_the_last_one(device):
    event, handed = Event(), []
    handover = device.Handover(lambda: event, None)
    handover.once_written(lambda *arguments: handed.append(arguments), 0, 1, 7)
    threading.Timer(0.1, event.passed.set).start()
    handover.drain()
    assert handed == [(0, 1, 7)]
    handover.close()


def test_what_goes_wrong_is_raised_where_it_is_waited_for(device):
    def ready(*_):
        raise RuntimeError("rank 3 died")

    event = Event()
    event.passed.set()
    handover = device.Handover(lambda: event, None)
    handover.once_written(ready, 0, 1, 0)
    with pytest.raises(RuntimeError, match="rank 3 died"):
        handover.drain()
    with pytest.raises(RuntimeError, match="rank 3 died"):
        handover.once_written(ready, 1, 1, 0)
    handover.close()


class Session:
    """Declares groups in host memory and notes what it is told."""

    nodes = 2

    def __init__(self):
        self.told = []

    def on_device(self):
        return False

    def declare(self, _name, tensors, slots):
        return Group(self.told, sum(tensor.shape[0] for tensor in tensors) * slots)

    def stage(self, stage, step):
        self.told.append((stage, step))


class Group:
    def __init__(self, told, elements):
        self._told, self._memory = told, torch.zeros(elements)

    def arena_bytes(self):
        return self._memory.nbytes

    def bytes(self, _place):
        return self._memory.nbytes

    def data(self, _place, _slot=0):
        return self._memory.data_ptr()

    def ready(self, *arguments):
        self._told.append(arguments)


def test_a_stage_begins_when_the_gpu_comes_there_and_not_when_the_host_enqueues_it(device, monkeypatch):
    from deft.torch.arena import Arena
    from deft.torch.forward_overlap import StageReports

    gpu, session = Gpu(), Session()
    monkeypatch.setattr(torch, "cuda", gpu)
    for function in (device.HostStaging.__init__, device.event_on):
        monkeypatch.setattr(function, "__defaults__", (gpu,))
    arena = Arena(session, "net", [("w", torch.float32, (2,), 0, None)], device="cuda:0")
    done, reached, gone_on = [], threading.Event(), threading.Event()

    def forward():
        reached.set()
        assert gone_on.wait(60)
        done.append("forward")

    session.reporters = types.SimpleNamespace(add=lambda _: None, step_begins=lambda _: True)
    process_set = types.SimpleNamespace(session=lambda: session)
    schedule, a_round = types.SimpleNamespace(step=3), types.SimpleNamespace(phase=Phase.IDLE)
    buffer = types.SimpleNamespace(arena=arena, process_set=process_set, schedule=schedule, round=a_round)
    stages = StageReports(buffer, types.SimpleNamespace(forward_begins=lambda *_: None))
    stages.forward_begins(())
    gpu.compute.enqueue(forward)
    stages.backward_begins()
    arena.staging.fetch(gpu.tensor(1.0, 2.0), gpu.tensor(0.0, 0.0))
    arena.ready(0, 1, 3)
    assert reached.wait(60)
    assert session.told == [(deft.FORWARD, 3)], "the GPU has not run the forward yet"
    gone_on.set()
    arena.drain()
    assert session.told == [(deft.FORWARD, 3), (deft.BACKWARD, 3), (0, 1, 3)] and done == ["forward"]
    arena.release()


class Stream:
    """Work that runs only when somebody waits for it, in order: the latest that a GPU may run it."""

    def __init__(self):
        self.queue = []

    def enqueue(self, work):
        self.queue.append(work)

    def wait_stream(self, other):
        self.enqueue(other.record_event().synchronize)

    def record_event(self, event=None):
        event = Recorded() if event is None else event
        event.at(self, len(self.queue))
        return event

    def synchronize(self):
        self.record_event().synchronize()

    def run_until(self, count):
        while count > 0 and self.queue:
            self.queue.pop(0)()
            count -= 1
        return count


class Recorded:
    """Passes when all that was enqueued before it has run."""

    def __init__(self, blocking=False):
        self.blocking = blocking

    def at(self, stream, count):
        self._stream, self._after = stream, list(stream.queue[:count])

    def synchronize(self):
        while any(work in self._stream.queue for work in self._after):
            self._stream.run_until(1)


class Gpu:
    """As much of torch.cuda as staging uses. Memory that the host may access while it is pinned."""

    Event = Recorded

    def __init__(self, code=0):
        self.compute, self.entered, self.code = Stream(), None, code
        self.pinned = set()

    def Stream(self, _device):
        return Stream()

    def current_stream(self, _device=None):
        return self.entered or self.compute

    @contextlib.contextmanager
    def stream(self, stream):
        before, self.entered = self.entered, stream
        yield
        self.entered = before

    def cudart(self):
        return self

    def cudaHostRegister(self, address, size, _flags):
        if self.code == 0:
            self.pinned.add((address, size))
        return self.code

    def cudaHostUnregister(self, address):
        self.pinned = {(at, size) for at, size in self.pinned if at != address}

    def tensor(self, *values):
        tensor = torch.tensor(values).as_subclass(Lazy)
        tensor.gpu, tensor.held = self, []
        return tensor

    def write(self, tensor, *values):
        """What a backward does: a kernel on the compute stream writes the gradient."""
        values = torch.tensor(values)
        self.compute.enqueue(lambda: torch.Tensor.copy_(tensor, values))

    def reuse(self, tensor):
        """The allocator gives the memory to another tensor: at once, or when the streams that hold it are done."""

        def overwrite():
            torch.Tensor.fill_(tensor, -1)

        if not tensor.held:
            self.compute.enqueue(overwrite)
        for stream in tensor.held:
            self.compute.enqueue(stream.record_event().synchronize)
        if tensor.held:
            self.compute.enqueue(overwrite)


class Lazy(torch.Tensor):
    """Memory whose copies run on the current stream of the model."""

    def copy_(self, source, non_blocking=False):
        assert non_blocking, "the host would wait for the GPU"
        self.gpu.current_stream().enqueue(lambda: torch.Tensor.copy_(self, source))
        return self

    def record_stream(self, stream):
        self.held.append(stream)


def values(tensor):
    return torch.Tensor.tolist(tensor.as_subclass(torch.Tensor))


def test_the_event_of_a_copy_passes_when_the_arena_holds_what_the_backward_wrote(device):
    gpu = Gpu()
    staging = device.HostStaging(4096, 64, "cuda:0", gpu)
    grad, view = gpu.tensor(0.0, 0.0), gpu.tensor(0.0, 0.0)
    gpu.write(grad, 1.0, 2.0)  # enqueued, not run yet
    staging.fetch(grad, view)
    event = staging.record_event()
    assert values(view) == [0, 0], "the host has waited for the GPU"
    event.synchronize()
    assert values(view) == [1, 2]
    assert event.blocking, "whoever waits spins on a core of training"


def test_memory_of_a_gradient_is_not_used_again_before_it_is_copied(device):
    gpu = Gpu()
    staging = device.HostStaging(4096, 64, "cuda:0", gpu)
    grad, view = gpu.tensor(0.0, 0.0), gpu.tensor(0.0, 0.0)
    gpu.write(grad, 3.0, 4.0)
    staging.fetch(grad, view)
    event = staging.record_event()
    gpu.reuse(grad)
    gpu.compute.synchronize()  # compute runs as far as it may before the copy's own event is waited for
    event.synchronize()
    assert values(view) == [3, 4]
    assert values(grad) == [-1, -1]


def test_an_average_is_on_the_gpu_before_the_kernels_that_use_it(device):
    gpu = Gpu()
    staging = device.HostStaging(4096, 64, "cuda:0", gpu)
    view, grad, seen = torch.tensor([5.0, 6.0]), gpu.tensor(0.0, 0.0), []
    staging.bring(view, grad)
    gpu.compute.enqueue(lambda: seen.append(values(grad)))  # the optimizer's kernel
    gpu.compute.synchronize()
    assert seen == [[5, 6]]


@pytest.mark.parametrize("direction", ["to the arena", "to the GPU"])
def test_the_host_writes_to_the_arena_only_after_the_copies_in_either_direction(device, direction):
    gpu = Gpu()
    staging = device.HostStaging(4096, 64, "cuda:0", gpu)
    arena, memory = gpu.tensor(1.0, 1.0), gpu.tensor(7.0, 7.0)
    if direction == "to the arena":
        staging.fetch(memory, arena)
    else:
        staging.bring(arena, memory)
    staging.settle()
    torch.Tensor.fill_(arena, 0)  # what the host does next
    gpu.compute.synchronize()
    staging.stream.synchronize()
    assert values(arena) == [0, 0], "a copy came after the host's write"
    assert values(memory) == ([7, 7] if direction == "to the arena" else [1, 1])


def test_the_arena_is_pinned_while_copies_may_run_and_no_longer(device):
    gpu = Gpu()
    staging = device.HostStaging(4096, 64, "cuda:0", gpu)
    assert gpu.pinned == {(4096, 64)}
    view = gpu.tensor(0.0)
    gpu.write(grad := gpu.tensor(0.0), 2.0)
    staging.fetch(grad, view)
    staging.close()
    assert values(view) == [2] and gpu.pinned == set()


def test_memory_that_cannot_be_pinned_is_said(device):
    with pytest.raises(RuntimeError, match=r"cannot pin the 64 bytes.*ulimit -l"):
        device.HostStaging(4096, 64, "cuda:0", Gpu(code=2))


def test_parameters_on_several_devices_are_refused(device):
    cpu, meta = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(2, device="meta"))
    assert device.device_of([cpu]) is None
    assert device.device_of([meta]) == torch.device("meta")
    with pytest.raises(ValueError, match="several devices"):
        device.device_of([cpu, meta])
