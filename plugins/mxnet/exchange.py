"""Gradients on their way through the arena, as operations of MXNet's engine.

    exchange = Exchange("mxnet.0", gradients)
    exchange.push(index, gradient, out, priority)     # of each gradient of a step, in any order; returns at once

The engine copies a gradient into the arena as soon as backward has written it, hands it over, and copies the sum to
`out` when it is there. So backward, communication, update and the next forward overlap as their arrays allow.
"""

import functools
import threading

import numpy as np
from deft import DeftError
from deft._native import ELOST
from deft.gradient_group import GradientGroup, GradientSpec
from deft.process_sets import global_process_set
from deft.reduce_op import Scaling
from deft.world import depend

from . import engine, join_watch
from .importing import mxnet as mx


class Exchange:
    """`gradients` are in the order of their use in forward.

    The thread that trains owns it. All ranks of the set make it together, and push the same gradients in each step.
    """

    def __init__(self, name, gradients, scaling=Scaling(), process_set=global_process_set):  # noqa: B008
        self.name = name
        self._session = process_set.session()
        self._group = GradientGroup(name, gradients, Scaling(), process_set)
        self._names = [one.name for one in gradients]
        self._scaling = scaling
        self._views = [engine.view_of(view) for view in self._group.views]
        self._averaged = mx.nd.zeros((1,))  # is written when all sums of a step are there
        self._pushed = set()  # of the step that is being pushed
        self._rounds_pushed = 0
        self._lock = threading.Lock()
        self._lost_round = -1  # the newest round with an error
        depend(self, self._session)

    def push(self, index, gradient, out, priority=0, loss_scale=1.0):
        """loss_scale: what gradients of this step, and no other one, were multiplied by. What codecs leave out is added
        to later gradients, so they travel without it; float16, which holds no small values, keeps it."""
        if index in self._pushed:
            missing = [name for place, name in enumerate(self._names) if place not in self._pushed]
            raise mx.base.MXNetError(
                f"the gradient {self._names[index]} comes a second time before {', '.join(missing[:5])} came in this "
                "step: each step must bring the same gradients"
            )
        view = self._views[index]
        scaling = self._scaling if view.dtype == np.float16 else self._scaling.unscaled(loss_scale)
        write(gradient, view, scaling.before)
        start = functools.partial(self._hand_over, index, self._rounds_pushed)
        engine.push(start, [self._averaged], [view], priority, "deft_allreduce")
        write(view, out, scaling.after)
        self._pushed.add(index)
        if len(self._pushed) == len(self._views):
            self._pushed.clear()
            self._rounds_pushed += 1
            engine.push(self._end_step, self._views, [self._averaged], name="deft_step")

    def _hand_over(self, index, number, done):
        def summed(error):
            join_watch.ended(self._session)
            done(error if error is not None and self._is_first_error(number) else None)

        join_watch.began(self._session)
        try:
            self._group.ready(index)
            self._group.when_summed(index, summed)
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
        self._group.end_round()
        done()

    # ---- for join(), while the engine has nothing to do: as deft.joining.ZeroGradients says

    def join_begins(self):
        self._pushed.clear()
        self._group.join_begins()

    def rounds(self):
        return self._group.rounds()

    def give_zeros(self):
        self._group.give_zeros()

    # ---- the end of a session

    def settle(self):
        """The session ends soon: the work of the engine in the arena ends first.

        Raises DeftError for an error that nobody has seen yet.
        """
        engine.push(lambda done: done(), writes=self._views, name="deft_settle")  # waits for all that reads them
        lost = None
        for view in self._views:
            try:
                view.wait_to_read()
            except mx.base.MXNetError as error:
                lost = error
        if lost is not None:
            raise DeftError(ELOST, f"sums of the last step are lost: {lost}") from lost

    def flush(self):
        """No update is ever held back."""

    def release(self):
        """The arena goes."""
        self._views = self._group = None


def write(source, target, factor=1.0):
    """target = source * factor, by the engine; dtypes may differ. The factor is not rounded to 16 bits."""
    if factor == 1.0:
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
