"""The arena as torch tensors: in each slot one view for each declared tensor.

No view is a torch view of another. So each has a version counter of its own, which shows a later change of its
gradient.
"""

import contextlib
import ctypes
import functools
import logging
import weakref

import deft
from deft import DeftError
from deft.step_start import StepStart

import torch

from .device import Handover, HostStaging, device_arena, event_on
from .dtypes import TO_DEFT

log = logging.getLogger("deft.torch")


class Arena:
    """A declared group of tensors, in the order in which backward produces them.

    `staging` is a HostStaging if gradients lie on a GPU and the arena does not.
    """

    def __init__(self, session, name, specs, slots=1, device=None, begins_together=False):
        """`specs`: (name, dtype, shape, forward position, codec) of each tensor, in production order. `device`: their
        GPU. `begins_together`: no gradient of a step travels before all ranks have called begin()."""
        self.count = len(specs)
        self.nodes = session.nodes
        self._session = session
        self.staging = self._handover = self._memory = self._start = None
        self.group, self.views, self.ready = (), [[] for _ in range(slots)], None
        if not specs:  # all gradients are sparse: nothing travels through the arena
            return
        self.group = session.declare(
            name,
            [
                deft.Tensor(tensor, TO_DEFT[dtype], tuple(shape), position, codec)
                for tensor, dtype, shape, position, codec in specs
            ],
            slots=slots,
        )
        if device is not None and session.on_device():
            self._memory = device_arena(self.group, device)
        elif device is not None:
            self.staging = HostStaging(self.group.data(0), self.group.arena_bytes(), device)
        self.ready = self.group.ready
        if begins_together:
            self._start = StepStart(session, name, self.group.ready)
            self.ready = self._start.ready
        if device is not None:
            self._handover = self._behind(device)
            self.ready = functools.partial(self._handover.once_written, self.ready)
        self.views = [  # by slot and place
            [self._map(place, slot, dtype, shape) for place, (_, dtype, shape, _, _) in enumerate(specs)]
            for slot in range(slots)
        ]

    def _map(self, place, slot, dtype, shape):
        if self._memory is not None:
            begin = self.group.data(place, slot) - self.group.data(0)
            view = torch.empty(0, dtype=dtype, device=self._memory.device)
            # Unlike a slice, this has a version counter of its own.
            return view.set_(self._memory.untyped_storage(), begin // dtype.itemsize, shape)
        memory = (ctypes.c_char * self.group.bytes(place)).from_address(self.group.data(place, slot))
        return torch.frombuffer(memory, dtype=dtype).view(shape)

    def _behind(self, device):
        def reached():
            return event_on(torch.cuda.current_stream(device))

        return Handover(reached if self.staging is None else self.staging.record_event, reached)

    def stage(self, stage, step):
        """Tells the daemon that a stage begins, once the GPU has come there."""
        if self._handover is None:
            self._session.stage(stage, step)
        else:
            self._handover.once_reached(self._session.stage, stage, step)

    def begin(self, step):
        """Comes before the first gradient of a step; it waits for nobody."""
        if self._start is not None:
            self._start.begin(step)

    def wait(self, generation):
        self.drain()
        if self.count:
            self.group.wait(0, self.count, generation)

    def wait_for(self, runs, generation):
        """Waits for some tensors, given as runs of neighbours: (first, count)."""
        self.drain()
        for first, count in runs:
            self.group.wait(first, count, generation)

    def drain(self):
        """Waits until all that was made ready is handed over, and all stages are told."""
        if self._handover is not None:
            self._handover.drain()

    def release(self):
        """Ends what works on the memory of the arena. leave() comes next, when nothing of Deft holds a view."""
        if self._handover is not None:
            self._handover.close()
            self._handover = None
        if self._start is not None:
            self._start.close()
        if self.staging is not None:
            self.staging.close()
            self.staging = None

    def leave(self):
        """Gives the arena back. Views that a script has kept get memory of their own, and so do views of them.

        Then the arena stays until the session ends: an array of numpy's may share the memory of a view."""
        on_host, self._memory = self._memory is None, None  # who keeps a view of device memory keeps the memory
        storages = [weakref.ref(view.untyped_storage()) for views in self.views if on_host for view in views]
        self.views = []
        kept = [storage for reference in storages if (storage := reference()) is not None]
        for storage in kept:
            try:
                storage.share_memory_()  # the one way to move a storage under all tensors that have it
            except RuntimeError as error:
                log.error("a gradient that was kept without clone() cannot be read after the session: %s", error)
        if self.count and not kept:
            with contextlib.suppress(DeftError):  # of a lost job: the memory goes with the session
                self.group.release()
