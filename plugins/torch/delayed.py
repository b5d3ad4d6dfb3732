"""Delayed and merged updates: gradients whose average is applied some steps later, as the daemon's plan says.

A generation of a gradient merges one or more steps in one slot of the arena: the hook copies in its first step and adds
in later ones, and with its last step it is handed over. While it travels, training goes on and fills the next slot. It
is applied between two steps that the plan names, the same ones on all ranks, so replicas stay equal bit for bit. The
plan may date gradients differently: an update then touches some parameters and leaves the others and their optimizer
state alone, as steps without an update leave all.

p.grad stays the step's own gradient until step(), and is None afterwards; synchronize() shows the average that this
step() will apply, or None where none is due.
"""

import collections
import weakref
from typing import NamedTuple

import deft

from .arena import runs_of
from .exchange import HANDED, Exchange, Phase, current_task
from .scaling import Scales, scale_under_way


class Average(NamedTuple):
    """Of one gradient: the generation to wait for, where it lies, and what it is multiplied by."""

    number: int
    view: object
    factor: float


class Due(NamedTuple):
    """What one update applies: averages of some or all gradients, by place."""

    averages: dict
    first_step: int  # whose gradients are in them
    last_step: int
    merged: int  # steps, at most


class DelayedExchange(Exchange):
    """An Exchange whose generations may merge steps and travel while later steps run."""

    def __init__(self, name, gradients, scale, rescale, passes, slots):
        super().__init__(name, gradients, scale, rescale, passes, sparse_as_dense=True)
        self.slots = slots
        self.blocking = False
        self.splits_merged = False  # updates that merge different numbers of steps are made one by one
        self._now = ()  # of each gradient, the generation of this step
        self._applied = []  # of each gradient, generations applied so far, or dropped
        self.shown = None  # the Due whose average p.grad shows
        self.scales = Scales()
        self.factor = scale  # of the gradients of this backward
        self.norms = None  # the Norms that look at averages as they come

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
        self.factor = self.scale
        for gradient in self.gradients:
            gradient.param.grad = None
        return self._take_due()

    def due_after_this(self):
        """What turn() is going to give."""
        return self._due(self.step + 1)

    def note_scale(self, scaler, scale):
        """A GradScaler has multiplied the losses of this step, on some rank at least."""
        self.scales.note(self.step, scaler, scale)

    def applied(self, due):
        """An average of due_after_this() was applied before turn()."""
        for place, average in due.averages.items():
            self._applied[place] = average.number + 1

    def pending(self):
        """Whether gradients wait for their update."""
        if self.arena is None or self.step == 0:
            return False
        return any(newest.number >= applied for newest, applied in zip(self._newest(), self._applied, strict=True))

    def now(self):
        """Of each gradient, by place, the generation that merges this step's."""
        return self._now

    def _newest(self):
        return self.arena.group.generations_of(self.step - 1)

    def end_generation(self):
        """Hands over what is gathered, before its time; gives all that was not applied yet, oldest first."""
        if not self.pending():
            return []
        group, newest = self.arena.group, self._newest()
        self.arena.drain()  # what a GPU still writes was handed over before the flush
        group.flush(self.step)
        open_ones = collections.defaultdict(list)  # places by generation
        for place, last in enumerate(newest):
            if last.last_step >= self.step:
                open_ones[last.number, last.slot].append(place)
        for (number, slot), places in open_ones.items():
            for first, count in runs_of(places):
                self.arena.ready(first, count, number, slot)
        return self._take_due()

    def drop(self):
        """zero_grad(): an average that synchronize() has shown may be dropped; what is merged already cannot."""
        if self.phase in (Phase.OPEN, Phase.HANDED):
            raise RuntimeError(
                "zero_grad() between backward() and step() would drop gradients that are merged with those of other "
                "steps already; call optimizer.synchronize() before it, or use a synchronous DEFT_POLICY"
            )
        if self.phase is Phase.AVERAGED:
            self.turn()
        self.used()

    def show(self, due):
        """p.grad is the average `due`; None: none is due."""
        for gradient in self.gradients:
            gradient.param.grad = None
        if due is not None:
            self.receive_all(due)
        self.shown = due
        self.phase = Phase.AVERAGED
        self.versions = None

    def receive_all(self, due):
        """Waits for `due` and lets p.grad be the average, where there is one."""
        self.receive(due, self.gradients)

    def receive(self, due, gradients, _runs=()):
        averages = [(gradient, due.averages.get(gradient.place)) for gradient in gradients]
        for gradient, average in averages:
            if average is not None:
                self.arena.wait_for([(gradient.place, 1)], average.number)
        for gradient, average in averages:
            if average is not None and gradient.param.requires_grad:
                gradient.take(average.factor, average.view)
        if self.norms is not None:
            self.norms.averaged(averages)

    # ---- generations

    def _due(self, step):
        """What is applied before the forward of `step` and was not applied yet, oldest first."""
        numbers, rounds = list(self._applied), []
        while True:
            due = {}
            for place, generation in enumerate(self.arena.group.generations(numbers)):
                if generation.apply_step <= step:
                    due[place] = generation
                    numbers[place] += 1
            if not due:
                return rounds
            rounds += self._updates_of(due)

    def _updates_of(self, generations):
        """One update, or where the learning rate depends on it one for each number of merged steps."""
        kinds = sorted({generation.merged for generation in generations.values()})
        if self.splits_merged and len(kinds) > 1:
            chosen = [{p: g for p, g in generations.items() if g.merged == merged} for merged in kinds]
            return [update for some in chosen for update in self._updates_of(some)]
        averages = {
            place: Average(g.number, self.arena.views[g.slot][place], self.rescale / g.merged)
            for place, g in generations.items()
        }
        first = min(generation.first_step for generation in generations.values())
        last = max(generation.last_step for generation in generations.values())
        return [Due(averages, first, last, kinds[-1])]

    def _take_due(self):
        due = self._due(self.step)
        for update in due:
            self.applied(update)
        if self.scales:
            oldest = self.arena.group.generations(self._applied)
            taken = due[0].first_step if due else self.step
            self.scales.forget_before(min(taken, *(generation.first_step for generation in oldest)))
        return due

    def _declare(self):
        super()._declare()
        self._applied = [0] * self.arena.count
        self._open_generation()

    def _open_generation(self):
        if self.arena is not None:  # the first backward only watches
            self._now = self.arena.group.generations_of(self.step)

    def _begin_backward(self):
        if self.phase in (Phase.HANDED, Phase.AVERAGED):
            raise RuntimeError(
                "a second backward() before step(): with delayed updates use backward_passes_per_step, or a "
                "synchronous DEFT_POLICY"
            )
        if self.phase is Phase.IDLE:
            self._open_generation()
        super()._begin_backward()
        self.factor = self.scale / scale_under_way()

    def _end_backward(self):
        if self.phase is Phase.OPEN and not self._inner_backward():
            self._task = -1
            self.complete()

    def _hand_in(self, gradient):
        now = self._now[gradient.place]
        self._gather(gradient, gradient.views[now.slot], first=now.first_step == self.step)
        if now.last_step == self.step:
            self.arena.ready(gradient.place, 1, now.number, now.slot)

    def _gather(self, gradient, view, first):
        if gradient.param.grad is None:
            if first:
                gradient.clear(view)
        elif first:
            gradient.copy(gradient.param.grad, self.factor, view)
        else:
            gradient.add(gradient.param.grad, self.factor, view)

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
    delays = deft.policy_traits().delays_updates and int(deft.option("max_staleness_steps")) > 0
    return int(deft.option("slots")) if delays else 1
