"""step() where updates are delayed: which averages are applied when, and the user's optimizer called for them."""

import contextlib
import functools
import weakref

from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from .distribution import Distribution
from .exchange import Phase
from .norms import Norms
from .overlap import bare_step
from .scaling import has_infinities, refuse_torch_scalers
from .world import log


class DelayedDistribution(Distribution):
    """A Distribution whose exchange is a DelayedExchange.

    scale_lr: an update that merges k steps is made with k times the learning rate.
    """

    def __init__(self, optimizer, exchange, mode, scale_lr):
        super().__init__(optimizer, exchange, mode)
        self.updates_made = 0
        self._scale_lr = scale_lr
        exchange.splits_merged = scale_lr
        exchange.norms = Norms(optimizer, exchange, scale_lr)
        self._warned = False
        self._apply = functools.partial(bare_step(optimizer), optimizer)
        _let_schedulers_count_updates()
        refuse_torch_scalers()

    def step(self, update):
        exchange = self.exchange
        if exchange.phase is Phase.AVERAGED:  # synchronize() has shown what is due
            result = self._made(exchange.shown, update) if exchange.shown is not None else None
            exchange.turn()
        else:
            self._complete()
            result = self._update(exchange.turn(), update)
        self._count_step()
        self.tell_stages()
        return result

    def synchronize(self):
        """p.grad holds the average that this step() will apply; None where none is due."""
        exchange = self.exchange
        if exchange.phase is Phase.AVERAGED:
            return
        self._complete()
        self.flush()
        *earlier, last = exchange.due_after_this() or [None]
        for due in earlier:
            self._make(due, self._apply)
            exchange.applied(due)
        exchange.show(last)

    def flush_all(self):
        """Applies everything that has been gathered, on all ranks between the same steps."""
        if self.exchange.phase is not Phase.IDLE:
            raise RuntimeError("flush() between backward() and step(): call it after step()")
        self.flush()
        for due in self.exchange.end_generation():
            self._make(due, self._apply)

    def scaled_by(self, scaler, scale):
        """The losses of this step were multiplied by `scale`: updates with infinities are skipped, and it is told."""
        if self.exchange.phase is not Phase.AVERAGED:
            self._complete()
        self.exchange.note_scale(scaler, scale)

    def settle(self):
        self.flush()
        if self.exchange.phase is Phase.IDLE:
            self.flush_all()

    def show_averages(self):
        if self.exchange.phase is Phase.HANDED:
            self.synchronize()

    def report_loss(self, loss, target):
        self.exchange.norms.report_loss(loss, target)

    def step_with(self, _update, _closure):
        raise RuntimeError(
            "step(closure) computes gradients in the middle of an update, which delayed updates do not allow; use a "
            "synchronous DEFT_POLICY"
        )

    def note_saving(self):
        """A checkpoint is being made."""
        if self.exchange.pending() and not self._warned:
            self._warned = True
            log.warning(
                "a state_dict() is taken while gradients wait for their update: they will not be in the checkpoint. "
                "Call optimizer.flush() on all ranks before it"
            )

    # ---- one update

    def _complete(self):
        self.exchange.complete()
        self.check_gradients()
        if self.updates is not None:
            self.updates.refuse_late()
        name = self.exchange.changed()
        if name is not None:
            raise RuntimeError(
                f"the gradient of {name} was changed between backward() and step(), after it was merged into the "
                "average (clipping or unscaling, for instance): call optimizer.synchronize() before"
            )
        self.exchange.norms.gathered()

    def _update(self, due, update):
        self.flush()
        if not due:
            return None
        for earlier in due[:-1]:
            self._make(earlier, self._apply)
        if self.may_defer() and not self.exchange.scales.cover(due[-1]):
            self.updates_made += 1
            self.updates.defer(due[-1], self._lr_factor(due[-1]))
            return None
        return self._make(due[-1], update)

    def may_defer(self):
        optimizer = self._optimizer
        return (
            self.updates is not None
            and not self.immediate
            and not optimizer._optimizer_step_pre_hooks
            and not optimizer._optimizer_step_post_hooks
            and getattr(optimizer, "grad_scale", None) is None
        )

    def _make(self, due, update):
        """Waits for an average and lets the optimizer apply it."""
        self.exchange.receive_all(due)
        result = self._made(due, update)
        for gradient in self.exchange.gradients:
            gradient.param.grad = None
        return result

    def _made(self, due, update):
        if self.exchange.scales.cover(due):
            infinite = has_infinities(gradient.param.grad for gradient in self.exchange.gradients)
            self.exchange.scales.tell(due, infinite)
            if infinite:
                return None
        self.updates_made += 1
        with self._scaled_lr(self._lr_factor(due)):
            return update()

    def _lr_factor(self, due):
        return due.merged if self._scale_lr else 1

    @contextlib.contextmanager
    def _scaled_lr(self, factor):
        if factor == 1:
            yield
            return
        groups = self._optimizer.__dict__["param_groups"]
        before = [group["lr"] for group in groups]
        for group in groups:
            group["lr"] = group["lr"] * factor
        try:
            yield
        finally:
            for group, lr in zip(groups, before, strict=True):
                group["lr"] = lr


_seen = weakref.WeakKeyDictionary()  # scheduler -> the optimizer's updates when it made its last step


def _let_schedulers_count_updates():
    """A scheduler's step() does nothing where no update has been made since its last one."""
    waiting = [LRScheduler, ReduceLROnPlateau]
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        step = kind.__dict__.get("step")
        if step is not None and not hasattr(step, "deft_counts"):
            kind.step = _counting(step)


def _counting(step):
    @functools.wraps(step)
    def counted(scheduler, *args, **kwargs):
        distribution = getattr(getattr(scheduler, "optimizer", None), "_deft", None)
        if isinstance(distribution, DelayedDistribution):
            begins = getattr(scheduler, "_step_count", 1) == 0  # its constructor calls step(), too
            if not begins and _seen.get(scheduler, 0) == distribution.updates_made:
                return None
            _seen[scheduler] = distribution.updates_made
        return step(scheduler, *args, **kwargs)

    counted.deft_counts = True
    return counted


__all__ = ["DelayedDistribution"]
