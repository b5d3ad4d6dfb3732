"""DDP's gradient buckets, as a process group sees them: tensors without names and without an order of use.

A group of tensors must be declared before the policy can schedule it, and DDP tells nobody how many buckets come. So
the buckets of one backward pass are noted. If the next pass begins with the same bucket, they are declared as a group.
If a pass then differs, as it does after DDP has rebuilt its buckets, the group is given up and the noting begins again.

Passes are the same if their first bucket lies in the same memory: of models that are alike each has its own group.

All this depends only on sizes, dtypes, order and on how long buckets live, which is the same on all ranks, so all ranks
decide alike.

DDP's default of 25 MiB a bucket leaves little to schedule. DefaultBucketSize changes it while the backend lives.
"""

import contextlib
import sys

import deft
from deft import DeftError
from deft.session import BACKWARD, FORWARD
from deft.world import log, rank, session

import torch
from torch.nn.parallel import distributed as torch_ddp
from torch.utils.weak import WeakIdKeyDictionary

from .arena import Arena
from .compiling import hidden
from .hooks import current_task
from .nested_backward import is_nested, running_backward

_queue_callback = torch.autograd.Variable._execution_engine.queue_callback

_LARGE_BYTES = 4 << 20  # a smaller bucket takes little time to send
_DEFAULT_MIB = 5  # a bucket, unless the script gives bucket_cap_mb
_CAP = "_DEFAULT_BUCKET_CAP_MB"  # torch's name of the default; versions before 2.13 have none
_CHANGES = 3  # sequences that begin with the same bucket: after so many, such passes are no longer scheduled


class BucketGroup:
    """Declared tensors of one model. `tensors`: (name, dtype, shape) of each, in the order of backward.

    Every pass hands over each tensor once, by send(), from one thread at a time. The arena goes back with the end of
    this object, which is not before all its tensors are reduced.
    """

    def __init__(self, tensors):
        self._session = session()
        number = self._session.optimizers.number()
        name = f"ddp.{number}"
        # Forward uses the parameters that backward reaches last.
        specs = [(*tensor, len(tensors) - 1 - place, "") for place, tensor in enumerate(tensors)]
        self._arena = Arena(self._session, name, specs)
        self._session.reporters.add(self)
        self._step = 0
        self._handed = 0  # in this pass

    def send(self, place, tensor, when_reduced):
        """Hands over `tensor`, contiguous, or None for zeros. when_reduced(view, error) runs on a thread of libdeft."""
        self._arena.group.handle()  # DDP's reducer may outlive the session, and the views lie in its memory
        if self._handed == 0 and self._session.reporters.step_begins(self):
            self._session.stage(BACKWARD, self._step)
        step, view, self._handed = self._step, self._arena.views[0][place], self._handed + 1
        if self._handed == self._arena.count:
            self._step, self._handed = step + 1, 0
        if tensor is None:
            view.zero_()
        else:
            view.copy_(tensor.reshape(view.shape))
        self._arena.ready(place, 1, step, 0)
        last = self._handed == 0

        def reduced(error):
            view = self._arena.views[0][place]  # this function keeps none, but this object
            try:
                if last and error is None and self._session.reporters.reports(self):
                    with contextlib.suppress(DeftError):  # the job has failed since, but this bucket is here
                        self._session.stage(FORWARD, step + 1)
            finally:
                when_reduced(view, error)

        self._arena.group.when_reduced(place, 1, step, reduced)

    def retire(self):
        """No pass uses it any more: another group tells the stages."""
        self._session.reporters.remove(self)

    def __del__(self):
        arena = self.__dict__.get("_arena")
        if arena is None or sys.is_finalizing():
            return
        with contextlib.suppress(DeftError):  # a reducer may outlive the session
            arena.group.handle()
            arena.release()
            arena.leave()


class BucketSequences:
    """Recognizes the passes of DDP's reducers over one process group.

    A pass is one backward, with those that are nested in it: reentrant checkpoints run one for each of their blocks.
    """

    def __init__(self):
        self._seen = []  # of this pass
        self._backward = None  # what running_backward() gave in this pass
        self._ends = False  # this backward will call _end_pass()
        self._followed = None  # the group that this pass follows
        self._shapes = ()  # of that group
        self._first = None  # the memory of its first bucket: a reducer keeps its buckets, so this tells models apart
        self._known = WeakIdKeyDictionary()  # by that: the buckets of a pass, and its group if it is declared
        self._changes = WeakIdKeyDictionary()  # how often passes that begin so have changed

    def place(self, tensor):
        """(group, place) if the bucket belongs to a declared group; None if it must be reduced at once.

        Declaring is collective.
        """
        shape, backward = (tensor.numel(), tensor.dtype), running_backward()
        if self._backward is not None and self._backward is not backward:
            self._end_pass()  # the earlier backward ended by an error, or with a nested one
        if not self._seen:
            self._begin_pass(tensor.untyped_storage())
        self._backward = backward
        if backward is not None and not self._ends and not is_nested():
            _queue_callback(self._end_pass)  # before DDP's own callback, which waits for the buckets
            self._ends = True
        place = len(self._seen)
        self._seen.append(shape)
        if self._followed is None:
            return None
        if place < len(self._shapes) and self._shapes[place] == shape:
            return self._followed, place
        self._give_up(place)
        return None

    def _begin_pass(self, first):
        self._first = first
        shapes, group = self._known.get(first, ((), None))
        if shapes and group is None:
            # A tensor of one dimension would never be encoded.
            group = BucketGroup([(f"bucket{i}", dtype, (1, count)) for i, (count, dtype) in enumerate(shapes)])
            self._known[first] = shapes, group
            say_no_late_updates()
            hint = hint_at_large_bucket([count * dtype.itemsize for count, dtype in shapes])
            if hint and rank() == 0:
                log.warning(hint)
        self._shapes, self._followed = shapes, group

    @hidden
    def _end_pass(self):
        seen = self._seen
        if not seen:
            return
        if self._followed is not None and len(seen) < len(self._shapes):
            self._give_up(len(seen))
        if self._followed is None and self._changes.get(self._first, 0) < _CHANGES:
            self._known[self._first] = seen, None
        self._first, self._followed, self._backward, self._ends = None, None, None, False
        self._seen = []

    def _give_up(self, place):
        """This pass does not fit its group: ends the group's generation and forgets the group."""
        group, self._followed = self._followed, None
        self._known.pop(self._first)
        self._changes[self._first] = self._changes.get(self._first, 0) + 1
        if self._changes[self._first] == _CHANGES and rank() == 0:
            log.warning("DDP's buckets change from pass to pass: they are reduced at once, not by the policy")
        for rest in range(place, len(self._shapes)):
            group.send(rest, None, lambda _view, _error: None)
        group.retire()


class DefaultBucketSize:
    """Makes DDP's default size of a bucket finer until restore(). A model that gives bucket_cap_mb keeps its size."""

    def __init__(self):
        self._torch_mib = getattr(torch_ddp, _CAP, None)
        if self._torch_mib is not None:
            setattr(torch_ddp, _CAP, min(self._torch_mib, _DEFAULT_MIB))

    def restore(self):
        if self._torch_mib is not None:
            setattr(torch_ddp, _CAP, self._torch_mib)


def hint_at_large_bucket(bytes_of_buckets):
    """What to say if one bucket holds most gradients: DDP hands it over whole, when backward has all but ended."""
    largest, total = max(bytes_of_buckets), sum(bytes_of_buckets)
    if largest < _LARGE_BYTES or largest <= total / 2:
        return ""
    return (
        f"one of DDP's {len(bytes_of_buckets)} buckets has {largest / 1e6:.1f} of {total / 1e6:.1f} MB of gradients, "
        f"so most communication waits for the end of backward: DistributedDataParallel(bucket_cap_mb={_DEFAULT_MIB}) "
        "cuts finer, unless one parameter is as large"
    )


def in_backward():
    return current_task() >= 0


def say_no_late_updates():
    if deft.policy_traits().delays_updates and rank() == 0:
        log.warning("DDP applies every gradient in its own step, so %s plans no late updates", deft.option("policy"))
