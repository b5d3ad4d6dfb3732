"""Gradients on a GPU: how they get into the arena and back without making the host wait for the GPU.

READY means that a gradient lies in the arena, but a copy that torch has enqueued has not been made yet. So an event is
recorded behind it, and a thread hands the gradient over when that has passed. The same thread tells when forward and
backward begin on the GPU: the host enqueues them earlier. Two ways:

- Every link of the job reduces device memory (NCCL): the arena lies on the GPU, p.grad becomes a part of it,
  and nothing goes through the host (device_arena).
- Otherwise gradients are copied to the shared arena, which is pinned, on a stream of their own, and back (HostStaging).
"""

import collections
import threading

import torch


class Handover:
    """Makes calls in order, each once the GPU has done what comes before it."""

    def __init__(self, written, reached):
        """`written()` and `reached()` give events with synchronize(): behind all gradients so far in the arena, and
        behind all work of the GPU so far."""
        self._written, self._reached = written, reached
        self._changed = threading.Condition()
        self._queue = collections.deque()
        self._pending = 0
        self._failure = None
        self._ended = False
        self._thread = threading.Thread(target=self._serve, name="deft handover", daemon=True)
        self._thread.start()

    def once_written(self, function, *arguments):
        """The call is made once the arena holds all gradients so far."""
        self._call(self._written(), function, arguments)

    def once_reached(self, function, *arguments):
        """The call is made once the GPU has come to this place in its work."""
        self._call(self._reached(), function, arguments)

    def _call(self, event, function, arguments):
        with self._changed:
            if self._failure is not None:
                raise self._failure
            self._queue.append((event, function, arguments))
            self._pending += 1
            self._changed.notify_all()

    def drain(self):
        """Waits until all calls are made; raises what went wrong."""
        with self._changed:
            self._changed.wait_for(lambda: self._pending == 0 or self._failure is not None)
            if self._failure is not None:
                raise self._failure

    def close(self):
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        self._thread.join()

    def _serve(self):
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._ended)
                if not self._queue:
                    return
                event, function, arguments = self._queue.popleft()
            try:
                event.synchronize()
                function(*arguments)
            except Exception as error:  # told to whoever waits or calls next
                with self._changed:
                    self._failure = error
                    self._changed.notify_all()
                return
            with self._changed:
                self._pending -= 1
                self._changed.notify_all()


def event_on(stream, cuda=torch.cuda):
    """An event behind all work of the GPU so far; who waits for it sleeps, so the core is training's."""
    return stream.record_event(cuda.Event(blocking=True))


class HostStaging:
    """The shared arena beside a GPU: pinned memory, and a stream for the copies to it."""

    def __init__(self, address, size, device, cuda=torch.cuda):
        self.cuda, self.device, self.address = cuda, device, address
        self.stream = cuda.Stream(device)
        self._last = None  # the newest copy back to the GPU
        code = int(cuda.cudart().cudaHostRegister(address, size, 0))
        if code != 0:
            raise RuntimeError(
                f"cudaHostRegister cannot pin the {size} bytes of Deft's arena (error {code}); raise the limit of "
                "locked memory (ulimit -l)"
            )

    def fetch(self, grad, view):
        """Enqueues the copy of `grad`, which has the arena's dtype, to `view`."""
        self.stream.wait_stream(self.cuda.current_stream(self.device))
        with self.cuda.stream(self.stream):
            view.copy_(grad, non_blocking=True)
        grad.record_stream(self.stream)  # its memory is not given to another tensor before that

    def bring(self, view, grad):
        """Enqueues the copy of `view` to `grad`, on the GPU, before whatever uses `grad` there next."""
        grad.copy_(view, non_blocking=True)
        self._last = self.cuda.current_stream(self.device).record_event()

    def record_event(self):
        return event_on(self.stream, self.cuda)

    def settle(self):
        """Waits for all copies: the host may write to the arena."""
        self.stream.synchronize()
        if self._last is not None:
            self._last.synchronize()

    def close(self):
        self.settle()
        self.cuda.cudart().cudaHostUnregister(self.address)


def device_arena(group, device, cuda=torch.cuda):
    """Device memory in the place of the shared arena; gives it, as bytes."""
    memory = torch.zeros(group.arena_bytes(), dtype=torch.uint8, device=device)
    if device.type == "cuda":
        cuda.current_stream(device).synchronize()  # libdeft's links have streams of their own
    group.use_device_arena(memory.data_ptr(), memory)
    return memory


def device_of(params):
    """The one GPU that holds these parameters; None if they are in host memory."""
    devices = {param.device for param in params}
    if all(device.type == "cpu" for device in devices):
        return None
    if len(devices) > 1:
        names = ", ".join(sorted(map(str, devices)))
        raise ValueError(f"the parameters of one optimizer lie on several devices ({names}); put them all on one")
    return devices.pop()
