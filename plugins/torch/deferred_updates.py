"""Updates that overlap with the next forward.

step() only notes what to do; each module's parameters are updated right before that module first uses them, by the
user's own optimizer: its param_groups are replaced by the ready parameters for one call of its real step(), with the
hyper-parameters of the moment at which the user called step(). So the result has the bits of the plain loop.

Small neighbours in forward order are updated together, since a call of step() costs some tens of microseconds.
"""

import weakref

from deft.session import runs_of

import torch

from .compiling import untraced

_BATCH_BYTES = 64 << 10


class _Batch:
    """Parameters that are updated together."""

    def __init__(self, gradients, group_of):
        self.gradients = gradients
        self.runs = runs_of(gradient.place for gradient in gradients)
        self.by_group = {}
        for gradient in gradients:
            self.by_group.setdefault(group_of[gradient.param], []).append(gradient.param)
        self.pending = False


class DeferredUpdates:
    """The deferred updates of one optimizer.

    `receive(due, gradients, runs)` waits for averages and shows them in p.grad. `uses`: (module, parameters) in the
    order of forward. `roots`: the outermost modules.
    """

    def __init__(self, optimizer, buffer, receive, uses, roots):
        self._optimizer_of = weakref.ref(optimizer)
        self._buffer = buffer
        self._receive = receive
        self._apply_step = bare_step(optimizer)
        self._hooks = []
        self._batches = []
        self._groups = None  # hyper-parameters at step()
        self._due = None  # the update to wait for, with its generations
        self._left = 0  # batches not yet applied
        self._unclaimed = set()  # updated when this backward began: no forward may have used them
        self._without_module = None  # the batch of the parameters that no module was seen to use
        self.applying = False
        self._build(uses)
        self._guard_state(roots)

    def defer(self, due, lr_factor):
        """The user's step(): notes the update and the hyper-parameters of this moment."""
        self._groups = [
            {key: _copied(value) for key, value in group.items() if key != "params"} for group in self._real_groups()
        ]
        if lr_factor != 1:  # of an update that merges steps
            for group in self._groups:
                group["lr"] = group["lr"] * lr_factor
        self._due = due
        for batch in self._batches:
            batch.pending = True
        self._left = len(self._batches)
        self._unclaimed.clear()
        if self._without_module is not None:
            self.apply(self._without_module)

    def flush(self):
        """Applies everything that is deferred."""
        if self._left and not self.applying:
            for batch in self._batches:
                self.apply(batch)

    def flush_at_end(self, optimizer):
        """The same while `optimizer` ends. References to what Python collects are gone by then."""
        before, self._optimizer_of = self._optimizer_of, lambda: optimizer
        try:
            self.flush()
        finally:
            self._optimizer_of = before

    def remove(self):
        """What is still deferred is dropped: its job has ended."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        for batch in self._batches:
            batch.pending = False
        self._left = 0

    # ---- when

    def _build(self, uses):
        group_of = {param: number for number, group in enumerate(self._real_groups()) for param in group["params"]}
        gradient_of = {gradient.param: gradient for gradient in self._buffer.gradients}
        waiting, modules, bytes_waiting = [], [], 0
        for module, params in uses:
            waiting += [gradient_of.pop(param) for param in params]
            modules.append(module)
            bytes_waiting += sum(param.numel() * param.element_size() for param in params)
            if bytes_waiting >= _BATCH_BYTES:
                self._add(_Batch(waiting, group_of), modules)
                waiting, modules, bytes_waiting = [], [], 0
        if waiting:
            self._add(_Batch(waiting, group_of), modules)
        if gradient_of:
            self._without_module = _Batch(list(gradient_of.values()), group_of)
            self._batches.append(self._without_module)

    def _add(self, batch, modules):
        self._batches.append(batch)
        for module in modules:  # before the module's own hooks: those of weight_norm and of pruning read parameters
            self._hooks.append(module.register_forward_pre_hook(_BeforeForward(self, batch), prepend=True))

    def _guard_state(self, roots):
        """model.state_dict(), of the whole or of a part, sees the updated parameters. load_state_dict() comes after the
        updates, too: they would be made to what was loaded."""
        guard = _BeforeState(self)
        for module in {module for root in roots for module in root.modules()}:
            if any(True for _ in module.parameters()):
                self._hooks.append(module.register_state_dict_pre_hook(guard))
                self._hooks.append(module._register_load_state_dict_pre_hook(guard))  # torch 2.1 has no public one

    def backward_begins(self):
        """Updates what no module asked for in this forward, before its place in the arena is written again."""
        if self._left:
            unclaimed = [gradient for batch in self._batches if batch.pending for gradient in batch.gradients]
            for gradient in unclaimed:
                if gradient.param.grad is not None:
                    _refuse_use(gradient)
            self._unclaimed = {gradient.param for gradient in unclaimed}
            self.flush()
        elif self._unclaimed:
            self._unclaimed.clear()

    def refuse_uses_before_update(self):
        """A parameter that was updated when this backward began must not have got a gradient from it."""
        if not self._unclaimed:
            return
        for gradient in self._buffer.produced():
            if gradient.param in self._unclaimed:
                _refuse_use(gradient)

    # ---- how

    def apply(self, batch):
        if not batch.pending:
            return
        with torch.inference_mode(False):  # p.grad may be made here
            self._receive(self._due, batch.gradients, batch.runs)
        self._call_step([{**self._groups[number], "params": params} for number, params in batch.by_group.items()])
        for gradient in batch.gradients:
            gradient.param.grad = None
        batch.pending = False
        self._left -= 1

    def _real_groups(self):
        return self._optimizer_of().__dict__["param_groups"]  # without the look at the averages that others get

    def _call_step(self, groups):
        optimizer = self._optimizer_of()
        real, optimizer.param_groups = self._real_groups(), groups
        self.applying = True
        try:
            with torch.inference_mode(False), _without_autocast():
                self._apply_step(optimizer)
        finally:
            self.applying = False
            optimizer.param_groups = real


class _BeforeForward:
    """A forward pre-hook. Copies and pickles of a module get one that does nothing."""

    def __init__(self, updates=None, batch=None):
        self._updates_of = weakly(updates)
        self._batch = batch

    def __call__(self, _module, _arguments):
        if self._batch is not None and self._batch.pending:
            self._update()

    @untraced
    def _update(self):
        updates = self._updates_of()
        if updates is None or updates.applying:
            return
        if torch.is_grad_enabled():
            updates.apply(self._batch)
        else:
            updates.flush()  # an evaluation may take other ways through the model

    def __reduce__(self):
        updates = self._updates_of()
        if updates is not None:
            updates.flush()
        return (_BeforeForward, ())


class _BeforeState:
    """A pre-hook of state_dict() and load_state_dict(), and as harmless in copies."""

    def __init__(self, updates=None):
        self._updates_of = weakly(updates)

    def __call__(self, *_arguments):
        updates = self._updates_of()
        if updates is not None:
            updates.flush()

    def __reduce__(self):
        self()
        return (_BeforeState, ())


def weakly(thing):
    """A function that gives `thing` while it lives, and None for None: a module's hooks keep nothing of Deft alive."""
    return (lambda: None) if thing is None else weakref.ref(thing)


def _refuse_use(gradient):
    raise RuntimeError(
        f"parameter {gradient.name} was used in a forward outside of the module that used it when training began, and "
        "so before its last update; call optimizer.flush() before such a forward, or set DEFT_OVERLAP_FORWARD=off"
    )


def bare_step(optimizer):
    """The real step() without the user's step hooks, which run once a step and not once a batch."""
    step = type(optimizer).deft_base.step
    return step.__wrapped__ if getattr(step, "hooked", False) else step


def _copied(value):
    return value.clone() if isinstance(value, torch.Tensor) else value


def _without_autocast():
    return torch.autocast("cpu", enabled=False) if torch.is_autocast_enabled("cpu") else _NOTHING


class _Nothing:
    def __enter__(self):
        return self

    def __exit__(self, *_):
        return False


_NOTHING = _Nothing()
