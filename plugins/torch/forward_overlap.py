"""Whether updates can wait for the next forward, found by watching the first steps; and the stages of a step."""

import logging
import weakref

import deft
from deft.gradient_round import Phase
from deft.world import rank

import torch
from torch.optim import optimizer as torch_optimizer

from .compiling import untraced
from .deferred_updates import DeferredUpdates, weakly
from .parameter_use import ParameterUseTracker
from .weight_averages import let_averages_see_updates

log = logging.getLogger("deft.torch")
_WATCHED_STEPS = {"auto": 2, "on": 1}


class ForwardOverlap:
    """`mode`: auto, on or off. `deferred` is None until updates overlap with forward."""

    def __init__(self, optimizer, buffer, receive, mode):
        self.mode = mode
        self.deferred = None
        self.tracker = ParameterUseTracker({id(g.param): g.param for g in buffer.gradients}, deep=mode != "off")
        self._optimizer_of = weakref.ref(optimizer)
        self._buffer = buffer
        self._receive = receive
        self._steps = 0

    @property
    def watches(self):
        """Whether this is still to be decided."""
        return self.mode != "off" and self.deferred is None

    def may_defer(self):
        """Whether the update of this step() can wait. Hooks on step() keep the barrier: they run once a step."""
        optimizer = self._optimizer_of()
        return (
            self.deferred is not None
            and not optimizer._optimizer_step_pre_hooks
            and not optimizer._optimizer_step_post_hooks
            and not torch_optimizer._global_optimizer_pre_hooks
            and not torch_optimizer._global_optimizer_post_hooks
            and getattr(optimizer, "grad_scale", None) is None
        )

    def generation_begins(self):
        if self.deferred is not None:
            self.deferred.backward_begins()
        elif not self.tracker.done:
            self.tracker.stop()

    def check_gradients_kept(self):
        """In the watched steps: whoever changes averages before step() needs the barrier."""
        if self.mode == "auto" and self.deferred is None:
            changed = self._buffer.versions.changed()
            if changed is not None:
                self._stay(f"gradients are changed between backward() and step() (first seen: {changed})")

    def count_step(self):
        self._steps += 1
        if not self.tracker.done:
            self.tracker.stop()  # its forward was ended by Ctrl-C, which a backward cannot find out
        if self.watches and self._steps >= _WATCHED_STEPS[self.mode]:
            self._activate()

    def flush(self):
        """Applies what step() has deferred to the next forward."""
        if self.deferred is not None:
            self.deferred.flush()

    def release(self):
        self.tracker.stop()
        if self.deferred is not None:
            self.deferred.remove()

    def _activate(self):
        if self._buffer.sparse:
            return self._stay("gradients are sparse")
        if not self.tracker.done or not self.tracker.found:
            return self._stay("no module's forward was seen to use the parameters")
        let_averages_see_updates()
        self.deferred = DeferredUpdates(
            self._optimizer_of(), self._buffer, self._receive, self.tracker.found, self.tracker.roots
        )
        return None

    def _stay(self, why):
        if rank() == 0:
            log.warning("updates do not overlap with forward: %s", why)
        self.mode = "off"


class StageReports:
    """Tells the daemon when forward and backward begin, if this optimizer is the one that does (StageReporters).

    `memory` records what steps hold, for traces.
    """

    def __init__(self, buffer, memory):
        self._buffer = buffer
        self._session = buffer.process_set.session()
        self._session.reporters.add(self)
        self._memory = memory
        self._told = -1  # the step whose forward was told
        self._hooks = []
        self._roots = []

    def owes_forward(self):
        """Whether this optimizer reports, and has not told this step's forward."""
        return self._told != self._buffer.schedule.step and self._session.reporters.reports(self)

    def backward_begins(self):
        if self._session.reporters.step_begins(self):
            self._tell(deft.BACKWARD, self._buffer.schedule.step)

    def forward_begins(self, inputs):
        """The first forward of a generation."""
        if self._buffer.round.phase is Phase.IDLE:
            self._told = self._buffer.schedule.step
            self._tell(deft.FORWARD, self._told)
            self._memory.forward_begins(self._roots, inputs)

    def _tell(self, stage, step):
        arena = self._buffer.arena
        (self._session if arena is None else arena).stage(stage, step)

    def update_begins(self):
        self._memory.update_begins()

    def update_ends(self):
        """step() is over, though its update may be deferred."""
        self._memory.update_ends()

    def watch(self, tracker):
        """Once the model is known, its forward reports the stage."""
        if not self._hooks and tracker.done:
            self._roots = tracker.roots
            self._hooks = [
                module.register_forward_pre_hook(_StageHook(self), with_kwargs=True) for module in tracker.roots
            ]

    def release(self):
        self._session.reporters.remove(self)
        self._memory.release()
        for hook in self._hooks:
            hook.remove()
        self._hooks = []


class _StageHook:
    """A forward pre-hook; a copy or pickle of its module gets one that does nothing."""

    def __init__(self, reports=None):
        self._reports_of = weakly(reports)

    def __call__(self, _module, arguments, named):
        reports = self._reports_of()
        if reports is not None and reports.owes_forward() and torch.is_grad_enabled():
            self._tell(reports, (arguments, named))

    @staticmethod
    @untraced
    def _tell(reports, inputs):
        reports.forward_begins(inputs)

    def __reduce__(self):
        return (_StageHook, ())
