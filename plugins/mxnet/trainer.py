"""DistributedTrainer: gluon's Trainer, which sums gradients over all ranks before it applies them."""

import warnings

import deft
import numpy as np
from deft.arrays import start_allreduce
from deft.codec import choose_compression
from deft.compression import Compression
from deft.gradient_group import all_are_here
from deft.process_sets import global_process_set
from deft.reduce_op import Scaling, Sum

from .collectives import allreduce_into
from .engine import mxnet_errors
from .exchange import Exchange, describe
from .importing import mxnet as mx
from .old_memory import OlderGraphs
from .optimizer import DistributedOptimizer


class DistributedTrainer(mx.gluon.Trainer):
    """As Horovod's: gradients are summed, and step(batch_size) takes the batch of one worker and averages.

    params: net.collect_params() or a list; their order should be that of their use in forward.
    compression: Compression.fp16 sends float32 gradients as float16, a codec such as Compression.int8 has the daemons
    encode them, and a function of a parameter's name and the parameter gives one of these.
    gradient_predivide_factor: how much of the division comes before the sum.
    prefix, num_groups: accepted for Horovod's sake.
    process_set: the ranks that train together. Other ranks keep their own gradients.
    """

    def __init__(
        self,
        params,
        optimizer,
        optimizer_params=None,
        compression=Compression.none,
        gradient_predivide_factor=1.0,
        prefix=None,
        num_groups=0,
        process_set=global_process_set,
    ):
        if isinstance(optimizer, DistributedOptimizer):
            warnings.warn("DistributedTrainer takes the plain optimizer; it is used without its wrapper", stacklevel=2)
            optimizer = optimizer.plain
        self._forward_order = list(params.values()) if hasattr(params, "values") else list(params)
        super().__init__(params, optimizer, optimizer_params=optimizer_params, kvstore=None)
        self._sum_trained()
        self._update_singly()
        self._process_set = process_set
        self._sums = process_set.included() and process_set.size() > 1
        if self._sums:
            self._scale *= gradient_predivide_factor / process_set.size()
        self._scaling = Scaling(1.0 / gradient_predivide_factor, 1.0)
        self._compression = compression
        self._exchange = self._session = self._number = None
        self._some_are_stale = False  # the step may have parameters that backward has not reached on this rank

    def _update_singly(self):
        """An update of several parameters would wait for all their sums."""
        if deft.policy_traits().overlaps_forward and self._optimizer.aggregate_num > 1:
            self._optimizer.aggregate_num = 1

    def load_states(self, fname):
        super().load_states(fname)
        self._update_singly()  # the file may come from another policy

    def step(self, batch_size, ignore_stale_grad=False):
        """As gluon's. All ranks give ignore_stale_grad alike: then a parameter that backward has reached on some ranks
        is updated on all. The ranks tell each other, so the step waits."""
        self._some_are_stale = ignore_stale_grad
        try:
            super().step(batch_size, ignore_stale_grad)
        finally:
            self._some_are_stale = False

    def update(self, batch_size, ignore_stale_grad=False):
        if ignore_stale_grad and self._sums:
            raise ValueError(
                "allreduce_grads() has summed all gradients: ignore_stale_grad=True goes with step() alone"
            )
        super().update(batch_size, ignore_stale_grad)

    def _sum_trained(self):
        """From now on the gradients of these parameters are summed: of those that have one at this moment."""
        self._summed = [param for param in self._forward_order if param.grad_req != "null"]
        self._frozen = [param for param in self._forward_order if param.grad_req == "null"]
        for param in self._summed:
            if param._grad_stype != "default":
                raise ValueError(
                    f"parameter {param.name} has {param._grad_stype} gradients; deft.mxnet sums dense gradients only "
                    "(sparse_grad=False)"
                )
            if len(param.list_ctx()) > 1:
                raise ValueError(f"parameter {param.name} is on several devices; deft.mxnet takes one a worker")

    @mxnet_errors
    def _allreduce_grads(self):
        if not self._sums:
            return
        session = self._process_set.session()
        if session is not self._session:
            self._session, self._number, self._exchange = session, session.optimizers.number(), None
        if self._exchange is None:
            self._sum_trained()
        else:
            self._refuse_unfrozen()
            self._refuse_older_graphs()
        are_kept = self._settle_stale()
        gradients = list(map(_gradient, self._summed, are_kept))
        if self._exchange is None and all_are_here(f"mxnet.{self._number}", self._scaling, self._process_set):
            self._exchange = self._make_exchange(gradients)
            self._take_in(gradients)
        for position in reversed(range(len(gradients))):  # backward writes the last ones first
            self._sum(position, gradients[position], are_kept[position])

    def _settle_stale(self):
        """Of each parameter whether its sum is to be kept.

        What backward has not reached on this rank, but on another one, gets zeros for a gradient, and is updated here,
        too: the array had the sum of an earlier step.
        """
        trained = [param.grad_req != "null" for param in self._summed]
        if not self._some_are_stale:
            return trained
        fresh = [there and param.list_data()[0]._fresh_grad for there, param in zip(trained, self._summed)]
        flags = np.array(fresh, np.int32)
        reached = start_allreduce(
            flags, f"mxnet.{self._number}/reached", Sum, 1.0, 1.0, flags.dtype, self._process_set
        )()
        for param, here, anywhere in zip(self._summed, fresh, reached):
            if param.grad_req != "null" and anywhere and not here:
                param.list_grad()[0][:] = 0
                param.list_data()[0]._fresh_grad = True
        return [there and anywhere > 0 for there, anywhere in zip(trained, reached)]

    def _refuse_unfrozen(self):
        for param in self._frozen:
            if param.grad_req != "null":
                raise ValueError(
                    f"parameter {param.name} has grad_req '{param.grad_req}', but had 'null' in the first step of this "
                    "trainer, which does not sum its gradients: set grad_req before that step, or make a new "
                    "DistributedTrainer"
                )

    def _refuse_older_graphs(self):
        """In the second step alone: then their memory, as much as the gradients have, is free again."""
        older, self._exchange.older_graphs = self._exchange.older_graphs, None
        if older is not None:
            older.refuse_late()

    def _sum(self, position, gradient, is_kept):
        """gradient = the sum of all ranks' gradients; is_kept: whether somebody wants it."""
        if self._exchange is not None:
            out = gradient if is_kept else None
            self._exchange.push(position, gradient, out, -position, self._loss_scale())
        else:  # some ranks have joined, so not all can declare their gradients
            name = f"mxnet.{self._number}.{position}"
            allreduce_into(gradient, gradient, name, Sum, *self._scaling[:2], -position, self._process_set)

    def _loss_scale(self):
        """By which mx.contrib.amp has multiplied the loss, and so the gradients."""
        return getattr(self, "_amp_original_scale", self._scale) / self._scale

    def _make_exchange(self, gradients):
        params, number = self._summed, self._number
        chosen = [choose_compression(self._compression, param.name, param) for param in params]
        described = list(map(describe, self._names(), gradients, chosen))
        return Exchange(f"mxnet.{number}", described, self._scaling, self._process_set)

    def _take_in(self, gradients):
        """Backward writes into the arena from now on."""
        self._exchange.older_graphs = older = OlderGraphs()
        for position, (param, gradient) in enumerate(zip(self._summed, gradients)):
            if param.grad_req != "null" and gradient is param.list_grad()[0]:
                older.take_in(self._exchange, position, param)

    def _names(self):
        """Numbers, since gluon's counters of names depend on which other blocks a rank has made."""
        return [f"{i}.{param.name.rsplit('_', 1)[-1]}" for i, param in enumerate(self._summed)]


def _gradient(param, is_kept):
    """What is summed. Zeros if nobody wants the sum: of what is frozen since the first step, or not used."""
    if is_kept:
        return param.list_grad()[0]
    return mx.nd.zeros(param.shape, ctx=param.list_ctx()[0], dtype=param.dtype)
