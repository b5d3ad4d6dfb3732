"""Models whose gradients something else averages, too: DistributedDataParallel, FullyShardedDataParallel, fully_shard.

It works on the same p.grad during the same backward, and nobody would see that the result is wrong. Accelerate and the
Trainer of transformers wrap a model in DistributedDataParallel by themselves if a launcher has started several ranks.
"""

import sys

_WRAPPERS = (("torch.nn.parallel", "DistributedDataParallel"), ("torch.distributed.fsdp", "FullyShardedDataParallel"))
_SHARDED = (("torch.distributed.tensor", "DTensor"), ("torch.distributed.fsdp", "FlatParameter"))
_BOTH = (
    "the model is wrapped in {}, which averages gradients itself: use it without DistributedOptimizer and "
    "average_gradients(), with the backend 'deft' or with deft.torch.ddp_hook, or use the plain model"
)


def refuse_wrapped(root, averaged):
    """`root`: the outermost module of a forward. `averaged`: the id of each parameter that Deft averages."""
    wrappers = _classes(*_WRAPPERS)
    for module in root.modules() if wrappers else ():
        if isinstance(module, wrappers) and any(id(param) in averaged for param in module.parameters()):
            raise RuntimeError(_BOTH.format(type(module).__name__))


def refuse_sharded(name, param):
    if isinstance(param, _classes(*_SHARDED)):
        raise ValueError(
            f"this rank has a part of parameter {name} (fully_shard, FullyShardedDataParallel, tensor parallelism), "
            "and DistributedOptimizer averages whole gradients. docs/pytorch.md says how FSDP2 goes with Deft"
        )


def _classes(*places):
    """Those that somebody has imported: the import takes a second."""
    modules = [(sys.modules.get(module), name) for module, name in places]
    return tuple(getattr(module, name) for module, name in modules if hasattr(module, name))
