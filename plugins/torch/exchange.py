"""Gradients to averages: the hooks of one optimizer, and the generations that they fill.

A generation begins with the first gradient that a hook hands over and is complete when every parameter has been
handed over: in the hooks, or for parameters without a gradient at the end of that backward. Then it is waited for: at
the end of the backward (the barrier: p.grad holds the averages when backward() returns), or later where updates are
deferred.

The first backward only watches: it finds the order in which gradients appear and which of them are sparse. Rank 0's
findings are declared for all, and from then on each hook hands its gradient over at once.
"""

import enum
import sys
import weakref
from typing import NamedTuple

import deft

import torch

from .arena import Arena
from .device import device_of
from .replicate import broadcast_object
from .sparse import exchange_sparse
from .world import session

current_task = torch._C._current_graph_task_id
_queue_callback = torch.autograd.Variable._execution_engine.queue_callback
_PYTHON_BACKWARD = torch.autograd.function.BackwardCFunction.apply.__code__

_FREE, HANDED, _AVERAGED = 0, 1, 2
_AFTER_WAIT = bytes([_FREE, _AVERAGED, _AVERAGED]) + bytes(253)


class Phase(enum.Enum):
    IDLE = 0  # no gradient of the next generation yet
    OPEN = 1  # some are handed over
    HANDED = 2  # all are handed over
    AVERAGED = 3  # all are back


class Due(NamedTuple):
    """An average to be applied: the generation to wait for, where it lies, and what it is multiplied by."""

    number: int
    views: list
    factor: float


class Exchange:
    """The gradients of one optimizer.

    `name` is the same on all ranks. `scale` is applied on the way in and `rescale` on the way back. `passes` backward
    passes are accumulated before a gradient is handed over.
    """

    def __init__(self, name, gradients, scale, rescale, passes, sparse_as_dense=False):
        self.name = name
        self.gradients = gradients  # in forward order, until the first backward has shown the order of production
        self.scale = scale
        self.rescale = rescale
        self.passes = passes
        self.sparse_as_dense = sparse_as_dense
        self.sparse = []
        self.arena = None
        self.slots = 1
        self._takers = []  # gradients that need work after the wait
        self._withheld = set()  # had none when the generation was completed, and p.grad shows none until the wait
        self.step = 0
        self.phase = Phase.IDLE
        self.blocking = True  # wait at the end of backward
        self.watches = True  # note changes of the averages until step()
        self.reports_stages = False
        self.before_backward = lambda: None  # called when a generation's first gradient appears
        self.versions = None  # what each p.grad was when it was handed over, to notice changes
        self._task = -1
        self.forward_told = False
        self._observed = []  # gradients in order of appearance, while watching
        self._reset_marks()
        self._hooks = [g.param.register_post_accumulate_grad_hook(self._observer(g)) for g in gradients]

    # ---- what the optimizer calls

    def synchronize(self):
        """Completes the generation: every p.grad holds its average afterwards."""
        if self.phase is Phase.AVERAGED:
            return
        self.complete()
        self.wait()

    def complete(self):
        """Hands over what no hook has handed over in this generation."""
        if self.phase is Phase.HANDED:
            return
        if self.phase is not Phase.OPEN:
            self.before_backward()
        if self.arena is None:
            self._declare()
        for gradient in self._unfired():
            self._hand_in(gradient)
        for gradient in self._observed:  # only in the first generation: they had a gradient, if no hook for it
            if not gradient.sparse:
                self._marks[gradient.place] = HANDED
        self._observed = []
        self.phase = Phase.HANDED
        if not self.blocking:
            self.versions = self._versions_now()

    def _hand_in(self, gradient):
        if not self.blocking and gradient.param.grad is None:
            self._withheld.add(gradient)
        gradient.put(self.scale, expose=self.blocking)
        self.arena.ready(gradient.place, 1, self.step)

    def wait(self):
        """Waits for a complete generation."""
        self.arena.wait(self.step)
        for gradient in self._takers:
            if gradient not in self._withheld:
                gradient.take(self.rescale)
        for gradient in self._withheld:
            gradient.take_late(self.rescale)
        self._withheld.clear()
        for gradient in self.sparse:
            exchange_sparse(f"{self.name}.{gradient.name}", gradient.param, self.scale * self.rescale)
        self._next_generation()
        self._marks[:] = self._marks.translate(_AFTER_WAIT)
        self.phase = Phase.AVERAGED
        self.versions = self._versions_now() if self.watches else None

    def hand_on(self):
        """Leaves a complete generation to whoever waits for it later. p.grad lets go of the arena."""
        due = Due(self.step, self.arena.views[0], self.rescale)
        self._withheld.clear()
        self._next_generation()
        for gradient in self.gradients:
            gradient.param.grad = None
        self.used()
        return due

    def receive(self, due, gradients, runs):
        """Waits for some gradients of `due`, which lie in `runs` of the arena, and lets their p.grad be the average."""
        self.arena.wait_for(runs, due.number)
        for gradient in gradients:
            if gradient.param.requires_grad:
                gradient.take(due.factor, due.views[gradient.place])

    def used(self):
        """The optimizer has applied or dropped the averages: the next backward begins a new generation."""
        self.phase = Phase.IDLE
        self.versions = None
        self._reset_marks()

    def drop(self):
        """The user zeroes the gradients: finishes what is under way, for the other ranks count on it."""
        if self.phase in (Phase.OPEN, Phase.HANDED):
            self.synchronize()
        self.used()

    def changed(self):
        """The name of a gradient that was changed or replaced since it was handed over or averaged; None: none was."""
        for gradient, grad, version in self.versions or ():
            current = gradient.param.grad
            if current is not grad or (grad is not None and grad._version != version):
                return gradient.name
        return None

    def produced(self):
        """The gradients that backward made in this generation, complete or not."""
        return [gradient for gradient in self.gradients if self._marks[gradient.place] == HANDED]

    def tell_forward(self):
        """The first forward of a generation begins."""
        if self.phase is Phase.IDLE:
            self.forward_told = True
            session().stage(deft.FORWARD, self.step)

    def set_passes(self, passes):
        self.passes = passes
        self._reset_marks()
        if self.arena is not None:
            self._install_hooks()

    def release(self):
        """Takes the hooks off and lets go of the arena, before the session ends."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        if self.arena is not None:
            self.arena.release()
        for gradient in self.gradients:
            gradient.release()

    # ---- the first generation

    def _observer(self, gradient):
        exchange_of, gradient_of = weakref.ref(self), weakref.ref(gradient)

        def observe(_param):
            exchange = exchange_of()
            if exchange is not None:
                exchange._observe(gradient_of())

        return observe

    def _observe(self, gradient):
        passes = self._passes_seen.get(gradient, 0) + 1
        self._passes_seen[gradient] = passes
        if passes > self.passes:
            self._refuse(gradient)
        if passes == 1 and gradient not in self._observed:
            self._observed.append(gradient)
            gradient.sparse = gradient.param.grad.is_sparse and not self.sparse_as_dense
        if passes == self.passes and self._task != current_task():
            self._begin_backward()

    def _declare(self):
        """All ranks declare in the order in which rank 0's gradients appeared."""
        index = {gradient: i for i, gradient in enumerate(self.gradients)}
        unseen = [gradient for gradient in reversed(self.gradients) if gradient not in set(self._observed)]
        order = [index[gradient] for gradient in self._observed + unseen]
        sparse = [index[gradient] for gradient in self.gradients if gradient.sparse]
        root_order, root_sparse = broadcast_object((order, sparse), name=f"{self.name}.order")
        if sorted(root_order) == sorted(order):  # otherwise the declaration itself says what differs
            order, sparse = root_order, root_sparse
        self.sparse = [self.gradients[i] for i in sparse]
        self.gradients = [self.gradients[i] for i in order if i not in set(sparse)]
        self.arena = Arena(
            session(),
            self.name,
            [(g.name, g.wire_dtype, g.param.shape, g.position) for g in self.gradients],
            self.slots,
            device_of([g.param for g in self.gradients]),
        )
        for place, gradient in enumerate(self.gradients):
            gradient.settle_in(place, [views[place] for views in self.arena.views], self.arena.staging)
        self._takers = [g for g in self.gradients if self.rescale != 1.0 or not g.direct]
        self._reset_marks()
        self._install_hooks()

    def _install_hooks(self):
        for hook in self._hooks:
            hook.remove()
        make = self._hook if self.passes == 1 else self._accumulating_hook
        self._hooks = [g.param.register_post_accumulate_grad_hook(make(g)) for g in self.gradients]
        self._hooks += [g.param.register_post_accumulate_grad_hook(self._sparse_hook()) for g in self.sparse]

    # ---- the hooks: torch never frees a cycle through a parameter's hook, so they hold nothing that holds parameters

    def _hook(self, gradient):
        """Hands the gradient over as soon as it exists. Runs once a parameter and step: every name in it is local."""
        place, view, scale, marks, plain = gradient.place, gradient.view, self.scale, self._marks, gradient.direct
        ready, multiply = self.arena.ready, torch.mul
        exchange_of, gradient_of = weakref.ref(self), weakref.ref(gradient)

        def hand_over(param):
            exchange = exchange_of()
            if exchange is None:
                return
            if marks[place]:
                exchange._check_again(gradient_of())
            if exchange._task != current_task():
                exchange._begin_backward()
            grad = param.grad
            if plain and grad is not view and not grad.is_sparse and not grad.requires_grad:
                multiply(grad, scale, out=view)
                param.grad = view
            else:
                gradient_of().put(scale)
            marks[place] = HANDED
            ready(place, 1, exchange.step)

        return hand_over

    def _accumulating_hook(self, gradient):
        """Lets autograd add up in p.grad and hands over in the last of the passes."""
        hand_over, place, passes = self._hook(gradient), gradient.place, self.passes
        marks, counts, seen = self._marks, self._counts, [None]
        exchange_of, gradient_of = weakref.ref(self), weakref.ref(gradient)

        def count(param):
            exchange = exchange_of()
            if exchange is None:
                return
            if marks[place]:
                exchange._check_again(gradient_of())
            restarted = counts[place] and (seen[0] is None or seen[0]() is not param.grad)
            counts[place] = 1 if restarted else counts[place] + 1
            if counts[place] < passes:
                seen[0] = weakref.ref(param.grad)
                return
            counts[place] = 0
            seen[0] = None
            hand_over(param)

        return count

    def _sparse_hook(self):
        exchange_of = weakref.ref(self)

        def note(_param):
            exchange = exchange_of()
            if exchange is not None and exchange.passes == 1 and exchange._task != current_task():
                exchange._begin_backward()

        return note

    def _begin_backward(self):
        """The first gradient of a backward that hands over: what it does, it must do once."""
        if self.phase is Phase.HANDED:
            self.wait()
        self._task = current_task()
        if self.phase is not Phase.OPEN:
            self.before_backward()
            if self.reports_stages:
                session().stage(deft.BACKWARD, self.step)
        self.phase = Phase.OPEN
        _queue_callback(self._end_backward)

    def _end_backward(self):
        """At the end of a backward: completes the generation, unless this was one nested in another (checkpointing)."""
        if self.phase is not Phase.OPEN:
            return
        if self._inner_backward():
            return
        self._task = -1
        if self.blocking or any(gradient.param.grad is not None for gradient in self._unfired()):
            self.synchronize()  # in the second case a further backward would add to what is under way
        else:
            self.complete()

    def _inner_backward(self):
        return self._marks.count(HANDED) != len(self._marks) and _is_nested()

    def _check_again(self, gradient):
        """A gradient appears that was handed over before, and no step() has used it: an error, unless it began anew."""
        mark = self._marks[gradient.place]
        grad = gradient.param.grad
        kept = gradient.view if gradient.direct else None
        if mark == HANDED or grad is kept or kept is None:
            self._refuse(gradient)

    def _refuse(self, gradient):
        raise AssertionError(
            f"Gradients were computed more than backward_passes_per_step times before call to step(): {gradient.name} "
            f"has a gradient from more than {self.passes} backward passes. Increase backward_passes_per_step to "
            "accumulate gradients locally, or call optimizer.zero_grad() where a gradient is not meant to be used"
        )

    # ---- small things

    def _unfired(self):
        """The gradients that no hook has handed over in this generation."""
        if self._marks.count(HANDED) == len(self._marks):
            return []
        return [gradient for gradient, mark in zip(self.gradients, self._marks) if mark != HANDED]

    def _next_generation(self):
        self.step += 1
        self.forward_told = False

    def _reset_marks(self):
        """Marks and counts keep their identity: the hooks hold them."""
        count = len(self.gradients)
        if getattr(self, "_marks", None) is None or len(self._marks) != count:
            self._marks, self._counts = bytearray(count), [0] * count
        self._marks[:] = bytes(count)
        self._counts[:] = [0] * count
        self._passes_seen = {}

    def _versions_now(self):
        grads = ((gradient, gradient.param.grad) for gradient in self.gradients)
        return [(gradient, grad, None if grad is None else grad._version) for gradient, grad in grads]


def _is_nested():
    """Whether this runs inside the Python backward of an autograd function: then another backward is under way."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code is _PYTHON_BACKWARD:
            return True
        frame = frame.f_back
    return False
