"""Applies averages by the user's optimizer: at once, or layer by layer in the next forward."""

import contextlib
import logging
import weakref

from .deferred_updates import bare_step
from .forward_overlap import ForwardOverlap
from .norms import Norms
from .residuals import Residuals
from .scaling import LossScales, has_infinities

log = logging.getLogger("deft.torch")


class UpdateApplier:
    """Waits for due updates and makes them.

    `overlap_mode`: auto, on or off. `scale_lr`: an update that merges k steps is made with k times the learning rate.
    """

    def __init__(self, optimizer, buffer, overlap_mode, scale_lr):
        self._optimizer_of = weakref.ref(optimizer)
        self._buffer = buffer
        self.overlap = ForwardOverlap(optimizer, buffer, self.receive, overlap_mode)
        self.scales = LossScales()
        self.norms = Norms(optimizer, buffer, scale_lr) if buffer.schedule.delays else None
        self.updates_made = 0
        self.immediate = False  # inside skip_synchronize()
        self.residuals = Residuals(buffer)
        self._scale_lr = scale_lr
        self._warned = set()  # of what a checkpoint does not hold
        self._step = bare_step(optimizer)

    # ---- waiting

    def receive(self, due, gradients, runs):
        """Waits for the averages of some gradients, which lie in `runs` of the arena; p.grad then is the average."""
        arena, scale = self._buffer.arena, self._buffer.writer.scaling.after
        common = due.common
        if common is not None:
            arena.wait_for(runs, common.number)
            views, factor = arena.views[common.slot], scale / common.merged
            for gradient in self._buffer.writer.moved(gradients, due):
                gradient.take(factor, views[gradient.place])
        else:
            self._receive_some(due, gradients, scale)
        if self.norms is not None:
            self.norms.averaged(gradients, due)

    def receive_all(self, due):
        with self._buffer.averages(due.last_step):
            self.receive(due, self._buffer.gradients, [(0, len(self._buffer.gradients))])

    def _receive_some(self, due, gradients, scale):
        arena = self._buffer.arena
        found = [gradient for gradient in gradients if due.of(gradient.place) is not None]
        for gradient in found:
            arena.wait_for([(gradient.place, 1)], due.of(gradient.place).number)
        for gradient in self._buffer.writer.moved(found, due):
            generation = due.of(gradient.place)
            gradient.take(scale / generation.merged, arena.views[generation.slot][gradient.place])

    # ---- applying

    def may_defer(self, due=None):
        return not self.immediate and self.overlap.may_defer() and (due is None or not self.scales.cover(due))

    def defer(self, due):
        """Leaves an update to the next forward."""
        self.updates_made += 1
        self.overlap.deferred.defer(due, self._lr_factor(due))

    def apply(self, due, update=None):
        """Waits for an average and applies it by `update`, or else by the real step() without the hooks on it."""
        self.receive_all(due)
        result = self.apply_shown(due, self._bare_step if update is None else update)
        self._buffer.release_grads()
        return result

    def apply_shown(self, due, update):
        """p.grad is the average. Without an update if it is infinite and came of a scaled loss."""
        if self.scales.cover(due):
            infinite = has_infinities(gradient.param.grad for gradient in self._buffer.gradients)
            self.scales.tell(due, infinite)
            if infinite:
                return None
        self.updates_made += 1
        with self._scaled_lr(self._lr_factor(due)):
            return update()

    def flush(self):
        """Applies what step() has deferred to the next forward."""
        self.overlap.flush()

    def report_loss(self, loss, target):
        """Updates that are never stale nor merged need no judgement."""
        if self.norms is not None:
            self.norms.report_loss(loss, target)

    def note_saving(self):
        """A checkpoint is being made."""
        if self._buffer.schedule.pending():
            self._warn_once(
                "a state_dict() is taken while gradients wait for their update: they will not be in the checkpoint. "
                "Call optimizer.flush() on all ranks before it"
            )
        codecs = self.residuals.codecs()
        if codecs:
            self._warn_once(
                f"a state_dict() does not hold what encodings ({', '.join(codecs)}) have left out of gradients so far. "
                "If it is to have everything, call optimizer.flush(residuals=True) on all ranks before the last step"
            )

    def _warn_once(self, text):
        if text not in self._warned:
            self._warned.add(text)
            log.warning(text)

    def _bare_step(self):
        return self._step(self._optimizer_of())

    def _lr_factor(self, due):
        return due.merged if self._scale_lr else 1

    @contextlib.contextmanager
    def _scaled_lr(self, factor):
        if factor == 1:
            yield
            return
        groups = self._optimizer_of().__dict__["param_groups"]
        before = [group["lr"] for group in groups]
        for group in groups:
            group["lr"] = group["lr"] * factor
        try:
            yield
        finally:
            for group, lr in zip(groups, before, strict=True):
                group["lr"] = lr
