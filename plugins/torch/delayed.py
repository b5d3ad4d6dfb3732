"""Delayed and merged updates: gradients whose average is applied some steps later, as the daemon's plan says.

A generation merges the gradients of one or more steps in one slot of the arena: the hooks of its first step copy, those
of later steps add, and with its last step it is handed over. While it travels, training goes on and fills the next
slot. It is applied between two steps that the plan names, the same ones on all ranks, so replicas stay equal bit for
bit. Steps without an update leave parameters and optimizer state alone.

p.grad stays the step's own gradient until step(), and is None afterwards; synchronize() shows the average that this
step() will apply, or None where none is due.
"""

import weakref

import deft

from .exchange import HANDED, Due, Exchange, Phase, current_task
from .scaling import Scales, scale_under_way


class DelayedExchange(Exchange):
    """An Exchange whose generations may merge steps and travel while later steps run."""

    def __init__(self, name, gradients, scale, rescale, passes, slots):
        super().__init__(name, gradients, scale, rescale, passes, sparse_as_dense=True)
        self.slots = slots
        self.blocking = False
        self._now = None  # the generation of this step
        self._views = None  # where it gathers
        self._applied = 0  # generations applied so far, or dropped
        self.shown = None  # the Due whose average p.grad shows
        self.scales = Scales()
        self._factor = scale  # of the gradients of this backward

    # ---- what the optimizer calls

    def synchronize(self):
        raise NotImplementedError("delayed_step.py decides what is applied when")

    wait = synchronize

    def complete(self):
        if self.phase is Phase.AVERAGED:
            return
        if self.phase is Phase.IDLE:  # step() without a backward
            self._open_generation()
        super().complete()

    def turn(self):
        """This step is over: gives what is to be applied before the next one's forward, oldest first."""
        self._next_generation()
        self.used()
        self.shown = None
        self._factor = self.scale
        for gradient in self.gradients:
            gradient.param.grad = None
        return self._take_due()

    def due_after_this(self):
        """What turn() is going to give."""
        return self._due(self.step + 1)

    def note_scale(self, scaler, scale):
        """A GradScaler has multiplied the losses of this step, on some rank at least."""
        self.scales.note(self.arena.group.generation_of(self.step).number, scaler, scale)

    def applied(self, due):
        """An average of due_after_this() was applied before turn()."""
        self._applied = due.number + 1

    def pending(self):
        """Whether gradients wait for their update."""
        return self.arena is not None and self.step > 0 and self._newest().number >= self._applied

    def _newest(self):
        return self.arena.group.generation_of(self.step - 1)

    def end_generation(self):
        """Hands over what is gathered, before its time; gives all that was not applied yet, oldest first."""
        if not self.pending():
            return []
        group, last = self.arena.group, self._newest()
        group.flush(self.step)
        if last.last_step >= self.step:
            group.ready(0, self.arena.count, last.number, last.slot)
        return self._take_due()

    def drop(self):
        """zero_grad(): an average that synchronize() has shown may be dropped; what is merged already cannot."""
        if self.phase in (Phase.OPEN, Phase.HANDED):
            raise RuntimeError(
                "zero_grad() between backward() and step() would drop gradients that are merged with those of other "
                "steps already; call optimizer.synchronize() before it, or use a synchronous DEFT_POLICY"
            )
        if self.phase is Phase.AVERAGED:
            if self.shown is not None:
                self.scales.drop(self.shown.number)
            self.turn()
        self.used()

    def show(self, due):
        """p.grad is the average `due`; None: none is due."""
        for gradient in self.gradients:
            gradient.param.grad = None
        if due is not None:
            self.receive(due)
        self.shown = due
        self.phase = Phase.AVERAGED
        self.versions = None

    def receive(self, due):
        """Waits for `due` and lets p.grad be the average."""
        self.arena.wait(due.number)
        for gradient in self.gradients:
            if gradient.param.requires_grad:
                gradient.take(due.factor, due.views[gradient.place])

    # ---- generations

    def _due(self, step):
        """What is applied before the forward of `step` and was not applied yet."""
        found, number = [], self._applied
        while (generation := self.arena.group.generation(number)).apply_step <= step:
            factor = self.rescale / generation.merged
            found.append(Due(number, self.arena.views[generation.slot], factor, generation.merged))
            number += 1
        return found

    def _take_due(self):
        due = self._due(self.step)
        self._applied += len(due)
        return due

    def _declare(self):
        super()._declare()
        self._open_generation()

    def _open_generation(self):
        if self.arena is None:
            return  # the first backward only watches
        self._now = self.arena.group.generation_of(self.step)
        self._views = self.arena.views[self._now.slot]

    def _begin_backward(self):
        if self.phase in (Phase.HANDED, Phase.AVERAGED):
            raise RuntimeError(
                "a second backward() before step(): with delayed updates use backward_passes_per_step, or a "
                "synchronous DEFT_POLICY"
            )
        if self.phase is Phase.IDLE:
            self._open_generation()
        super()._begin_backward()
        self._factor = self.scale / scale_under_way()

    def _end_backward(self):
        if self.phase is Phase.OPEN and not self._inner_backward():
            self._task = -1
            self.complete()

    def _hand_in(self, gradient):
        self._gather(gradient)
        if self._now.last_step == self.step:
            self.arena.ready(gradient.place, 1, self._now.number, self._now.slot)

    def _gather(self, gradient):
        view = self._views[gradient.place]
        first = self._now.first_step == self.step
        if gradient.param.grad is None:
            if first:
                view.zero_()
        elif first:
            gradient.copy(gradient.param.grad, self._factor, view)
        else:
            gradient.add(gradient.param.grad, self._factor, view)

    def _hook(self, gradient):
        place, marks = gradient.place, self._marks
        exchange_of, gradient_of = weakref.ref(self), weakref.ref(gradient)

        def hand_over(_param):
            exchange = exchange_of()
            if exchange is None:
                return
            if marks[place]:
                exchange._check_again(gradient_of())
            if exchange._task != current_task():
                exchange._begin_backward()
            exchange._hand_in(gradient_of())
            marks[place] = HANDED

        return hand_over

    def _check_again(self, gradient):
        self._refuse(gradient)


def slots_wanted():
    """Generations that the arena is to hold: 1 where updates are not delayed."""
    delays = deft.option("policy") == "knapsack" and int(deft.option("max_staleness_steps")) > 0
    return int(deft.option("slots")) if delays else 1
