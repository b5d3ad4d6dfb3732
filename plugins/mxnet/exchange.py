"""Gradients on their way through the arena, as operations of MXNet's engine.

    exchange = Exchange("mxnet.0", gradients)
    exchange.push(index, gradient, out, priority)     # of each gradient of a step, in any order; returns at once

The engine copies a gradient into the arena as soon as backward has written it, hands it over, and copies the sum to
`out` when it is there. So backward, communication, update and the next forward overlap as their arrays allow.

    exchange.take_in(index, gradient)                 # from then on the gradient lies in the arena: nothing is copied
"""

import functools
import threading
import weakref

import numpy as np
from deft import DeftError
from deft._native import ELOST
from deft.gradient_group import GradientGroup, GradientSpec
from deft.process_sets import global_process_set
from deft.reduce_op import Scaling
from deft.world import depend, is_in_job

from . import engine, join_watch
from .array_kinds import classic
from .importing import mxnet as mx


class Sums:
    """The gradients of a group, as the engine works on them.

    Its operations hold this. So an Exchange goes with the user's last reference, and a session that ends still waits
    for the operations.
    """

    def __init__(self, name, gradients, process_set):
        self.name = name
        self.session = process_set.session()
        self.group = GradientGroup(name, gradients, Scaling(), process_set)
        self.views = [engine.view_of(view) for view in self.group.views]
        self.averaged = mx.nd.zeros((1,))  # is written when all sums of a step are there
        self.pushed = set()  # of the step that is being pushed
        self._steps_pushed = 0
        self._inside = {}  # the handles of the arrays that lie in the arena, by index
        self._lock = threading.Lock()
        self._lost_round = -1  # the newest round with an error
        depend(self, self.session)

    def take_in(self, index, array):
        view = self.views[index]
        if (array.dtype, array.context) != (view.dtype, view.context) or array.size == 0:
            return False
        classic(array).copyto(classic(view))
        place = view.detach()  # a handle of its own for the memory of the view
        array.handle, place.handle = place.handle, array.handle
        self._inside[index] = array.handle
        self.group.views_outlive_arena = True
        return True

    def place_of(self, index, array):
        """`array`, or the view that has the same memory."""
        return self.views[index] if array.handle is self._inside.get(index) else array

    def copy_inside(self, index):
        """What the array that lies in the arena holds. None: there is none."""
        return self.views[index].copy() if index in self._inside else None

    def push(self, index, priority=0):
        """The engine hands over what it has written to views[index]."""
        start = functools.partial(self._hand_over, index, self._steps_pushed)
        engine.push(start, [self.averaged], [self.views[index]], priority, "deft_allreduce")

    def note_pushed(self, index):
        self.pushed.add(index)
        if len(self.pushed) == len(self.views):
            self.pushed.clear()
            self._steps_pushed += 1
            engine.push(self._end_step, self.views, [self.averaged], name="deft_step")

    def push_zeros(self):
        """Completes a step that an error has ended: its sums come when all of its gradients are there."""
        for index in set(range(len(self.views))) - self.pushed if self.pushed else ():
            if self.views[index].size > 0:
                classic(self.views[index])[:] = 0
            self.push(index)
            self.note_pushed(index)

    def _hand_over(self, index, number, done):
        def summed(error):
            join_watch.ended(self.session)
            done(error if error is not None and self._is_first_error(number) else None)

        join_watch.began(self.session)
        try:
            self.group.ready(index)
            self.group.when_summed(index, summed)
        except Exception as error:
            summed(error)

    def _is_first_error(self, number):
        """Of this round or a later one. MXNet keeps its errors in a list without a lock, so a round has one.

        The whole step depends on each gradient, so one error ends it.
        """
        with self._lock:
            first = number > self._lost_round
            self._lost_round = max(number, self._lost_round)
            return first

    def _end_step(self, done):
        self.group.end_round()
        done()

    # ---- for join(), while the engine has nothing to do: as deft.joining.ResidualGradients says

    def join_begins(self):
        self.pushed.clear()
        self.group.join_begins()

    def join_ends(self):
        self.group.join_ends()

    def rounds(self):
        return self.group.rounds()

    def send_residuals(self, step):
        self.group.send_residuals(step)

    def give_zeros(self, number):
        self.group.give_zeros(number)

    # ---- the end

    def retire(self):
        """Nobody pushes gradients any more. The engine retires the group when all its work in the arena has ended.

        It waits for nothing: a garbage collection may run on a thread of the engine."""
        if self.group is not None and is_in_job():
            arrays = [*self.views, self.averaged]
            engine.push(lambda done: done(), writes=arrays, name="deft_retire", ended=self._retired)

    def _retired(self):
        if self.group is not None:
            self.group.retire()

    def settle(self):
        """The session ends soon: the work of the engine in the arena ends first.

        Raises DeftError for an error that nobody has seen yet.
        """
        engine.push(lambda done: done(), writes=self.views, name="deft_settle")  # waits for all that reads them
        lost = None
        for view in self.views:
            try:
                view.wait_to_read()
            except mx.base.MXNetError as error:
                lost = error
        engine.wait_for_threads()  # the process may end now
        if lost is not None:
            raise DeftError(ELOST, f"sums of the last step are lost: {lost}") from lost

    def flush(self):
        """No update is ever held back."""

    def release(self):
        """The session ends, and the arena with it."""
        if self.group is not None:
            self.group.own_views()
        self.views = self.group = None


class Exchange:
    """`gradients` are in the order of their use in forward.

    The thread that trains owns it. All ranks of the set make it together, and push the same gradients in each step.
    Its arena goes with the last reference to it, on each rank at another moment if it is part of a cycle.
    """

    def __init__(self, name, gradients, scaling=Scaling(), process_set=global_process_set):  # noqa: B008
        self._sums = Sums(name, gradients, process_set)
        self._names = [one.name for one in gradients]
        self._scaling = scaling
        self.older_graphs = None  # than the move of gradients into the arena
        weakref.finalize(self, Sums.retire, self._sums).atexit = False

    def take_in(self, index, gradient):
        """Moves an array into the arena: pushing it then copies nothing. False: it stays, as dtypes or devices differ.

        The array remains the same object, and outlives the arena. What else refers to its old memory, as autograd does,
        keeps that."""
        return self._sums.take_in(index, gradient)

    def push(self, index, gradient, out, priority=0, loss_scale=1.0):
        """out: None if nobody wants the sum. Then the array that lies in the arena holds afterwards what it held.
        loss_scale: what gradients of this step, and no other one, were multiplied by. What codecs leave out is added
        to later gradients, so they travel without it; float16, which holds no small values, keeps it."""
        sums = self._sums
        if index in sums.pushed:
            missing = [name for place, name in enumerate(self._names) if place not in sums.pushed]
            raise mx.base.MXNetError(
                f"the gradient {self._names[index]} comes a second time before {', '.join(missing[:5])} came in this "
                "step: each step must bring the same gradients"
            )
        view = sums.views[index]
        scaling = self._scaling if view.dtype == np.float16 else self._scaling.unscaled(loss_scale)
        held = sums.copy_inside(index) if out is None else None
        write(sums.place_of(index, gradient), view, scaling.before)
        sums.push(index, priority)
        if out is not None:
            write(view, sums.place_of(index, out), scaling.after)
        elif held is not None:
            write(held, view)
        sums.note_pushed(index)


def write(source, target, factor=1.0):
    """target = source * factor, by the engine; dtypes may differ. The factor is not rounded to 16 bits."""
    source, target, same = classic(source), classic(target), source is target
    if factor == 1.0:
        if not same:
            source.copyto(target)
    elif source.dtype == np.float16:
        (source.astype(np.float32) * factor).copyto(target)
    elif source.dtype == target.dtype:
        mx.nd._internal._mul_scalar(source, scalar=factor, out=target)
    else:
        (source.astype(target.dtype) * factor).copyto(target)


def describe(name, tensor, chosen):
    """The gradient `name` of an NDArray like `tensor`. `chosen`: what choose_compression() gave."""
    compressor, codec = chosen
    dtype = np.dtype(tensor.dtype)
    return GradientSpec(name, dtype, tensor.shape, compressor.wire_dtype(dtype) if compressor else dtype, codec)
