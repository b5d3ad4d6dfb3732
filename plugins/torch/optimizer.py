"""DistributedOptimizer: the user's optimizer, with gradients averaged over all ranks before each step().

The optimizer object stays the same and keeps its class by inheritance: its class becomes a subclass made on the spot,
so isinstance, param_groups, state, LR schedulers and checkpoints see what they saw before.
"""

import contextlib
import functools
import logging

import deft
from deft.codec import require_compressor
from deft.names import check_named, in_forward_order
from deft.process_sets import global_process_set
from deft.reduce_op import Adasum, Average, Sum, scaling_of
from deft.update_schedule import UpdateSchedule
from deft.world import depend, rank

import torch

from .adasum_optimizer import AdasumMixin, AdasumSteps, LocalMixin
from .arena_writers import MergingWriter, SharingWriter
from .compression import Compression
from .delayed_step import DelayedStep
from .forward_overlap import StageReports
from .gradient import Gradient
from .gradient_buffer import GradientBuffer
from .memory_recorder import MemoryRecorder
from .other_averaging import refuse_sharded
from .ownership import Ownership, register, retire_earlier, settle_at_end
from .schedulers import keep_scheduler_informed
from .synchronous_step import SynchronousStep
from .update_applier import UpdateApplier

log = logging.getLogger("deft.torch")


def _keeps_arguments(distribute):
    """Lets distribute_again() call it with the same arguments."""

    @functools.wraps(distribute)
    def keeping(optimizer, named_parameters=None, *arguments, **named):
        if named_parameters is not None:
            named_parameters = list(named_parameters)  # a generator gives them once
        distributed = distribute(optimizer, named_parameters, *arguments, **named)
        distributed._deft_arguments = (named_parameters, *arguments), named
        return distributed

    return keeping


@_keeps_arguments
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
    process_set=global_process_set,
    overlap_forward=None,
    scale_merged_lr=None,
):
    """Makes `optimizer` average its gradients over all ranks, and gives it back.

    named_parameters: model.named_parameters(), for messages and for the order of forward.
    compression: for what travels: Compression.none (as the option compression says), Compression.fp16, a codec such as
    Compression.int8, or a function of a parameter's name and the parameter that gives one of these.
    backward_passes_per_step: backward passes whose gradients are added up before they are averaged.
    op: Average, Sum or Adasum. gradient_predivide_factor: how much of the division comes before the sum (Average only).
    num_groups, groups: accepted for Horovod's sake; Deft cuts gradients into buckets by itself.
    sparse_as_dense: sum sparse gradients as dense ones; otherwise their rows are gathered.
    process_set: the ranks that train together. On other ranks the optimizer makes its steps alone.
    overlap_forward: "auto", "on" or "off" (True, False): let a layer's forward start when that layer is updated; the
    default is the option overlap_forward.
    scale_merged_lr: if a policy merges the gradients of k steps into one update, make it with k times the learning
    rate; the default is the option scale_merged_lr.
    """
    _check_arguments(type(optimizer), op, gradient_predivide_factor, backward_passes_per_step)
    if not process_set.included():
        return _with_class(optimizer, LocalMixin)
    named = _learning(optimizer, named_parameters)
    optimizer._parameter_names = {param: name for name, param in named}  # Horovod's scripts read it
    if op is Adasum:
        require_compressor(compression, "op=Adasum")
        optimizer._deft_adasum = AdasumSteps(optimizer, named, compression, process_set)
        return _with_class(optimizer, AdasumMixin)
    if (num_groups or groups) and rank() == 0:
        log.info("num_groups and groups have no effect: Deft fuses and cuts gradients by its policy")
    mode = _overlap_mode(overlap_forward, type(optimizer))
    schedule = _update_schedule(scale_merged_lr)
    gradients = _gradients(named, compression, sparse_as_dense or schedule.slots > 1, type(optimizer))
    scaling = scaling_of(op, gradient_predivide_factor, process_set.size())
    return _distribute(optimizer, gradients, backward_passes_per_step, schedule, scaling, mode, process_set)


def undistribute(optimizer):
    """Makes it an optimizer of the user's class, when the session of its gradients has ended."""
    if hasattr(type(optimizer), "deft_base"):
        optimizer.__class__ = type(optimizer).deft_base
        optimizer.__dict__.pop("_deft", None)


def distribute_again(optimizer):
    """Makes it what it was before undistribute(), in the session that is open now. A plain one stays plain."""
    if hasattr(optimizer, "_deft_arguments"):
        arguments, named = optimizer._deft_arguments
        DistributedOptimizer(optimizer, *arguments, **named)


def _learning(optimizer, named_parameters):
    """(name, parameter) of the parameters that are averaged, in forward order."""
    named = _names(optimizer, named_parameters)
    learning = [(name, param) for name, param in named if param.requires_grad and param.numel()]
    if not learning:
        raise ValueError("the optimizer has no parameter that requires a gradient")
    for name, param in learning:
        refuse_sharded(name, param)
    return learning


def _update_schedule(scale_merged_lr):
    """`scale_merged_lr`: an argument of DistributedOptimizer."""
    if scale_merged_lr is None:
        scale_merged_lr = deft.option("scale_merged_lr") == "on"
    return UpdateSchedule(slots_wanted(), splits_merged=scale_merged_lr)


def _gradients(named, compression, sparse_as_dense, base):
    """`base`: the user's class."""
    only_sparse = issubclass(base, torch.optim.SparseAdam)
    return [
        Gradient(param, name, position, compression, sparse_as_dense, only_sparse)
        for position, (name, param) in enumerate(named)
    ]


def _distribute(optimizer, gradients, passes, schedule, scaling, mode, process_set):
    """Gives the optimizer its parts, its class, and hooks on its parameters."""
    session = process_set.session()
    retire_earlier(gradients)
    ownership = Ownership(optimizer, gradients)
    _with_class(optimizer, _DistributedOptimizer)
    number = session.optimizers.number()
    writer = (MergingWriter if schedule.delays else SharingWriter)(scaling, schedule)
    buffer = GradientBuffer(f"optimizer.{number}", gradients, passes, schedule, writer, process_set)
    applier = UpdateApplier(optimizer, buffer, mode, scale_lr=schedule.splits_merged)
    stages = StageReports(buffer, MemoryRecorder(buffer, optimizer))
    steps = (DelayedStep if schedule.delays else SynchronousStep)(buffer, applier, stages, ownership)
    optimizer._deft = steps
    depend(steps, session)
    register(gradients, steps)
    return optimizer


def _check_arguments(base, op, predivide, passes):
    if hasattr(base, "deft_base"):
        raise ValueError("this optimizer is a DistributedOptimizer already")
    if op not in (Average, Sum, Adasum):
        raise ValueError(f"op is {op!r}; DistributedOptimizer offers Average, Sum and Adasum")
    if predivide != 1.0 and op is not Average:
        raise ValueError("gradient_predivide_factor works with op=Average only")
    if passes < 1:
        raise ValueError(f"backward_passes_per_step is {passes}; it must be 1 or more")


def _with_class(optimizer, mixin):
    """The optimizer, whose class becomes a subclass of its class."""
    base = type(optimizer)
    bases = (mixin, _PlainInCopies, base)
    optimizer.__class__ = type(base.__name__, bases, {"__module__": base.__module__, "deft_base": base})
    keep_scheduler_informed(optimizer)
    return optimizer


# Generations that an arena holds if updates may be delayed: as many as the default limit of 4 steps of staleness keeps
# under way. Each takes the memory of all gradients once, so more of them cost more than they gain.
SLOTS = 4


def slots_wanted():
    """Generations that the arena is to hold: 1 if updates are not delayed."""
    delays = deft.policy_traits().delays_updates and int(deft.option("max_staleness_steps")) > 0
    return SLOTS if delays else 1


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
    return in_forward_order(check_named(named_parameters), own)


def _overlap_mode(argument, base):
    """auto, on or off. `base`: the user's class."""
    mode = {None: None, True: "on", False: "off"}.get(argument, argument)
    mode = deft.option("overlap_forward") if mode is None else mode
    if mode not in ("auto", "on", "off"):
        raise ValueError(f"overlap_forward is {argument!r}; give auto, on or off")
    if mode == "auto" and not (deft.policy_traits().overlaps_forward and base.__module__.startswith("torch.optim.")):
        return "off"
    if mode != "off" and issubclass(base, (torch.optim.LBFGS, torch.optim.SparseAdam)):
        if mode == "on":
            log.warning("overlap_forward=on has no effect: %s updates all parameters together", base.__name__)
        return "off"
    return mode


class _PlainInCopies:
    """Comes before the user's class in the class of any optimizer that was wrapped."""

    def __reduce_ex__(self, protocol):
        """Copies and pickles are plain optimizers of the user's class."""
        return (_plain, (type(self).deft_base,), self.__getstate__())


def _plain(base):
    return base.__new__(base)


class _DistributedOptimizer:
    """Comes before the user's class in the class of a distributed optimizer."""

    def step(self, closure=None, *args, **kwargs):
        d = self._deft
        d.ownership.check_in_use()
        base = super().step
        if closure is not None:
            return d.step_with(lambda evaluate: base(evaluate, *args, **kwargs), closure)
        return d.step(lambda: base(*args, **kwargs))

    step.hooked = True  # torch wraps step() for profiling and hooks once: that of the user's class

    def synchronize(self):
        """Waits until every p.grad holds its average: for clipping and the like before step()."""
        self._deft.ownership.check_in_use()
        self._deft.synchronize()

    @contextlib.contextmanager
    def skip_synchronize(self):
        """Around step() after synchronize(), as in Horovod; the update is made at once."""
        self._deft.applier.immediate = True
        try:
            yield
        finally:
            self._deft.applier.immediate = False

    def flush(self, residuals=False):
        """Applies the updates that wait for the next forward, if there are any.

        If updates are delayed, it applies those of all steps so far, whatever the plan says. Call it on all ranks
        between the same steps, before checkpoints and evaluations and at the end.

        residuals: the gradients of the next step travel as they are, and bring what encodings have left out so far.
        After that step nothing is missing, so it is the one before a checkpoint: residuals are not saved.
        """
        self._deft.flush_all()
        if residuals:
            self._deft.applier.residuals.send()

    def report_loss(self, loss, target=0.0):
        """Tells the loss of this step, for the Preserver, which judges plans that merge or delay updates by it.

        Call it in each step on all ranks, with the loss of this rank's batch before any scaling: a number, or a tensor
        of one element, which is read only now and then. `target` is the lowest loss that can be reached, 0 or more.
        """
        self._deft.applier.report_loss(loss, float(target))

    def set_backward_passes_per_step(self, passes):
        self._deft.buffer.set_passes(passes)

    def zero_grad(self, set_to_none=True):
        self._deft.drop()
        super().zero_grad(set_to_none)

    def state_dict(self):
        self._deft.flush()
        self._deft.applier.note_saving()
        return super().state_dict()

    def load_state_dict(self, state_dict):
        self._deft.flush()
        return super().load_state_dict(state_dict)

    def add_param_group(self, param_group):
        self._deft.ownership.add_group(super().add_param_group, param_group)

    @property
    def state(self):
        """The optimizer's own step() reads it once a parameter, so without deferred updates this calls nothing."""
        steps = self.__dict__.get("_deft")
        if steps is not None and steps.overlap.deferred is not None:
            steps.overlap.deferred.flush()
        return self.__dict__["state"]

    @state.setter
    def state(self, value):
        self.__dict__["state"] = value

    @property
    def param_groups(self):
        """Who looks at the groups between backward() and step(), a GradScaler for one, finds the averages in p.grad."""
        steps = self.__dict__.get("_deft")
        if steps is not None:
            steps.show_averages()
        return self.__dict__["param_groups"]

    @param_groups.setter
    def param_groups(self, groups):
        self.__dict__["param_groups"] = groups

    def __del__(self):
        steps = self.__dict__.get("_deft")
        if steps is not None:
            settle_at_end(self, steps)

    def __reduce_ex__(self, protocol):
        """Copies have the updates that wait for the next forward."""
        self._deft.flush()
        return super().__reduce_ex__(protocol)
