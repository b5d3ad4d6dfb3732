"""A communication hook for DistributedDataParallel: model.register_comm_hook(None, deft.torch.ddp_hook).

Each parameter is a tensor of a declared group, with a shape and a place in the order of forward of its own. So codecs
treat it as they treat the parameters of a DistributedOptimizer, and what an encoding leaves out stays with the
parameter when DDP rebuilds its buckets.

The first backward shows which parameters there are. Its buckets are summed at once, and exactly.
"""

import itertools
import threading

from deft import DeftError
from deft.reduce_op import Sum
from deft.world import is_initialized, session, size

import torch.distributed as dist
from torch.utils.weak import WeakTensorKeyDictionary

from .c10d_futures import Origin
from .c10d_work import DeftWork, reduce_at_once
from .ddp_buckets import BucketGroup, say_no_late_updates

_numbers = itertools.count()  # of calls
_states = WeakTensorKeyDictionary()  # parameter -> the state of its model
_first_pass = None  # the state of the model whose first backward is under way


def ddp_hook(state, bucket):
    """Averages a bucket over all ranks of Deft's job. `state` is None, or a DdpState for this model alone.

    It is for models whose DistributedDataParallel has all ranks, too: a hook does not see the process group. DdpState
    checks it. The models of a script can share None if each has its first backward by itself.
    """
    if not is_initialized():
        raise RuntimeError("ddp_hook needs Deft: call deft.torch.init() or init_process_group('deft') before")
    state = state or _state_of(bucket)
    bucket.buffer().div_(size())
    work, name = DeftWork(bucket.buffer()), f"ddp_hook.{next(_numbers)}"
    Origin(name).follow(work.get_future())
    try:
        state.start(work, bucket, name)
    except DeftError as error:
        work.end(error)
    return work.get_future()


def _state_of(bucket):
    global _first_pass
    state = _states.get(bucket.parameters()[0])
    if state is not None:
        return state
    if bucket.index() == 0:
        if _first_pass is not None:
            raise ValueError(
                "two models have their first backward at once: give each register_comm_hook a deft.torch.DdpState()"
            )
        _first_pass = DdpState()
    state = _first_pass
    for parameter in bucket.parameters():
        _states[parameter] = state
    if bucket.is_last():
        _first_pass = None
    return state


class DdpState:
    """The hook's knowledge of one model."""

    def __init__(self, process_group=None):
        """`process_group`: that of the model's DistributedDataParallel; it must have all ranks of Deft's job."""
        if process_group is not None and dist.get_world_size(process_group) != size():
            raise ValueError(
                f"ddp_hook averages over all {size()} ranks of Deft's job, and the process group has "
                f"{dist.get_world_size(process_group)}: use it with DistributedDataParallel over all ranks"
            )
        self._shown = []  # (dtype, shape) of parameters, in the order of the first backward
        self._places = WeakTensorKeyDictionary()  # parameter -> place in that order
        self._first = True  # the first backward is not over
        self._group = None
        self._session = None

    def start(self, work, bucket, name):
        """Begins to sum a bucket, whose future `work` ends. `name`: of this call, the same on all ranks."""
        session().joining.hindered_by.add(self)
        if not self._first:
            return self._schedule(work, bucket)
        for parameter in bucket.parameters():
            self._places[parameter] = len(self._shown)
            self._shown.append((parameter.dtype, tuple(parameter.shape)))
        self._first = not bucket.is_last()
        return reduce_at_once(work, name, bucket.buffer(), Sum)

    def _schedule(self, work, bucket):
        if self._session is not session():
            self._session = session()
            self._group = BucketGroup([(f"parameter{i}", *shown) for i, shown in enumerate(self._shown)])
            say_no_late_updates()
        parameters, gradients = bucket.parameters(), bucket.gradients()
        part = _Parts(work, len(parameters))
        for parameter, gradient in zip(parameters, gradients):
            self._group.send(self._places[parameter], gradient, part.into(gradient))


class _Parts:
    """The parameters of one bucket on their way: the last one ends the bucket's work."""

    def __init__(self, work, count):
        self._work = work
        self._left = count
        self._lock = threading.Lock()

    def into(self, gradient):
        """Has the sum written to `gradient`."""

        def reduced(view, error):
            if error is None:
                try:
                    gradient.copy_(view)
                except Exception as failure:  # of which nobody would hear on a thread of libdeft
                    error = failure
            with self._lock:
                self._left = 0 if error is not None else self._left - 1
                last, self._work = (self._work, None) if self._left == 0 else (None, self._work)
            if last is not None:
                last.end(error)

        return reduced
