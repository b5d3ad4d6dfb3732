"""step() if every update is made with the step's own gradients.

With the barrier, p.grad holds the averages when backward() returns. With forward overlap, step() leaves the waiting to
the next forward.
"""

import contextlib
import weakref

from deft.gradient_round import Phase
from deft.reduce_op import Average
from deft.session_optimizers import CircularWait

import torch

from .autograd import allreduce
from .hooks import current_task
from .ownership import Attachment
from .scaling import scale_under_way
from .sparse import exchange_sparse


class SynchronousStep:
    """Takes the calls of the user's optimizer and of its backward. It has the methods of DelayedStep."""

    def __init__(self, buffer, applier, stages, ownership):
        self.buffer = buffer
        self.schedule = buffer.schedule
        self.applier = applier
        self.overlap = applier.overlap
        self.stages = stages
        self.ownership = ownership
        self._attachment = Attachment(self.overlap, self.stages, self.buffer)
        self._in_closure = False
        self._comes_again = False  # more backwards of this generation are to come
        self.backward_is_a_step = False  # nobody calls step(): see averaging.py
        buffer.listener = weakref.proxy(self)

    @property
    def blocking(self):
        """Whether every backward ends with the averages in p.grad."""
        barrier = self.overlap.deferred is None and not self.buffer.optimizers.circle_was_met
        return barrier or self._in_closure or self.backward_is_a_step

    # ---- what the optimizer calls

    def step(self, update):
        """`update` is the step() of the user's class."""
        self.stages.update_begins()
        if self.buffer.round.phase is not Phase.AVERAGED and self.applier.may_defer():
            self._defer()
            self.stages.update_ends()
            return None
        self.synchronize()
        self.ownership.check_gradients()
        self.overlap.check_gradients_kept()
        result = update()
        self.buffer.used()
        self.overlap.count_step()
        self.stages.watch(self.overlap.tracker)
        self.stages.update_ends()
        return result

    def step_with(self, update, closure):
        """The optimizer may decide by the loss, so it sees the average on every rank."""

        def evaluate():
            loss = closure()
            self._synchronize_gradients()
            self.ownership.check_gradients()
            if loss is None:
                return None
            value = loss.detach() if isinstance(loss, torch.Tensor) else torch.tensor(float(loss))
            return allreduce(value, op=Average, name=f"{self.buffer.name}.loss", process_set=self.buffer.process_set)

        self.applier.flush()
        with self._closure_runs():
            result = update(evaluate)
        self.buffer.used()
        return result

    def synchronize(self):
        """Every p.grad holds its average afterwards."""
        self.applier.flush()
        self._refuse_replaced()
        self._synchronize_gradients()

    def drop(self):
        """zero_grad(): finishes the generation under way, because the other ranks count on it."""
        self.buffer.versions.hold(())
        if self.buffer.round.phase in (Phase.OPEN, Phase.HANDED):
            self._synchronize_gradients()
        self.buffer.used()

    def flush(self):
        """Applies what step() has deferred to the next forward."""
        self.applier.flush()

    def flush_all(self):
        self.applier.flush()

    def settle(self):
        """Before this rank leaves: waits for all that it has handed over, since the others wait for the same."""
        self.applier.flush()
        if self.buffer.round.phase is Phase.HANDED:
            self._wait()

    def show_averages(self):
        """Somebody looks at the optimizer: with forward overlap the averages may not have arrived yet."""
        phase = self.buffer.round.phase
        if (phase is Phase.HANDED and not self.blocking) or (phase is Phase.OPEN and current_task() < 0):
            self._refuse_replaced()
            self._synchronize_gradients()

    def release(self):
        """Before the session ends. It also happens with the end of the optimizer."""
        self._attachment.release()
        self.ownership.session_ends()

    # ---- what the buffer calls

    def backward_begins(self):
        """A further backward of the same step waits for the first one."""
        if self.buffer.round.phase is Phase.HANDED:
            self._wait()
        scale = scale_under_way()
        if scale != self.buffer.writer.loss_scale:
            self.applier.flush()  # averages that still wait have the scale of their own backward
            self.buffer.writer.unscale(scale)

    def generation_begins(self, with_backward):
        self.buffer.process_set.session().joining.round_begins(self.buffer.name, self.schedule.step)
        self.overlap.generation_begins()
        if with_backward:
            self.stages.backward_begins()

    def backward_ends(self):
        """Hands over what is missing, and waits for nothing. Gives whether await_averages() is to follow."""
        if self.buffer.round.amid_passes() and not self.backward_is_a_step:
            self.buffer.leave_open()
            return False
        self._comes_again = self.buffer.has_unhanded_grads()  # a further backward would add to gradients under way
        self.buffer.complete(expose=self.blocking)
        return self.blocking or self._comes_again

    def await_averages(self):
        """At the end of backward. In a circle of waits step() waits for them instead."""
        try:
            with self.buffer.averages(self.schedule.step, not self.backward_is_a_step and not self._comes_again):
                self.buffer.arena.wait(self.schedule.step)
        except CircularWait:
            self.buffer.withhold()
            return
        self._wait()
        if self.backward_is_a_step:
            self.buffer.used(keeps_averages=True)
            self.ownership.check_gradients()

    # ---- one generation

    def _synchronize_gradients(self):
        if self.buffer.round.phase is Phase.AVERAGED:
            return
        self.buffer.complete(expose=self.blocking)
        self._wait()

    def _wait(self):
        """Waits for a complete generation."""
        buffer, writer = self.buffer, self.buffer.writer
        with buffer.averages(self.schedule.step):
            buffer.arena.wait(self.schedule.step)
            dropped = buffer.versions.dropped()
            writer.take_averages(dropped)
            for gradient in buffer.sparse:
                before = writer.scaling.again if buffer.versions.is_average(gradient) else writer.scaling.before
                factor = before * writer.scaling.after
                exchange_sparse(f"{buffer.name}.{gradient.name}", gradient.param, factor, buffer.process_set)
        self.schedule.advance()
        buffer.round.averaged([gradient.place for gradient in dropped])
        kept = [gradient for gradient in buffer.gradients if gradient not in dropped] if dropped else buffer.gradients
        buffer.versions.note(kept + buffer.sparse, averaged=True)

    def _defer(self):
        """The update is made in the next forward."""
        self.buffer.complete(expose=self.blocking)
        self.ownership.check_gradients()
        self.applier.flush()
        self.overlap.deferred.refuse_uses_before_update()
        _refuse_change(self.buffer.versions.changed())
        self.buffer.writer.detach()
        self.schedule.advance()
        self.buffer.release_grads()  # p.grad lets go of the arena
        self.buffer.used()
        (due,) = self.schedule.take_due()
        self.applier.defer(due)

    def _refuse_replaced(self):
        """A gradient under way may be dropped, but another tensor in its place would be this rank's own gradient.

        So would be what passes have added to an average, if they are too few to be averaged themselves."""
        round = self.buffer.round
        if round.phase is Phase.HANDED:
            _refuse_change(self.buffer.versions.replaced(round) or self.buffer.versions.changed_in_place())
        elif round.phase is Phase.AVERAGED and round.amid_passes():
            name = self.buffer.gradients[round.amid_passes()[0]].name
            raise RuntimeError(
                f"{name} had fewer than backward_passes_per_step={round.passes} backward passes after the gradients of "
                "this step were averaged: let all passes come before synchronize(), and on all ranks in the same order"
            )

    @contextlib.contextmanager
    def _closure_runs(self):
        before, self._in_closure = self._in_closure, True
        try:
            yield
        finally:
            self._in_closure = before


def _refuse_change(name):
    """`name`: of the gradient that was changed, or None."""
    if name is not None:
        raise RuntimeError(
            f"the gradient of {name} was changed between backward() and step() while it was being averaged (clipping "
            "or unscaling, for instance): call optimizer.synchronize() before, or set DEFT_OVERLAP_FORWARD=off"
        )
