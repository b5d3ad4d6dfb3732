"""A communication hook for DistributedDataParallel: model.register_comm_hook(None, deft.torch.ddp_hook).

Each parameter is a tensor of a declared group, with a shape and a place in the order of forward of its own. So codecs
treat it as they treat the parameters of a DistributedOptimizer, and what an encoding leaves out stays with the
parameter when DDP rebuilds its buckets.

The first backward shows which parameters there are. Its buckets are summed at once, and exactly. So are those of a
backward that shows other parameters than the one before.
"""

import itertools
import threading
import weakref

from deft import DeftError
from deft.reduce_op import Sum
from deft.world import is_initialized, session, size

import torch.distributed as dist
from torch.utils.weak import WeakTensorKeyDictionary

from .c10d_futures import Origin
from .c10d_reductions import reduce_at_once
from .c10d_work import DeftWork
from .compiling import hidden
from .ddp_buckets import BucketGroup, say_no_late_updates

_numbers = itertools.count()  # of calls
_states = WeakTensorKeyDictionary()  # parameter -> the state of its model
_under_way = weakref.WeakSet()  # of these, those that have begun a pass; what they wait for tells whether it goes on


@hidden
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
    """A model that is wrapped again, when some of its layers are frozen or are no longer, has its state by the others.

    DDP gives the buckets of a pass in their order. So one that none of its parameters tells belongs to the last pass
    that waits for its number."""
    parameters = bucket.parameters()
    known = [state for state in map(_states.get, parameters) if state is not None]
    if bucket.index() == 0:
        state = known[0] if known else _new_state()
    else:
        waiting = [state for state in known if state.awaits(bucket)]
        waiting = waiting or [state for state in _under_way if state.awaits(bucket)]
        state = max(waiting, key=lambda state: state.began)
    for parameter in parameters:
        _states[parameter] = state
    _under_way.add(state)
    return state


def _new_state():
    if any(state.is_learning() for state in _under_way):
        raise ValueError(
            "two models have their first backward at once: give each register_comm_hook a deft.torch.DdpState()"
        )
    return DdpState()


class DdpState:
    """The hook's knowledge of one model."""

    def __init__(self, process_group=None):
        """`process_group`: that of the model's DistributedDataParallel; it must have all ranks of Deft's job."""
        if process_group is not None and dist.get_world_size(process_group) != size():
            raise ValueError(
                f"ddp_hook averages over all {size()} ranks of Deft's job, and the process group has "
                f"{dist.get_world_size(process_group)}: use it with DistributedDataParallel over all ranks"
            )
        self.began = 0  # the number of the latest pass
        self._shown = []  # (dtype, shape) of parameters, in the order of the pass that showed them; none: no pass has
        self._places = WeakTensorKeyDictionary()  # parameter -> place in that order
        self._now = [], WeakTensorKeyDictionary()  # the same of the pass under way
        self._next = None  # the number of the bucket that comes next in this pass
        self._follows = False  # this pass hands its gradients over to the group
        self._sent = set()  # places, in this pass
        self._group = None
        self._session = None

    def start(self, work, bucket, name):
        """Begins to sum a bucket, whose future `work` ends. `name`: of this call, the same on all ranks."""
        session().joining.hindered_by.add(self)
        if bucket.index() == 0:
            self._begin_pass()
        self._next = None if bucket.is_last() else bucket.index() + 1
        self._note(bucket.parameters())
        if self._follows:
            self._schedule(work, bucket)
        else:
            reduce_at_once(work, name, bucket.buffer(), Sum)
        if bucket.is_last():
            self._end_pass()

    def awaits(self, bucket):
        return self._next == bucket.index()

    def is_learning(self):
        """Whether a pass is under way that shows the parameters."""
        return self._next is not None and not self._shown

    def _begin_pass(self):
        self.began = next(_numbers)
        same = self._session is session()
        if self._sent and same:  # the pass before has ended by an error
            self._give_up()
        self._now = [], WeakTensorKeyDictionary()
        self._sent.clear()
        self._follows = bool(self._shown)
        if self._follows and not (same and self._group is not None):
            self._session = session()
            self._group = BucketGroup([(f"parameter{i}", *shown) for i, shown in enumerate(self._shown)])
            say_no_late_updates()

    def _note(self, parameters):
        """Gives the group up if these do not belong to it: a model that is wrapped again may have other parameters."""
        shown, places = self._now
        for parameter in parameters:
            places[parameter] = len(shown)
            shown.append((parameter.dtype, tuple(parameter.shape)))
        if self._follows and any(self._places.get(one) in (None, *self._sent) for one in parameters):
            self._give_up()

    def _schedule(self, work, bucket):
        parameters, gradients = bucket.parameters(), bucket.gradients()
        part = _Parts(work, len(parameters))
        for parameter, gradient in zip(parameters, gradients):
            place = self._places[parameter]
            self._sent.add(place)
            self._group.send(place, gradient, part.into(gradient))

    def _end_pass(self):
        if self._follows and len(self._sent) < len(self._shown):
            self._give_up()
        if not self._follows:
            self._shown, self._places = self._now
        self._sent.clear()

    def _give_up(self):
        """Ends the group's generation, and the group. What this pass shows becomes the next one."""
        for place in range(len(self._shown)) if self._sent else ():
            if place not in self._sent:
                self._group.send(place, None, lambda _view, _error: None)
        self._group.retire()
        self._group, self._follows, self._shown = None, False, []
        self._sent.clear()


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
