"""How gradients get from a GPU into the arena: the order of what is asked for, by stand-ins for torch.cuda."""

import contextlib
import threading

import pytest
import torch


@pytest.fixture(scope="module")
def device():
    from deft.torch import device

    return device


class Event:
    """Passes when the test says so."""

    def __init__(self):
        self.passed = threading.Event()

    def synchronize(self):
        assert self.passed.wait(10)


def test_a_gradient_is_handed_over_when_the_gpu_has_written_it_and_not_before(device):
    events, handed = [Event(), Event()], []
    arrived = threading.Semaphore(0)
    waiting = iter(events)

    def ready(*arguments):
        handed.append((arguments, [event.passed.is_set() for event in events]))
        arrived.release()

    handover = device.Handover(ready, lambda: next(waiting))
    handover.ready(3, 1, 0, 0)
    handover.ready(2, 1, 0, 0)
    events[1].passed.set()  # the second copy cannot overtake the first: they share a stream
    assert not arrived.acquire(timeout=0.1)
    events[0].passed.set()
    handover.drain()
    assert handed == [((3, 1, 0, 0), [True, True]), ((2, 1, 0, 0), [True, True])]
    handover.close()


def test_draining_waits_for_the_last_one(device):
    event, handed = Event(), []
    handover = device.Handover(lambda *arguments: handed.append(arguments), lambda: event)
    handover.ready(0, 1, 7)
    threading.Timer(0.1, event.passed.set).start()
    handover.drain()
    assert handed == [(0, 1, 7)]
    handover.close()


def test_what_goes_wrong_is_raised_where_it_is_waited_for(device):
    def ready(*_):
        raise RuntimeError("rank 3 died")

    event = Event()
    event.passed.set()
    handover = device.Handover(ready, lambda: event)
    handover.ready(0, 1, 0)
    with pytest.raises(RuntimeError, match="rank 3 died"):
        handover.drain()
    with pytest.raises(RuntimeError, match="rank 3 died"):
        handover.ready(1, 1, 0)
    handover.close()


class Stream:
    """Notes what is asked of it."""

    def __init__(self, log, name):
        self.log, self.name = log, name

    def wait_stream(self, other):
        self.log.append(f"{self.name} waits for {other.name}")

    def synchronize(self):
        self.log.append(f"host waits for {self.name}")

    def record_event(self, event=None):
        stream = self

        class Recorded:
            def synchronize(self):
                stream.log.append(f"host waits for an event of {stream.name}")

        self.log.append(f"event on {self.name}" + (", to sleep for" if event == "blocking" else ""))
        return Recorded()


class Cuda:
    """As much of torch.cuda as staging uses."""

    def __init__(self, code=0):
        self.log, self.code = [], code
        self.compute = Stream(self.log, "compute")

    def Stream(self, _device):
        return Stream(self.log, "copies")

    def current_stream(self, _device):
        return self.compute

    def Event(self, blocking=False):
        return "blocking" if blocking else "spinning"

    @contextlib.contextmanager
    def stream(self, stream):
        self.log.append(f"on {stream.name}:")
        yield

    def cudart(self):
        return self

    def cudaHostRegister(self, address, size, _flags):
        self.log.append(f"pin {address} {size}")
        return self.code

    def cudaHostUnregister(self, address):
        self.log.append(f"unpin {address}")


class Grad(torch.Tensor):
    """A gradient that notes for which stream its memory is kept."""

    def record_stream(self, stream):
        stream.log.append(f"kept for {stream.name}")


def test_a_copy_to_the_arena_waits_for_the_backward_on_a_stream_of_its_own(device):
    cuda = Cuda()
    staging = device.HostStaging(4096, 64, "cuda:0", cuda)
    grad, view = torch.ones(4).as_subclass(Grad), torch.zeros(4)
    staging.fetch(grad, view)
    staging.record_event()
    assert cuda.log == [
        "pin 4096 64",
        "copies waits for compute",
        "on copies:",
        "kept for copies",
        "event on copies, to sleep for",
    ]
    assert view.tolist() == [1, 1, 1, 1]


def test_the_host_writes_to_the_arena_only_when_no_copy_is_under_way_in_either_direction(device):
    cuda = Cuda()
    staging = device.HostStaging(4096, 64, "cuda:0", cuda)
    grad = torch.zeros(4)
    staging.bring(torch.ones(4), grad)
    assert grad.tolist() == [1, 1, 1, 1]
    del cuda.log[:]
    staging.settle()
    assert cuda.log == ["host waits for copies", "host waits for an event of compute"]
    staging.close()
    assert cuda.log[-1] == "unpin 4096"


def test_memory_that_cannot_be_pinned_is_said(device):
    with pytest.raises(RuntimeError, match=r"cannot pin the 64 bytes.*ulimit -l"):
        device.HostStaging(4096, 64, "cuda:0", Cuda(code=2))


def test_parameters_on_several_devices_are_refused(device):
    cpu, meta = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(2, device="meta"))
    assert device.device_of([cpu]) is None
    assert device.device_of([meta]) == torch.device("meta")
    with pytest.raises(ValueError, match="several devices"):
        device.device_of([cpu, meta])
