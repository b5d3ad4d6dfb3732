"""The gradients of one optimizer on their way into the arena, as a backward hands them over.

A generation begins with the first gradient that a hook hands over. It is complete when every parameter has been handed
over: by its hook, or by complete() if it has no gradient. How a gradient is written is the writer's matter
(arena_writers.py); when the averages are waited for and applied is the listener's (synchronous_step.py,
delayed_step.py).

The first backward only watches: it finds the order in which gradients appear and which of them are sparse. Rank 0's
findings are declared for all ranks. From then on each hook hands its gradient over at once.
"""

from deft.gradient_round import HANDED, GradientRound, Phase
from deft.production_order import ProductionOrder

from . import hooks
from .arena import Arena
from .backward_end import end_with_backward
from .buffer_progress import BufferProgress
from .device import device_of
from .gradient import GradientVersions


class GradientBuffer:
    """Hooks, arena, and the round of gradients under way. `name` is the same on all ranks.

    The listener has backward_begins(), which runs before the first gradient of a backward is handed over,
    generation_begins(with_backward), which runs if that gradient or complete() begins a generation, backward_ends(),
    which hands over what is missing, and await_averages(), which follows if backward_ends() gives True.
    """

    def __init__(self, name, gradients, passes, schedule, writer, process_set):
        self._group = (name, process_set, process_set.session().optimizers)
        self.gradients = gradients  # in forward order, until the first backward has shown the order of production
        self.sparse = []
        self.arena = None
        self.schedule = schedule
        self.writer = writer
        self.round = GradientRound(len(gradients), passes)
        self.versions = GradientVersions()
        self.task = -1  # autograd's number of the backward whose hooks run
        self.listener = None
        self._order = ProductionOrder(len(gradients))
        self._hooks = [
            hooks.install(gradient.param, hooks.observing(self, index, gradient))
            for index, gradient in enumerate(gradients)
        ]
        self.optimizers.follow(BufferProgress(self))

    @property
    def name(self):
        return self._group[0]

    @property
    def process_set(self):
        """The ranks whose gradients are averaged."""
        return self._group[1]

    @property
    def optimizers(self):
        """All of the session: one backward may reach several."""
        return self._group[2]

    # ---- what the steps call

    def complete(self, expose):
        """Hands over what no hook has handed over in this generation.

        `expose`: parameters without a gradient get p.grad, too. Otherwise nobody looks at p.grad before step(), and
        changes of it are noted from now on.
        """
        if self.round.phase in (Phase.HANDED, Phase.AVERAGED):
            return
        if self.round.phase is Phase.IDLE:
            self.listener.generation_begins(with_backward=False)
        _refuse_early_change(self.versions.changed_while_held())
        appeared = self.declare() if self.arena is None else ()
        self.arena.begin(self.schedule.step)
        for place in self.round.missing():
            gradient = self.gradients[place]
            self.writer.hand_in(gradient, expose, self.versions.holds_average(gradient))
        for gradient in appeared:
            self.round.marks[gradient.place] = HANDED
        self.round.restart_passes()
        self.round.phase = Phase.HANDED
        self.versions.hold(())
        if not expose:
            self.versions.note(self.gradients)

    def averages(self, step, may_end=False):
        """Around a wait for averages of gradients up to those of `step`. `may_end`: it may raise CircularWait."""
        return self.optimizers.waits(self.name, step + 2, may_end)

    def withhold(self):
        """Nobody waits for the averages of the complete generation at the end of this backward, but later."""
        for place in self.round.missing():
            self.writer.withhold(self.gradients[place])
        self.versions.note(self.gradients)

    def leave_open(self):
        """Some parameters are amid their passes: further backwards may come before step() completes the generation."""
        amid = set(self.round.amid_passes())
        seen = [self.gradients[index] for index in self._order.appeared() if index not in amid]
        self.versions.hold(seen if self.arena is None else self.produced())

    def used(self, keeps_averages=False):
        """The averages are applied or dropped: the next backward begins a new generation.

        keeps_averages: unless the script clears them, it adds to those in p.grad."""
        self.round.used()
        if not keeps_averages:
            self.versions.forget()
        self._order.restart_passes()

    def release_grads(self):
        for gradient in self.gradients:
            gradient.param.grad = None

    def produced(self):
        """The gradients that backward made in this generation, complete or not."""
        return [gradient for gradient in self.gradients if self.round.marks[gradient.place] == HANDED]

    def has_unhanded_grads(self):
        """Whether a parameter has a gradient that no hook has handed over: more passes over it are to come."""
        handed = self._order.appeared() if self.arena is None else ()  # with the declaration
        missing = set(self.round.missing()).difference(handed)
        return any(self.gradients[place].param.grad is not None for place in missing)

    def set_passes(self, passes):
        self.round.passes = passes
        self.round.reset_marks()
        self._order.restart_passes()
        if self.arena is not None:
            self._install_hooks()

    def release(self):
        """Takes the hooks off and gives the arena back."""
        self.optimizers.forget(self.name)
        hooks.remove_all(self._hooks)
        if self.arena is not None:
            self.arena.release()
        for gradient in self.gradients:
            gradient.release()
        if self.arena is not None:
            self.arena.leave()

    # ---- what the hooks call

    def observe(self, index, gradient):
        """A gradient of the first generation."""
        sparse = gradient.param.grad.is_sparse and not gradient.sparse_as_dense
        passes = self._order.saw(index, sparse)
        if passes > self.round.passes:
            self.refuse(gradient)
        self.round.counts[index] = passes % self.round.passes
        if passes == self.round.passes and self.task != hooks.current_task():
            self.begin_backward()

    def begin_backward(self):
        """The first gradient of a backward that hands over."""
        self.listener.backward_begins()
        self.task = hooks.current_task()
        if self.round.phase is not Phase.OPEN:
            self.listener.generation_begins(with_backward=True)
            if self.arena is not None:
                self.arena.begin(self.schedule.step)
        self.round.phase = Phase.OPEN
        self.end_with_backward()

    def end_with_backward(self):
        end_with_backward(self)

    def check_again(self, gradient):
        """A gradient appears that was handed over before, and no step() has used it."""
        in_this_backward = self.round.phase is Phase.OPEN and self.round.marks[gradient.place] == HANDED
        if in_this_backward or not self.writer.may_come_again(gradient, self.versions):
            self.refuse(gradient)

    def refuse(self, gradient):
        raise AssertionError(
            f"Gradients were computed more than backward_passes_per_step times before call to step(): {gradient.name} "
            f"has a gradient from more than {self.round.passes} backward passes. Increase backward_passes_per_step to "
            "accumulate gradients locally, or call optimizer.zero_grad() where a gradient is not meant to be used"
        )

    # ---- the declaration

    def declare(self):
        """All ranks declare in the order in which rank 0's gradients appeared. Gives the dense ones that did here."""
        known, amid, session = self.gradients, set(self.round.amid_passes()), self.process_set.session()
        with self.optimizers.waits(self.name, 1):
            agreed = self._order.agree(session, f"{self.name}.order", self.writer.terms, self.optimizers.are_several())
        sparse = set(agreed.sparse)
        self.sparse = [known[index] for index in agreed.sparse]
        self.gradients = [known[index] for index in agreed.order if index not in sparse]
        self.arena = Arena(
            session,
            self.name,
            [(g.name, g.wire_dtype, g.param.shape, g.position, g.codec) for g in self.gradients],
            self.schedule.slots,
            device_of([g.param for g in self.gradients]),
            begins_together=agreed.one_of_several and session.nodes > 1,
        )
        for place, gradient in enumerate(self.gradients):
            gradient.settle_in(place, [views[place] for views in self.arena.views], self.arena.staging)
        self.schedule.attach(self.arena.group)
        self.writer.attach(self.arena, self.gradients)
        self.round.resize(len(self.gradients))
        self._install_hooks()
        return [known[index] for index in self._order.appeared() if index not in sparse and index not in amid]

    def _install_hooks(self):
        hooks.remove_all(self._hooks)
        make = hooks.handing_over if self.round.passes == 1 else hooks.accumulating
        self._hooks = [hooks.install(g.param, make(self, g)) for g in self.gradients]
        self._hooks += [hooks.install(g.param, hooks.noting_sparse(self)) for g in self.sparse]


def _refuse_early_change(name):
    """`name`: of a gradient that was changed after it was handed over, or None."""
    if name is not None:
        raise RuntimeError(
            f"the gradient of {name} was changed between backward() and step() (clipping or unscaling, for instance), "
            "and other parameters have had fewer than backward_passes_per_step passes: call optimizer.synchronize() "
            "before"
        )
