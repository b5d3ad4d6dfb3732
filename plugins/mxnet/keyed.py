"""Gradients that come one by one under keys, as a key-value store and an optimizer see them.

    gradients = KeyedGradients(Scaling())
    gradients.push(key, gradient, out, priority)

Nobody says beforehand which keys a step has. So in the first step each gradient is an allreduce of its own. When the
first key comes again, the keys of that step become an Exchange, which all later steps use. A key that was not in the
first step stays an allreduce of its own. An Exchange needs all ranks: while some have joined, the steps of the others
are like the first.
"""

from deft.codec import choose_compression
from deft.compression import Compression
from deft.gradient_group import all_are_here
from deft.process_sets import global_process_set
from deft.reduce_op import Scaling, Sum

from .collectives import allreduce_into
from .engine import mxnet_errors
from .exchange import Exchange, describe
from .importing import mxnet as mx


class KeyedGradients:
    """`compression` is for the gradients of an Exchange: a value, or a function of key and gradient."""

    def __init__(self, scaling=Scaling(), compression=Compression.none, process_set=global_process_set):  # noqa: B008
        self._scaling = scaling
        self._compression = compression
        self._process_set = process_set
        self._session = self._number = self._joined = None
        self._first_step = {}  # by key: (GradientSpec, priority)
        self._exchange = None
        self._places = {}  # by key

    @mxnet_errors
    def push(self, key, gradient, out, priority=0):
        """out = the sum of all ranks' gradients, scaled by `scaling`; all ranks push the same keys."""
        if gradient.stype != "default":
            raise mx.base.MXNetError(f"the gradient {key} is {gradient.stype}; deft.mxnet sums dense gradients only")
        number = self.number()
        if self._exchange is None and self._joined != self._session.joining.round:
            self._begin_first_step()
        if self._exchange is None and key in self._first_step:
            if all_are_here(f"mxnet.{number}", self._scaling, self._process_set):
                self._make_exchange()
            self._first_step = {}
        if key in self._places and self._exchange is not None:
            self._exchange.push(self._places[key], gradient, out, priority)
            return
        if self._exchange is None:
            chosen = choose_compression(self._compression, str(key), gradient)
            self._first_step[key] = (describe(str(key), gradient, chosen), priority)
        name = f"mxnet.{number}.{key}"
        factors = self._scaling.before, self._scaling.after
        allreduce_into(gradient, out, name, Sum, *factors, priority, self._process_set)

    def number(self):
        """Its number in the session that is open, the same on all ranks."""
        session = self._process_set.session()
        if session is not self._session:
            self._session, self._number, self._exchange = session, session.optimizers.number(), None
            self._begin_first_step()
        return self._number

    def _begin_first_step(self):
        """Also when all have joined: the next step is the first one of a rank that had none before."""
        self._first_step, self._joined = {}, self._session.joining.round

    def _make_exchange(self):
        """Higher priorities are used earlier in forward."""
        ordered = sorted(self._first_step.items(), key=lambda item: -item[1][1])
        gradients = [gradient for _, (gradient, _) in ordered]
        self._exchange = Exchange(f"mxnet.{self._number}", gradients, self._scaling, self._process_set)
        self._places = {key: place for place, (key, _) in enumerate(ordered)}
