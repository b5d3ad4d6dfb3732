"""The gradients of some variables on their way through the arena of one declared group, as numpy arrays.

    group = GradientGroup("tensorflow.0", specs, Scaling())
    group.hand_over([4, 3], arrays)   # of all variables, some neighbours at a time: into the arena, and on their way
    group.collect()                   # waits; gives all averages
    group.retire()                    # nobody uses it any more: its arena goes

A round is a hand_over of each variable and one collect. Rounds count the steps of the group. A framework with an engine
of its own writes group.views[index] itself and calls ready(), when_summed() and end_round() instead. All ranks declare
a group together; LateGroup waits with it until all are here. They may retire it at different times.
"""

import contextlib
import ctypes
import logging
import threading
from typing import NamedTuple

import numpy as np

import deft
from deft._native import EINVALID, DeftError
from deft.arrays import empty_aligned, reducible, start_allreduce, write_scaled
from deft.process_sets import global_process_set
from deft.reduce_op import Sum
from deft.session import finish_all

log = logging.getLogger("deft")

_BEGUN, _SENT = 1, 2  # a gradient of the round: Ctrl-C may come in between
RETIRED = (
    "the gradients '{}' were released: the optimizer that averaged them, or one of their variables, is gone, or the "
    "optimizer was built for other variables. Keep both as long as a function uses them"
)


class GradientSpec(NamedTuple):
    """A gradient."""

    name: str
    dtype: np.dtype
    shape: tuple
    wire: np.dtype  # the dtype that travels
    codec: str = ""  # how it is encoded; empty: as the option `compression` says


def all_are_here(name, scaling, process_set=global_process_set):
    """Whether no rank has joined (deft.joining): only then can a group called `name` be declared.

    All ranks that have not joined ask together, and all find the same. Different scalings are an error on all ranks.
    """
    one, terms = np.ones(1, np.float32), f", {scaling.terms}"
    here = start_allreduce(one, f"{name}/here", Sum, 1.0, 1.0, one.dtype, process_set, terms)()
    return int(here[0]) == process_set.size()


class _Calls:
    """The calls that work in an arena, which must not go meanwhile.

    with calls: ...      # DeftError if the arena has gone
    calls.end()          # whether none is under way; then none begins any more
    """

    def __init__(self):
        self._lock = threading.RLock()  # a finalizer may run while a thread holds it
        self._under_way = 0
        self._ended = False

    def __enter__(self):
        with self._lock:
            if self._ended:
                raise DeftError(EINVALID, "this group of gradients was released")
            self._under_way += 1

    def __exit__(self, *_):
        with self._lock:
            self._under_way -= 1

    def end(self):
        with self._lock:
            self._ended = self._under_way == 0
            return self._ended


class GradientGroup:
    """`specs` are in the order in which forward uses the variables; the declared order is the reverse.

    hand_over and ready may be called on any thread. It tells the daemon the stages of a step, if it is the one that
    does (StageReporters).
    """

    def __init__(self, name, specs, scaling, process_set=global_process_set):
        self.name = name
        self._session = process_set.session()
        self._specs = specs
        self._scaling = scaling
        self._lock = threading.Lock()
        self._calls = _Calls()
        self._handed = bytearray(len(specs))
        self._step = 0
        self._last = len(specs) - 1
        tensors = [
            deft.Tensor(spec.name, reducible(spec.wire, spec.name), spec.shape, position, spec.codec)
            for position, spec in enumerate(specs)
        ]
        self._group = self._session.declare(name, tensors[::-1])
        self.views = self._map()
        self.views_outlive_arena = False  # True: arrays that somebody keeps have their memory
        self._session.reporters.add(self)

    def _map(self):
        begin = self._group.data(0)
        memory = (ctypes.c_char * self._group.arena_bytes()).from_address(begin)
        self._group.keep_mapped(memory)  # who keeps a view keeps it
        return [
            np.ndarray(spec.shape, spec.wire, memory, self._group.data(self._last - index) - begin)
            for index, spec in enumerate(self._specs)
        ]

    def hand_over(self, run, gradients):
        """`run`: neighbours, the last one first, as backward has them. The daemon is woken once for all of them."""
        with self._calls:
            self._group.handle()  # a graph may be older than the session: then the views lie in memory that is gone
            for index, gradient in zip(run, gradients, strict=True):
                self._mark(index)
                write_scaled(gradient, self._scaling.before, self.views[index])
            self._send(run[0], len(run))

    def ready(self, index):
        """views[index] holds this rank's gradient, and nobody writes it before it is summed."""
        with self._calls:
            self._mark(index)
            self._send(index)

    def _send(self, index, count=1):
        """That of `index`, and of as many before it as make `count`."""
        self._group.ready(self._last - index, count, self._step)
        self._handed[index - count + 1 : index + 1] = bytes([_SENT]) * count

    def when_summed(self, index, callback):
        """After ready(index): has `callback` called, as Group.when_reduced() says, when views[index] holds the sum."""
        self._group.when_reduced(self._last - index, 1, self._step, callback)

    def end_round(self):
        """All sums are there."""
        with self._lock:
            self._handed[:] = bytes(len(self._handed))
            self._step += 1
        if self._session.reporters.reports(self):
            self._session.stage(deft.FORWARD, self._step)

    def collect(self):
        """The averages, in the order of the specs, as arrays that belong to the caller."""
        with self._calls:
            # In the order in which backward has them: the first ones are copied while others are on their way.
            averages = [self._averaged(index) for index in reversed(range(len(self._specs)))][::-1]
            self.end_round()
        return averages

    def rounds(self):
        return self._step

    def retire(self):
        """No step uses it any more: another group tells the stages, and Joining says when the arena goes.

        It waits for nothing, so a finalizer may call it, on any thread."""
        self._session.reporters.remove(self)
        self._session.joining.let_go(self)

    def release(self):
        """Gives the arena back. False: not yet, because another thread works in it.

        It waits for no rank. Others that wait for a round that an error has left half-done get zeros."""
        if not self._calls.end():
            return False
        with contextlib.suppress(DeftError):  # of a lost job: the memory goes with the session
            self._fill_round()
            self.own_views()
            self._group.release()
        self.views = []
        return True

    def own_views(self):
        """If `views_outlive_arena`, they keep what they hold, in own memory. Nothing is handed over any more.

        It is for the end of the session; release() does it, too."""
        if not self.views_outlive_arena:
            return
        try:
            self._group.own_arena()
        except DeftError as error:
            log.error("the gradients %s read as zeros from now on: %s", self.name, error)

    def finish_round(self):
        """Finishes a round that an error or Ctrl-C has left half-done: with zeros, and nobody gets the averages."""
        with self._calls:
            if self._fill_round():
                self.collect()

    def _fill_round(self):
        """Hands over zeros for what is missing of a round that has begun. Whether there is one."""
        begun = any(self._handed)
        if begun:
            log.warning(
                "rank %d did not apply the averages of step %d of %s, because an error ended that step; other ranks "
                "did, so replicas differ: broadcast the variables before the training goes on",
                *(self._session.rank, self._step, self.name),
            )
            for index, handed in enumerate(bytes(self._handed)):
                if handed != _SENT:
                    self.views[index][...] = 0
                    self._send(index)
        return begun

    # ---- for join(), as deft.joining.ResidualGradients says

    def join_begins(self):
        with self._calls:
            self._fill_round()

    def join_ends(self):
        if any(self._handed):
            self.collect()

    def send_residuals(self, number=None):
        """None: the next round brings them, and all ranks say so between the same rounds."""
        if number is None:
            number = self._step
            self._session.joining.residuals_asked(self.name, number)
        elif self._step < number:
            self.join_ends()
        with self._calls:
            self._group.send_residuals(number)

    def give_zeros(self, number):
        if any(self._handed):
            if self._step == number:
                return
            self.collect()
        for index in range(len(self._specs)):
            with self._calls:
                self.views[index][...] = 0
                self.ready(index)

    def _mark(self, index):
        with self._lock:
            first = not any(self._handed)
            if self._handed[index]:
                name = self._specs[index].name
                raise RuntimeError(f"{name}: its gradient of step {self._step} was handed over a second time")
            self._handed[index] = _BEGUN
        if first:
            self._session.joining.round_begins(self.name, self._step)
        if first and self._session.reporters.step_begins(self):
            self._session.stage(deft.BACKWARD, self._step)

    def _averaged(self, index):
        self._group.wait(self._last - index, 1, self._step)
        average = empty_aligned(self._specs[index].shape, self._specs[index].dtype)
        if self._scaling.after == 1:
            np.copyto(average, self.views[index], casting="unsafe")
        else:
            write_scaled(self.views[index], self._scaling.after, average)
        return average


class LateGroup:
    """A GradientGroup that is declared when its first round begins, if all ranks are here.

    While some ranks have joined, each gradient is an allreduce of its own, in which they take part with zeros. Making a
    LateGroup is no collective, so ranks may do so at different times. So is retire().
    """

    def __init__(self, name, specs, scaling, process_set=global_process_set):
        self._process_set = process_set
        self._session = process_set.session()
        self._arguments = (name, specs, scaling, process_set)
        self._single = {}  # functions that wait for an allreduce of this round, by index
        self._retired = False
        self.declared = None  # the GradientGroup

    def begin_round(self):
        """Comes before the hand_over of each round. Waits for the other ranks until the group is declared.

        A round that ended by an error of this rank alone is finished first: the others have waited for it."""
        self._session.handle()  # a graph may be older than the session
        if self._retired:  # and it may live longer than what its gradients are of
            raise DeftError(EINVALID, RETIRED.format(self._arguments[0]))
        self.forget_round()
        if self.declared is not None:
            self.declared.finish_round()
        elif all_are_here(self._arguments[0], self._arguments[2], self._process_set):
            self.declared = GradientGroup(*self._arguments)
            if self._retired:  # by another thread
                self.declared.retire()

    def hand_over(self, run, gradients):
        """As GradientGroup.hand_over() does."""
        if self.declared is not None:
            self.declared.hand_over(run, gradients)
            return
        for index, gradient in zip(run, gradients, strict=True):
            self._single[index] = self._start(index, gradient)

    def collect(self):
        """As GradientGroup.collect() does."""
        if self.declared is not None:
            return self.declared.collect()
        single, self._single = self._single, {}
        return finish_all([single[index] for index in sorted(single)])

    def retire(self):
        """Nobody keeps what its gradients are of: no later round begins, and the arena goes."""
        self._retired = True
        if self.declared is not None:
            self.declared.retire()

    def forget_round(self):
        """Drops what a round that ended by an error has begun without a GradientGroup."""
        self._single = {}

    def _start(self, index, gradient):
        name, specs, scaling, *_ = self._arguments
        factors, wire = (scaling.before, scaling.after), specs[index].wire
        return start_allreduce(gradient, f"{name}.{index}", Sum, *factors, wire, self._process_set)
