"""average_gradients(): for loops whose optimizer is not torch's, such as model.fit of Keras on PyTorch.

hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.average_gradients(model)
model.fit(...)
"""

import weakref

from deft.process_sets import global_process_set
from deft.reduce_op import Adasum, Sum
from deft.world import depend, is_in_job

import torch

from . import hooks
from .kept_sums import KeptSums
from .keras_names import with_common_names
from .optimizer import DistributedOptimizer, slots_wanted
from .ownership import belongs

_optimizers = weakref.WeakKeyDictionary()  # by module: (what makes no step, the end of its session, KeptSums)


def average_gradients(module, **options):
    """Makes every backward end with the averages over all ranks in p.grad, and gives the module back.

    Call it when the module has its parameters, and again when some are unfrozen: the gradient of a parameter that was
    frozen is an error. If the loop does not clear gradients, backward adds to the averages, as in one process.
    `options` are arguments of DistributedOptimizer, such as compression, op or process_set.
    """
    if options.get("op") is Adasum:
        raise ValueError("average_gradients() offers Average and Sum: Adasum reduces what an optimizer's step changes")
    if slots_wanted() > 1:
        raise ValueError(
            "average_gradients() does not go with a policy that delays updates: choose another DEFT_POLICY, or set "
            "DEFT_MAX_STALENESS_STEPS=0"
        )
    optimizer = torch.optim.SGD([param for param in module.parameters() if param.requires_grad], lr=0.0)
    named = with_common_names(module.named_parameters())
    optimizer = DistributedOptimizer(optimizer, named, overlap_forward="off", **options)
    if hasattr(optimizer, "_deft"):  # else this rank is outside process_set, and keeps its own gradients
        optimizer._deft.backward_is_a_step = True
        optimizer._deft.ownership.add_unhooked([param for param in module.parameters() if not param.requires_grad])
        end = _SessionEnd(optimizer)
        depend(end, options.get("process_set", global_process_set).session())
        kept = KeptSums(optimizer._deft.buffer) if options.get("op") is Sum else None
        _optimizers[module] = optimizer, end, kept
    return module


class _SessionEnd:
    """When the session has ended, hooks on the parameters refuse a backward of the next one: nobody calls step() there.

    As with an optimizer, these hooks hold nothing that holds parameters."""

    def __init__(self, optimizer):
        self._optimizer_of = weakref.ref(optimizer)

    def settle(self):
        """The optimizer does that."""

    flush = settle

    def release(self):
        optimizer = self._optimizer_of()
        if optimizer is None:
            return
        steps_of = weakref.ref(optimizer._deft)

        def refuse(param):
            if is_in_job() and belongs(param, steps_of()):
                raise RuntimeError("the session of average_gradients(model) has ended: call it again after init()")

        buffer = optimizer._deft.buffer
        for gradient in [*buffer.gradients, *buffer.sparse]:
            hooks.install(gradient.param, refuse)
