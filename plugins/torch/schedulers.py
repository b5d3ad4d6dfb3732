"""LR schedulers and distributed optimizers: what schedulers count, and whose step() they wrap."""

import functools
import weakref

from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

_seen = weakref.WeakKeyDictionary()  # scheduler -> the optimizer's updates when it made its last step


def let_schedulers_count_updates():
    """If updates are delayed, a scheduler's step() does nothing unless an update was made since its last one."""
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
        steps = getattr(getattr(scheduler, "optimizer", None), "_deft", None)
        if steps is not None and steps.schedule.delays:
            made = steps.applier.updates_made
            begins = getattr(scheduler, "_step_count", 1) == 0  # its constructor calls step(), too
            if not begins and _seen.get(scheduler, 0) == made:
                return None
            _seen[scheduler] = made
        return step(scheduler, *args, **kwargs)

    counted.deft_counts = True
    return counted


def keep_scheduler_informed(optimizer):
    """An LR scheduler made before has wrapped step() of this object: lets the wrapper call the new one."""
    wrapped = optimizer.__dict__.get("step")
    if wrapped is None:
        return

    optimizer_of = weakref.ref(optimizer)

    def step(*args, **kwargs):
        optimizer = optimizer_of()
        optimizer._opt_called = True
        return type(optimizer).step(optimizer, *args, **kwargs)

    step.__dict__.update(getattr(wrapped, "__dict__", {}))
    step._wrapped_by_lr_sched = True
    optimizer.step = step
