"""step() if updates may be delayed and merged: gradients whose average is applied some steps later.

A generation of a gradient merges one or more steps in one slot of the arena: the hook copies in its first step and adds
in later ones, and with its last step the gradient is handed over. While it travels, training goes on and fills the next
slot. It is applied between two steps that the plan names, the same ones on all ranks, so replicas stay equal bit for
bit. The plan may give gradients different dates: an update then touches some parameters and leaves the others and their
optimizer state alone.

p.grad stays the step's own gradient until step(), and is None afterwards. synchronize() shows the average that this
step() will apply, or None if none is due.
"""

import weakref

from deft.gradient_round import Phase

from .hooks import current_task
from .ownership import Attachment
from .scaling import refuse_torch_scalers, scale_under_way
from .schedulers import let_schedulers_count_updates


class DelayedStep:
    """Takes the calls of the user's optimizer and of its backward. It has the methods of SynchronousStep."""

    def __init__(self, buffer, applier, stages, ownership):
        self.buffer = buffer
        self.schedule = buffer.schedule
        self.applier = applier
        self.overlap = applier.overlap
        self.stages = stages
        self.ownership = ownership
        self._attachment = Attachment(self.overlap, self.stages, self.buffer)
        self._shown = None  # the Due whose average p.grad shows
        buffer.listener = weakref.proxy(self)
        let_schedulers_count_updates()
        refuse_torch_scalers()

    # ---- what the optimizer calls

    def step(self, update):
        """`update` is the step() of the user's class."""
        self.stages.update_begins()
        if self.buffer.round.phase is Phase.AVERAGED:  # synchronize() has shown the due averages
            result = self.applier.apply_shown(self._shown, update) if self._shown is not None else None
            self._advance_step()
        else:
            self._complete()
            result = self._update(self._advance_step(), update)
        self.overlap.count_step()
        self.stages.watch(self.overlap.tracker)
        self.stages.update_ends()
        return result

    def step_with(self, _update, _closure):
        raise RuntimeError(
            "step(closure) computes gradients in the middle of an update, which delayed updates do not allow; use a "
            "synchronous DEFT_POLICY"
        )

    def synchronize(self):
        """p.grad holds the average that this step() will apply; None if none is due."""
        if self.buffer.round.phase is Phase.AVERAGED:
            return
        self._complete()
        self.applier.flush()
        *earlier, last = self.schedule.due_after_this() or [None]
        for due in earlier:
            self.applier.apply(due)
            self.schedule.applied(due)
        self._show(last)

    def drop(self):
        """zero_grad(): an average that synchronize() has shown may be dropped; merged gradients may not."""
        phase = self.buffer.round.phase
        if phase in (Phase.OPEN, Phase.HANDED):
            raise RuntimeError(
                "zero_grad() between backward() and step() would drop gradients that are merged with those of other "
                "steps already; call optimizer.synchronize() before it, or use a synchronous DEFT_POLICY"
            )
        if phase is Phase.AVERAGED:
            self._advance_step()
        self.buffer.used()

    def flush(self):
        """Applies what step() has deferred to the next forward."""
        self.applier.flush()

    def flush_all(self):
        """Applies everything that has been gathered, on all ranks between the same steps."""
        if self.buffer.round.phase is not Phase.IDLE:
            raise RuntimeError("flush() between backward() and step(): call it after step()")
        self.applier.flush()
        if not self.schedule.pending():
            return
        arena = self.buffer.arena
        arena.drain()  # gradients that a GPU still writes were handed over before the flush
        for first, count, number, slot in self.schedule.flush():
            arena.ready(first, count, number, slot)
        for due in self._take_due():
            self.applier.apply(due)

    def scaled_by(self, scaler, scale):
        """The losses of this step were multiplied by `scale`: updates with infinities are skipped, and it is told."""
        if self.buffer.round.phase is not Phase.AVERAGED:
            self._complete()
        self.applier.scales.note(self.schedule.step, scaler, scale)

    def settle(self):
        """Before this rank leaves: applies all gradients, as the other ranks do."""
        self.applier.flush()
        if self.buffer.round.phase is Phase.IDLE:
            self.flush_all()

    def show_averages(self):
        """Somebody looks at the optimizer between backward() and step()."""
        phase = self.buffer.round.phase
        if phase is Phase.HANDED or (phase is Phase.OPEN and current_task() < 0):
            self.synchronize()

    def release(self):
        """Before the session ends. It also happens with the end of the optimizer."""
        self._attachment.release()
        self.ownership.session_ends()

    # ---- what the buffer calls

    def backward_begins(self):
        if self.buffer.round.phase in (Phase.HANDED, Phase.AVERAGED):
            raise RuntimeError(
                "a second backward() before step(): with delayed updates use backward_passes_per_step, or a "
                "synchronous DEFT_POLICY"
            )
        self.buffer.writer.unscale(scale_under_way())

    def generation_begins(self, with_backward):
        self.schedule.open_step()
        self.overlap.generation_begins()
        if with_backward:
            self.stages.backward_begins()

    def backward_ends(self):
        """Gives whether somebody waits for averages: with delayed updates nobody does."""
        if self.buffer.round.amid_passes():
            self.buffer.leave_open()
        else:
            self.buffer.complete(expose=False)
        return False

    # ---- one step

    def _complete(self):
        """All gradients of this step are merged into their generations."""
        self.buffer.complete(expose=False)
        self.ownership.check_gradients()
        if self.overlap.deferred is not None:
            self.overlap.deferred.refuse_uses_before_update()
        name = self.buffer.versions.changed()
        if name is not None:
            raise RuntimeError(
                f"the gradient of {name} was changed between backward() and step(), after it was merged into the "
                "average (clipping or unscaling, for instance): call optimizer.synchronize() before"
            )
        self.applier.norms.gathered()

    def _advance_step(self):
        """This step is over: gives the updates that are due before the next forward, oldest first."""
        self.schedule.advance()
        self.buffer.used()
        self._shown = None
        self.buffer.writer.unscale(1.0)
        self.buffer.release_grads()
        return self._take_due()

    def _take_due(self):
        due = self.schedule.take_due()
        if self.applier.scales:
            self.applier.scales.forget_before(self.schedule.oldest_step(due))
        return due

    def _update(self, due, update):
        self.applier.flush()
        if not due:
            return None
        *earlier, last = due
        for one in earlier:
            self.applier.apply(one)
        if self.applier.may_defer(last):
            self.applier.defer(last)
            return None
        return self.applier.apply(last, update)

    def _show(self, due):
        """p.grad is the average `due`; None: none is due."""
        self.buffer.release_grads()
        if due is not None:
            self.applier.receive_all(due)
        self._shown = due
        self.buffer.round.phase = Phase.AVERAGED
        self.buffer.versions.forget()
