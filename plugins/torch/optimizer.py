"""DistributedOptimizer: the user's optimizer, with gradients averaged over all ranks before each step().

The optimizer object stays the same and keeps its class by inheritance: its class becomes a subclass made on the spot,
so isinstance, param_groups, state, LR schedulers and checkpoints see what they saw before.
"""

import contextlib
import sys
import weakref

import deft

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from .autograd import allreduce
from .collectives import Average, ReduceOp, Sum
from .compiling import untraced
from .compression import Compression
from .exchange import Exchange, Phase
from .gradient import Gradient
from .overlap import Updates, policy_gains
from .sites import Sites
from .world import depend, log, number_optimizer, rank, size

_owners = WeakTensorKeyDictionary()  # parameter -> weak reference to the Distribution whose hooks it has
_WATCHED_STEPS = {"auto": 2, "on": 1}


def DistributedOptimizer(
    optimizer,
    named_parameters=None,
    compression=Compression.none,
    backward_passes_per_step=1,
    op=Average,
    gradient_predivide_factor=1.0,
    num_groups=0,
    groups=None,
    sparse_as_dense=False,
    overlap_forward=None,
):
    """Makes `optimizer` average its gradients over all ranks, and gives it back.

    named_parameters: model.named_parameters(), for messages and for the order of forward.
    compression: Compression.none or Compression.fp16, for what travels.
    backward_passes_per_step: backward passes whose gradients are added up before they are averaged.
    op: Average or Sum. gradient_predivide_factor: how much of the division comes before the sum (Average only).
    num_groups, groups: accepted for Horovod's sake; Deft cuts gradients into buckets by itself.
    sparse_as_dense: sum sparse gradients as dense ones; otherwise their rows are gathered.
    overlap_forward: "auto", "on" or "off" (True, False): let a layer's forward start when that layer is updated; the
    default is the option overlap_forward.
    """
    base = type(optimizer)
    if hasattr(base, "deft_base"):
        raise ValueError("this optimizer is a DistributedOptimizer already")
    if op not in (Average, Sum):
        raise ValueError(f"op is {op!r}; DistributedOptimizer offers deft.torch.Average and deft.torch.Sum")
    if gradient_predivide_factor != 1.0 and op is not Average:
        raise ValueError("gradient_predivide_factor works with op=Average only")
    if backward_passes_per_step < 1:
        raise ValueError(f"backward_passes_per_step is {backward_passes_per_step}; it must be 1 or more")
    if (num_groups or groups) and rank() == 0:
        log.info("num_groups and groups have no effect: Deft fuses and cuts gradients by its policy")
    names = _names(optimizer, named_parameters)
    gradients = [
        Gradient(param, name, position, compression)
        for position, (name, param) in enumerate(names)
        if param.requires_grad and param.numel()
    ]
    if not gradients:
        raise ValueError("the optimizer has no parameter that requires a gradient")
    _retire_earlier(gradients)
    scale, rescale = _scales(op, gradient_predivide_factor)
    number = number_optimizer()
    exchange = Exchange(f"optimizer.{number}", gradients, scale, rescale, backward_passes_per_step, sparse_as_dense)
    exchange.reports_stages = number == 0
    optimizer.__class__ = type(base.__name__, (_Distributed, base), {"__module__": base.__module__, "deft_base": base})
    optimizer._deft = Distribution(optimizer, exchange, _overlap_mode(overlap_forward, optimizer))
    for gradient in gradients:
        _owners[gradient.param] = weakref.ref(optimizer._deft)
    _keep_scheduler_informed(optimizer)
    return optimizer


def _retire_earlier(gradients):
    """A model that is given to a new optimizer leaves its earlier one."""
    for gradient in gradients:
        reference = _owners.pop(gradient.param, None)
        earlier = None if reference is None else reference()
        if earlier is not None:
            earlier.retire(gradient.name)


def _scales(op, predivide):
    """What gradients are multiplied by before and after the sum."""
    if op is Sum:
        return 1.0, 1.0
    if predivide == 1.0:
        return 1.0 / size(), 1.0
    return 1.0 / predivide, predivide / size()


def _names(optimizer, named_parameters):
    """(name, parameter) of all of the optimizer's parameters, in forward order."""
    own = [param for group in optimizer.param_groups for param in group["params"]]
    if named_parameters is None:
        given = [name for group in optimizer.param_groups for name in group.get("param_names", ())]
        if len(given) != len(own):
            given = [
                f"group{g}.{i}" for g, group in enumerate(optimizer.param_groups) for i in range(len(group["params"]))
            ]
        return list(zip(given, own))
    named = list(named_parameters)
    if not all(isinstance(pair, tuple) and len(pair) == 2 for pair in named):
        raise ValueError(
            "named_parameters should be a sequence of tuples (name, parameter), as model.named_parameters()"
        )
    names = [name for name, _ in named]
    twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    if twice:
        raise ValueError(f"names in named_parameters must differ; found more than once: {', '.join(twice)}")
    ids = {id(param) for param in own}
    unnamed = len(ids - {id(param) for _, param in named})
    if unnamed:
        raise ValueError(f"named_parameters was given, but {unnamed} of the optimizer's parameters are not in it")
    first = {}
    for name, param in named:
        if id(param) in ids:
            first.setdefault(id(param), (name, param))
    return list(first.values())


def _overlap_mode(argument, optimizer):
    """auto, on or off, and why not where it was asked for."""
    mode = {None: None, True: "on", False: "off"}.get(argument, argument)
    mode = deft.option("overlap_forward") if mode is None else mode
    if mode not in ("auto", "on", "off"):
        raise ValueError(f"overlap_forward is {argument!r}; give auto, on or off")
    base = type(optimizer).deft_base
    if mode == "auto" and not (policy_gains() and base.__module__.startswith("torch.optim.")):
        return "off"
    if mode != "off" and issubclass(base, (torch.optim.LBFGS, torch.optim.SparseAdam)):
        if mode == "on":
            log.warning("overlap_forward=on has no effect: %s updates all parameters together", base.__name__)
        return "off"
    return mode


def _keep_scheduler_informed(optimizer):
    """An LR scheduler made before has wrapped step() of this object: lets the wrapper call the new one."""
    wrapped = optimizer.__dict__.get("step")
    if wrapped is None:
        return

    def step(*args, **kwargs):
        optimizer._opt_called = True
        return type(optimizer).step(optimizer, *args, **kwargs)

    step.__dict__.update(getattr(wrapped, "__dict__", {}))
    step._wrapped_by_lr_sched = True
    optimizer.step = step


class Distribution:
    """What DistributedOptimizer adds to one optimizer: the exchange, and deferred updates where they are safe."""

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
        self.updates.defer()

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
        if self.updates is not None:
            self.updates.flush()

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


class _Distributed:
    """Comes before the user's class in the class of a distributed optimizer."""

    def step(self, closure=None, *args, **kwargs):
        d = self._deft
        d.check_in_use()
        if closure is not None:
            return self._step_with(closure, *args, **kwargs)
        if d.may_defer():
            d.defer()
            return None
        d.before_step()
        result = super().step(*args, **kwargs)
        d.after_step()
        d.tell_stages()
        return result

    step.hooked = True  # torch wraps step() for profiling and hooks once: that of the user's class

    def _step_with(self, closure, *args, **kwargs):
        """The optimizer may decide by the loss, so it sees the average on every rank."""
        d = self._deft

        def evaluate():
            loss = closure()
            d.exchange.synchronize()
            value = loss.detach() if isinstance(loss, torch.Tensor) else torch.tensor(float(loss))
            return allreduce(value, op=Average, name=f"{d.exchange.name}.loss")

        d.flush()
        with d.blocking():
            result = super().step(evaluate, *args, **kwargs)
        d.exchange.used()
        return result

    def synchronize(self):
        """Waits until every p.grad holds its average: for clipping and the like before step()."""
        self._deft.check_in_use()
        self._deft.flush()
        self._deft.exchange.synchronize()

    @contextlib.contextmanager
    def skip_synchronize(self):
        """Around step() after synchronize(), as in Horovod; the update is made at once."""
        self._deft.immediate = True
        try:
            yield
        finally:
            self._deft.immediate = False

    def flush(self):
        """Applies the updates that wait for the next forward; without forward overlap there are none."""
        self._deft.flush()

    def set_backward_passes_per_step(self, passes):
        self._deft.exchange.set_passes(passes)

    def zero_grad(self, set_to_none=True):
        self._deft.exchange.drop()
        super().zero_grad(set_to_none)

    def state_dict(self):
        self._deft.flush()
        return super().state_dict()

    def load_state_dict(self, state_dict):
        self._deft.flush()
        return super().load_state_dict(state_dict)

    def add_param_group(self, param_group):
        params = param_group["params"]
        params = [params] if isinstance(params, torch.Tensor) else list(params)
        if any(isinstance(param, torch.Tensor) and param.requires_grad for param in params):
            raise ValueError(
                "parameters cannot be added to a DistributedOptimizer; add all groups before "
                "deft.torch.DistributedOptimizer, with requires_grad set"
            )
        super().add_param_group({**param_group, "params": params})
        self._deft.add_unhooked(params)

    @property
    def state(self):
        distribution = self.__dict__.get("_deft")
        if distribution is not None:
            distribution.flush()
        return self.__dict__["state"]

    @state.setter
    def state(self, value):
        self.__dict__["state"] = value

    @property
    def param_groups(self):
        """Who looks at the groups between backward() and step(), a GradScaler for one, finds the averages in p.grad."""
        distribution = self.__dict__.get("_deft")
        if distribution is not None:
            distribution.show_averages()
        return self.__dict__["param_groups"]

    @param_groups.setter
    def param_groups(self, groups):
        self.__dict__["param_groups"] = groups

    def __reduce_ex__(self, protocol):
        """Copies and pickles are plain optimizers of the user's class."""
        self._deft.flush()
        return (_plain, (type(self).deft_base,), self.__getstate__())


def _plain(base):
    return base.__new__(base)


__all__ = ["DistributedOptimizer", "ReduceOp"]
