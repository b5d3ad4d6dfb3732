"""DistributedOptimizer: the user's optimizer, with gradients averaged over all ranks before each step().

The optimizer object stays the same and keeps its class by inheritance: its class becomes a subclass made on the spot,
so isinstance, param_groups, state, LR schedulers and checkpoints see what they saw before.
"""

import contextlib
import weakref

import deft

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from .collectives import Average, ReduceOp, Sum
from .compression import Compression
from .delayed import DelayedExchange, slots_wanted
from .delayed_step import DelayedDistribution
from .distribution import Distribution
from .exchange import Exchange
from .gradient import Gradient
from .world import log, number_optimizer, rank, size

_owners = WeakTensorKeyDictionary()  # parameter -> weak reference to the Distribution whose hooks it has


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
    scale_merged_lr=None,
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
    scale_merged_lr: where a policy merges the gradients of k steps into one update, make it with k times the learning
    rate; the default is the option scale_merged_lr.
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
    number = number_optimizer()
    name, scales, slots = f"optimizer.{number}", _scales(op, gradient_predivide_factor), slots_wanted()
    if slots > 1:
        exchange = DelayedExchange(name, gradients, *scales, backward_passes_per_step, slots)
    else:
        exchange = Exchange(name, gradients, *scales, backward_passes_per_step, sparse_as_dense)
    exchange.reports_stages = number == 0
    optimizer.__class__ = type(base.__name__, (_Distributed, base), {"__module__": base.__module__, "deft_base": base})
    mode = _overlap_mode(overlap_forward, optimizer)
    if slots > 1:
        if scale_merged_lr is None:
            scale_merged_lr = deft.option("scale_merged_lr") == "on"
        optimizer._deft = DelayedDistribution(optimizer, exchange, mode, scale_merged_lr)
    else:
        optimizer._deft = Distribution(optimizer, exchange, mode)
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
    if mode == "auto" and not (deft.policy_traits().overlaps_forward and base.__module__.startswith("torch.optim.")):
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


class _Distributed:
    """Comes before the user's class in the class of a distributed optimizer."""

    def step(self, closure=None, *args, **kwargs):
        d = self._deft
        d.check_in_use()
        base = super().step
        if closure is not None:
            return d.step_with(lambda evaluate: base(evaluate, *args, **kwargs), closure)
        return d.step(lambda: base(*args, **kwargs))

    step.hooked = True  # torch wraps step() for profiling and hooks once: that of the user's class

    def synchronize(self):
        """Waits until every p.grad holds its average: for clipping and the like before step()."""
        self._deft.check_in_use()
        self._deft.synchronize()

    @contextlib.contextmanager
    def skip_synchronize(self):
        """Around step() after synchronize(), as in Horovod; the update is made at once."""
        self._deft.immediate = True
        try:
            yield
        finally:
            self._deft.immediate = False

    def flush(self):
        """Applies the updates that wait for the next forward, if there are any.

        Where updates are delayed, those of all steps so far, whatever the plan says: call it on all ranks between the
        same steps, before checkpoints and evaluations and at the end.
        """
        self._deft.flush_all()

    def report_loss(self, loss, target=0.0):
        """Tells the loss of this step, for the Preserver, which judges plans that merge or delay updates by it.

        Call it in each step on all ranks, with the loss of this rank's batch before any scaling: a number, or a tensor
        of one element, which is read only now and then. `target` is the lowest loss that can be reached, 0 or more.
        """
        self._deft.report_loss(loss, float(target))

    def set_backward_passes_per_step(self, passes):
        self._deft.exchange.set_passes(passes)

    def zero_grad(self, set_to_none=True):
        self._deft.exchange.drop()
        super().zero_grad(set_to_none)

    def state_dict(self):
        self._deft.flush()
        self._deft.note_saving()
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
