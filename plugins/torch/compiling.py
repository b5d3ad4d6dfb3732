"""torch.compile: what it must not trace, and compiled modules."""

import contextlib
import inspect
import sys

import torch


def untraced(function):
    """Keeps torch.compile out of a hook; loads the compiler, which is slow to import, with the first call only."""
    lazily = getattr(torch, "_disable_dynamo", None)
    return torch.compiler.disable(function) if lazily is None else lazily(function)


def hidden(function):
    """A function that torch's C++ calls, also amid a compiled module: it and what it calls are not traced.

    It stays the same function, whose caller stays its caller, and loads no compiler, which most scripts never do."""
    with contextlib.suppress(ImportError, AttributeError):  # older versions of torch
        from torch._C._dynamo import eval_frame as engine

        skip = engine._FrameAction.SKIP
        engine.set_code_exec_strategy(function.__code__, engine._FrameExecStrategy(skip, skip))
    return function


def hidden_methods(cls):
    for method in filter(inspect.isfunction, vars(cls).values()):
        hidden(method)
    return cls


def is_compiled(module):
    """Whether a module's forward is compiled as a whole: by torch.compile(module) or module.compile()."""
    dynamo = sys.modules.get("torch._dynamo")
    wrapped = dynamo is not None and isinstance(module, dynamo.OptimizedModule)
    return wrapped or getattr(module, "_compiled_call_impl", None) is not None
