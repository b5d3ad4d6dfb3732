"""torch.compile: hooks that it must not trace, and compiled modules."""

import sys

import torch


def untraced(function):
    """Keeps torch.compile out of a hook; loads the compiler, which is slow to import, with the first call only."""
    lazily = getattr(torch, "_disable_dynamo", None)
    return torch.compiler.disable(function) if lazily is None else lazily(function)


def is_compiled(module):
    """Whether a module's forward is compiled as a whole: by torch.compile(module) or module.compile()."""
    dynamo = sys.modules.get("torch._dynamo")
    wrapped = dynamo is not None and isinstance(module, dynamo.OptimizedModule)
    return wrapped or getattr(module, "_compiled_call_impl", None) is not None
