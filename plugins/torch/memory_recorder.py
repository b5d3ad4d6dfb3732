"""Records the memory of a step, when a trace of the job begins, and only then.

It takes three steps. The first shows what outlives a step, such as the scores that a script keeps in a variable. The
second is recorded. In the third each layer's forward is timed, without the cost of recording.

A layer is a call of a module that owns parameters, and what follows it until the next one begins. Its backward begins
when the gradient of its output is there.
"""

import contextlib
import logging
import time
import weakref

from deft.step_memory import ARENA, GRADIENTS, INPUTS, NO_LAYER, OPTIMIZER, WEIGHTS, Amount, Layer, StepMemory

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode

from .allocations import AllocationMode, Allocations, storage_of, tensors_in
from .compiling import is_compiled

log = logging.getLogger("deft.torch")
_FIRST_STEP = 2  # then the optimizer has its state
_MOST_LAYERS = 4000


class MemoryRecorder:
    """`optimizer`: the user's, whose state counts.

    The model has hooks of a step that is recorded. They must not keep buffer and optimizer alive.
    """

    def __init__(self, buffer, optimizer):
        self._buffer_of = weakref.ref(buffer)
        self._optimizer_of = weakref.ref(optimizer)
        self._seen = 0  # traces
        self._watches = []  # of the steps that are left; the first one goes on
        self._runs = False  # from the forward of a step to the end of step()

    @property
    def _buffer(self):
        return self._buffer_of()

    def forward_begins(self, roots, inputs):
        """The first forward of a step begins, of one of the roots."""
        with self._no_harm():
            self._begin(roots, inputs)

    def _begin(self, roots, inputs):
        if self._runs:  # nobody called step(): there are no steps to be told
            self.release()
        _leave_modes()
        if not self._watches and self._is_wanted(roots):
            places = {id(gradient.param): gradient.place for gradient in self._buffer.gradients}
            memory = _MemoryWatch(roots, places, self._no_harm)
            self._watches = [memory, memory, _TimeWatch(roots, places, self._no_harm, memory)]
        if self._watches:
            self._runs = True
            self._watches[0].begin(self._known(roots), inputs)

    def update_begins(self):
        if self._runs:
            with self._no_harm():
                self._watches[0].update_begins()

    def update_ends(self):
        if self._runs:
            self._runs = False
            with self._no_harm():
                watch = self._watches.pop(0)
                watch.end()
                if not self._watches:
                    self._tell(watch.memory, watch.forward_ns())

    def release(self):
        if self._runs:
            self._runs = False
            self._watches[0].end()
        self._watches = []

    @contextlib.contextmanager
    def _no_harm(self):
        """A model that cannot be recorded trains on."""
        try:
            yield
        except Exception as error:
            log.warning("the trace does not tell this worker's memory: %s: %s", type(error).__name__, error)
            self.release()

    def _is_wanted(self, roots):
        arena, step = self._buffer.arena, self._buffer.schedule.step
        if arena is None or not arena.count or step < _FIRST_STEP:
            return False
        traces = self._buffer.process_set.session().traces()
        if traces == self._seen:
            return False
        self._seen = traces
        foreign = _get_current_dispatch_mode() is not None
        compiled = any(is_compiled(module) for root in roots for module in root.modules())
        if foreign or compiled:
            log.info("the trace does not tell this worker's memory: %s", "its model is compiled" if compiled else
                     "another dispatch mode of torch is on")  # fmt: skip
        return not foreign and not compiled

    def _known(self, roots):
        """Tensors by their part, as they are before a step."""
        state = [value for one in self._optimizer_of().__dict__["state"].values() for value in tensors_in(one)]
        params = [gradient.param for gradient in self._buffer.gradients]
        own = [tensor for root in roots for tensor in (*root.parameters(), *root.buffers())]
        return {
            WEIGHTS: params + own,
            OPTIMIZER: state,
            ARENA: [view for slot in self._buffer.arena.views for view in slot],
        }

    def _tell(self, memory, forward_ns):
        if len(forward_ns) != len(memory.tensors):  # the steps differ
            forward_ns = [0] * len(memory.tensors)
        layers = [Layer(tensor, took) for tensor, took in zip(memory.tensors, forward_ns, strict=True)]
        step = self._buffer.schedule.step
        self._buffer.arena.group.record_memory(StepMemory(step, memory.samples, layers, memory.amounts))


class _LayerWatch:
    """Hooks on the layers for some steps: within no_harm(), it calls layer_begins(layer, inputs) and the like."""

    def __init__(self, roots, places, no_harm):
        self._no_harm = no_harm
        self.tensors = []  # [layer]: its first in the order of backward
        self._hooks = []
        self._roots, self._places = roots, places
        self._open = []  # layers whose forward runs; None: one that is not watched
        self._in_backward = False

    def begin(self, known, inputs):
        self.tensors, self._open, self._in_backward = [], [], False
        for root in self._roots:
            self._hooks.append(root.register_forward_hook(self._root_ends))
            for module in root.modules():
                places = [self._places[id(p)] for p in module.parameters(recurse=False) if id(p) in self._places]
                if places:
                    self._watch(module, min(places))

    def end(self):
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _watch(self, module, place):
        def begins(_module, args, kwargs):
            # Inside a backward a forward is repeated. After one, it is that of a further pass.
            watched = not self._in_backward and torch._C._current_graph_task_id() == -1 and torch.is_grad_enabled()
            if not watched or len(self.tensors) == _MOST_LAYERS:
                self._open.append(None)
                return
            self._open.append(len(self.tensors))
            self.tensors.append(place)
            with self._no_harm():
                self.layer_begins(len(self.tensors) - 1, (args, kwargs))

        def ends(_module, _args, output):
            layer = self._open.pop() if self._open else None
            if layer is not None:
                self._await_backward(layer, output)

        self._hooks.append(module.register_forward_pre_hook(begins, with_kwargs=True))
        self._hooks.append(module.register_forward_hook(ends))

    def _root_ends(self, _module, _args, _output):
        if not self._in_backward and torch._C._current_graph_task_id() == -1:
            with self._no_harm():
                self.forward_ends()

    def _await_backward(self, layer, output):
        def begins(_gradient):
            self._in_backward = True
            with self._no_harm():
                self.backward_begins(layer)

        output = next((tensor for tensor in tensors_in(output) if tensor.requires_grad), None)
        if output is not None:
            self._hooks.append(output.register_hook(begins))


_entered = []  # modes that are to be left


def _leave_modes():
    """A mode that somebody has entered later is above, and goes first."""
    while _entered and _get_current_dispatch_mode() is _entered[-1]:
        _entered.pop().__exit__(None, None, None)


class _MemoryWatch(_LayerWatch):
    """A step's `amounts`, once it has ended. begin() to end() twice: the second step counts."""

    def __init__(self, roots, places, no_harm):
        super().__init__(roots, places, no_harm)
        self.samples = 0
        self.amounts = []
        self._allocations = self._mode = None

    def begin(self, known, inputs):
        super().begin(known, inputs)
        batch = next((tensor for tensor in tensors_in(inputs) if tensor.dim() > 0), None)
        self.samples = 0 if batch is None else batch.shape[0]
        device = known[WEIGHTS][0].device
        if self._allocations is None:
            self._allocations = Allocations(device, {tuple(p.shape) for p in known[WEIGHTS]}, self.samples)
        self._allocations.restart()
        self._lasting = _lasting(known, device)
        for tensor in tensors_in(inputs):
            self._allocations.made(tensor, INPUTS)
        in_arena = {storage_of(view)._cdata for view in known[ARENA]}
        for param in known[WEIGHTS]:
            if param.grad is not None and storage_of(param.grad)._cdata not in in_arena:
                self._allocations.made(param.grad, GRADIENTS)
        self._mode = AllocationMode(self._allocations, device)
        self._mode.__enter__()

    def end(self):
        super().end()
        if self._mode is None:
            return
        _entered.append(self._mode)
        _leave_modes()
        self._mode = None
        last = 2 * len(self.tensors) + 3
        self._allocations.move_to(last)
        lasting = [Amount(part, 0, last, NO_LAYER, size, 0) for part, size in self._lasting.items() if size]
        self.amounts = lasting + self._allocations.amounts(last)

    def layer_begins(self, layer, inputs):
        self._allocations.move_to(layer + 1)
        self._allocations.note_inputs(inputs, layer)

    def forward_ends(self):
        self._allocations.move_to(len(self.tensors) + 1)

    def backward_begins(self, layer):
        self._allocations.move_to(2 * len(self.tensors) + 1 - layer)

    def update_begins(self):
        self._allocations.move_to(2 * len(self.tensors) + 2)


def _lasting(known, device):
    """The bytes of each part, each storage once, on this device."""
    sizes, seen = {}, set()
    for part, tensors in known.items():
        sizes[part] = 0
        for tensor in tensors:
            storage = storage_of(tensor)
            if storage is None or storage.device != device or storage._cdata in seen:
                continue
            seen.add(storage._cdata)
            sizes[part] += storage.nbytes()
    return sizes


class _TimeWatch(_LayerWatch):
    """How long each layer's forward takes: from its begin to the arrival of the next one, which may wait then."""

    def __init__(self, roots, places, no_harm, memory):
        super().__init__(roots, places, no_harm)
        self.memory = memory  # the watch of the steps before

    def begin(self, known, inputs):
        self._clock = _Clock(known[WEIGHTS][0].device)
        self._arrived, self._began = [], []
        super().begin(known, inputs)

    def _watch(self, module, place):
        def arrives(_module, _args):
            if not self._in_backward:
                self._arrival = self._clock.now()

        self._hooks.append(module.register_forward_pre_hook(arrives, prepend=True))
        super()._watch(module, place)

    def layer_begins(self, layer, inputs):
        self._arrived.append(self._arrival)
        self._began.append(self._clock.now())

    def forward_ends(self):
        self._forward_ended = self._clock.now()

    def backward_begins(self, layer):
        pass

    def update_begins(self):
        pass

    def forward_ns(self):
        ends = [*self._arrived[1:], self._forward_ended] if self._began else []
        return [self._clock.between(begin, end) for begin, end in zip(self._began, ends, strict=True)]


class _Clock:
    """The time of what runs on a device."""

    def __init__(self, device):
        self._device = device

    def now(self):
        if self._device.type != "cuda":
            return time.perf_counter_ns()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def between(self, begin, end):
        """Nanoseconds."""
        if self._device.type != "cuda":
            return max(end - begin, 0)
        end.synchronize()
        return max(int(begin.elapsed_time(end) * 1e6), 0)
