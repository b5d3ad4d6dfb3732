"""What DistributedOptimizer adds to one optimizer: the exchange, and deferred updates where they are safe."""

import contextlib
import sys

import torch

from .autograd import allreduce
from .collectives import Average
from .compiling import untraced
from .exchange import Phase
from .overlap import Updates
from .sites import Sites
from .world import depend, log, rank

_WATCHED_STEPS = {"auto": 2, "on": 1}


class Distribution:
    """Of an optimizer whose updates are made with the step's own gradients. `mode`: forward overlap auto, on or off."""

    def __init__(self, optimizer, exchange, mode):
        self._optimizer = optimizer
        self.exchange = exchange
        self.mode = mode
        self.updates = None
        self.immediate = False  # inside skip_synchronize()
        self._retired = None  # the parameter that a newer optimizer has taken
        self._steps = 0
        self._stage_hooks = []
        known = {id(g.param) for g in exchange.gradients}
        self._unhooked = [p for group in optimizer.param_groups for p in group["params"] if id(p) not in known]
        exchange.watches = mode != "off"
        exchange.before_backward = self._first_backward
        wanted = {id(g.param): g.param for g in exchange.gradients}
        self._sites = Sites(wanted, deep=mode != "off")
        depend(self)

    # ---- at step()

    def step(self, update):
        """`update` is the step() of the user's class."""
        if self.may_defer():
            self.defer()
            return None
        self.before_step()
        result = update()
        self.after_step()
        self.tell_stages()
        return result

    def step_with(self, update, closure):
        """The optimizer may decide by the loss, so it sees the average on every rank."""

        def evaluate():
            loss = closure()
            self.exchange.synchronize()
            value = loss.detach() if isinstance(loss, torch.Tensor) else torch.tensor(float(loss))
            return allreduce(value, op=Average, name=f"{self.exchange.name}.loss")

        self.flush()
        with self.blocking():
            result = update(evaluate)
        self.exchange.used()
        return result

    def synchronize(self):
        self.flush()
        self.exchange.synchronize()

    def may_defer(self):
        """Whether this step()'s updates can wait for the next forward."""
        optimizer = self._optimizer
        return (
            self.updates is not None
            and not self.immediate
            and self.exchange.phase is not Phase.AVERAGED  # synchronize() was called: the user works with the averages
            and not optimizer._optimizer_step_pre_hooks
            and not optimizer._optimizer_step_post_hooks
            and getattr(optimizer, "grad_scale", None) is None
        )

    def defer(self):
        self.exchange.complete()
        self.check_gradients()
        self.updates.flush()
        self.updates.check_step()
        self.updates.defer(self.exchange.hand_on())

    def before_step(self):
        """All gradients averaged, all earlier updates applied."""
        self.flush()
        self.exchange.synchronize()
        self.check_gradients()
        if self.mode == "auto" and self.updates is None:
            changed = self.exchange.changed()
            if changed is not None:
                self._stay(f"gradients are changed between backward() and step() (first seen: {changed})")

    def after_step(self):
        self.exchange.used()
        self._count_step()

    def _count_step(self):
        self._steps += 1
        if self.mode != "off" and self.updates is None and self._steps >= _WATCHED_STEPS[self.mode]:
            self._activate()

    def retire(self, name):
        """A newer optimizer takes a parameter of this one."""
        if self._retired is None:
            self.settle()
            self.release()
            self._retired = name

    def check_in_use(self):
        if self._retired is not None:
            raise RuntimeError(
                f"parameter {self._retired} was given to a newer DistributedOptimizer; this one is out of use"
            )

    def check_gradients(self):
        for param in self._unhooked:
            if param.grad is not None:
                raise RuntimeError(
                    f"a parameter of shape {list(param.shape)} has a gradient, but did not require one when the "
                    "optimizer was made distributed; set requires_grad before deft.torch.DistributedOptimizer, or wrap "
                    "a new optimizer"
                )

    # ---- forward overlap

    def _first_backward(self):
        self._sites.stop()
        self.exchange.before_backward = lambda: None

    def _activate(self):
        if self.exchange.sparse:
            return self._stay("gradients are sparse")
        if not self._sites.done or not self._sites.found:
            return self._stay("no module's forward was seen to use the parameters")
        self.updates = Updates(self._optimizer, self.exchange, self._sites.found, self._sites.roots)
        self.exchange.blocking = False
        self.exchange.watches = False
        return None

    def _stay(self, why):
        if rank() == 0:
            log.warning("updates do not overlap with forward: %s", why)
        self.mode = "off"
        self.exchange.watches = False

    def tell_stages(self):
        """Once the model is known, its forward reports the stage."""
        if self._stage_hooks or not self.exchange.reports_stages or not self._sites.done:
            return
        self._stage_hooks = [
            module.register_forward_pre_hook(_StageHook(self.exchange)) for module in self._sites.roots
        ]

    @contextlib.contextmanager
    def blocking(self):
        """Every backward in here ends with the averages in p.grad."""
        before, self.exchange.blocking = self.exchange.blocking, True
        try:
            yield
        finally:
            self.exchange.blocking = before

    def flush(self):
        """Applies what step() has deferred to the next forward."""
        if self.updates is not None:
            self.updates.flush()

    def flush_all(self):
        """The same, and whatever else was handed in and is not applied yet."""
        self.flush()

    def report_loss(self, loss, target):
        """Updates that are never late nor merged need no judgement."""

    def note_saving(self):
        """A checkpoint is being made."""

    def settle(self):
        """Before this rank leaves: waits for all that it has handed over, since the others wait for the same."""
        self.flush()
        if self.exchange.phase is Phase.HANDED:
            self.exchange.wait()

    def show_averages(self):
        """Where updates are deferred, a complete generation may not have arrived yet."""
        if self.exchange.phase is Phase.HANDED and not self.exchange.blocking:
            self.exchange.wait()

    def add_unhooked(self, params):
        self._unhooked += params

    def release(self):
        """Before the session ends, or with the optimizer: no hook and no gradient may point into the arena."""
        self._sites.stop()
        for hook in self._stage_hooks:
            hook.remove()
        self._stage_hooks = []
        if self.updates is not None:
            self.updates.remove()
        self.exchange.release()

    def __del__(self):
        if not sys.is_finalizing():
            self.release()


class _StageHook:
    """A forward pre-hook; a copy or pickle of its module gets one that does nothing."""

    def __init__(self, exchange=None):
        self._exchange = exchange

    def __call__(self, _module, _arguments):
        if self._exchange is not None and not self._exchange.forward_told and torch.is_grad_enabled():
            self._tell()

    @untraced
    def _tell(self):
        self._exchange.tell_forward()

    def __reduce__(self):
        return (_StageHook, ())
