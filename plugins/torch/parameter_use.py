"""Finds the place in the forward pass at which each parameter is first used.

During one training forward, every torch function and autograd.Function called inside a module's forward is watched for
parameters among its arguments. A parameter belongs to the module in whose forward it was first used. Mostly this is its
owner; for the output projection of torch.nn.MultiheadAttention it is the attention module, and for tied weights the
module that comes first. A parameter that no module was seen to use belongs to none. A compiled module counts as the
user of all its parameters.
"""

import threading

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode, _get_current_function_mode, _pop_mode, _push_mode

from .compiling import is_compiled, untraced
from .frames import runs
from .hooks import current_task
from .other_averaging import refuse_wrapped

_CALL = torch.nn.Module._call_impl.__code__  # the forward of any module

# What autograd.Function.apply calls; scripts keep `apply` of their functions as names of their own.
_FunctionBase = torch.autograd.function._SingleLevelFunction

_METADATA = {
    getattr(torch.Tensor, name).__get__
    for name in (
        "device",
        "dtype",
        "shape",
        "layout",
        "ndim",
        "requires_grad",
        "is_sparse",
        "is_cuda",
        "is_leaf",
        "grad",
    )
} | {torch.Tensor.size, torch.Tensor.dim, torch.Tensor.numel, torch.Tensor.is_floating_point, torch.Tensor.stride}


class ParameterUseTracker:
    """Watches forwards from its making until stop().

    `wanted` maps id(parameter) to the parameter. `found` then gives (module, parameters) in the order in which forward
    enters the modules. `roots` are the outermost modules that own any of the parameters. Without `deep` the watch ends
    with the first root.
    """

    def __init__(self, wanted, deep):
        self.roots = []
        self.done = False
        self._wanted = wanted
        self._deep = deep
        self._stack = []
        self._user = {}  # id(parameter) -> the module that used it first
        self._entered = {}  # module -> its number in the order of first entry
        self._mode = None
        self._thread = None  # that runs the forward: a mode is a thread's
        self._stopping = False
        self._hooks = [register_module_forward_pre_hook(self._enter)]
        if deep:
            self._hooks.append(register_module_forward_hook(self._leave, always_call=True))

    @property
    def found(self):
        by_module = {}
        for key, module in self._user.items():
            by_module.setdefault(module, []).append(self._wanted[key])
        return sorted(by_module.items(), key=lambda use: self._entered[use[0]])

    def stop(self):
        """Ends the watch; within a forward, at the end of that.

        Hooks of a forward that Ctrl-C has ended did not run: torch calls them after an Exception alone. The next call
        outside of a backward ends that watch. At the end of a backward autograd brings back the modes of its begin."""
        self._stopping = True
        if self._stack and self._thread == threading.get_ident() and current_task() < 0 and not runs(_CALL):
            self._end_mode()
            self._stack.clear()
        if not self._stack:
            self._remove()

    def _remove(self):
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self.done = True

    @untraced
    def _enter(self, module, _arguments):
        if not self._stack and not self._note_root(module):
            return  # not ours, and neither are the modules that it calls
        if not self._deep:
            self._remove()
            return
        self._stack.append(module)
        self._thread = threading.get_ident()
        self._entered.setdefault(module, len(self._entered))
        if is_compiled(module):
            self._opaque(module)
        elif len(self._stack) == 1 and torch.is_grad_enabled():
            self._mode = _UseMode(self._use)
            self._mode.enter()

    @untraced
    def _leave(self, module, _arguments, _output):
        if not self._stack or self._stack[-1] is not module:
            return
        self._stack.pop()
        if not self._stack:
            self._end_mode()
            if self._stopping:
                self._remove()

    def _note_root(self, module):
        if module in self.roots:
            return True
        if not any(id(param) in self._wanted for param in module.parameters()):
            return False
        refuse_wrapped(module, self._wanted)
        self.roots.append(module)
        return True

    def _opaque(self, module):
        """The inside of a compiled module cannot be watched: the module as a whole is the user."""
        for param in module.parameters():
            if id(param) in self._wanted:
                self._user.setdefault(id(param), module)
        self._end_mode()
        self._stack.clear()
        self._remove()

    def _end_mode(self):
        if self._mode is not None:
            self._mode.leave()
            self._mode = None

    def _use(self, value):
        if isinstance(value, torch.Tensor):
            if id(value) in self._wanted and id(value) not in self._user:
                self._user[id(value)] = self._stack[-1]
        elif isinstance(value, (list, tuple)):
            for item in value:
                self._use(item)


_watchers = []  # (thread, what notes uses) of the watches that go on: several optimizers may watch at once


def _watched_apply(cls, *args, **kwargs):
    """No mode sees the arguments of autograd.Function.apply, nor those of an extension's kernel within."""
    for thread, use in tuple(_watchers):
        if thread == threading.get_ident():
            use(args)
    return super(_FunctionBase, cls).apply(*args, **kwargs)


class _UseMode(TorchFunctionMode):
    def __init__(self, use):
        super().__init__()
        self._use = use
        self._watcher = (threading.get_ident(), use)

    def enter(self):
        _watchers.append(self._watcher)
        _FunctionBase.apply = classmethod(_watched_apply)
        _push_mode(self)

    def leave(self):
        """Modes that were entered later stay. After Ctrl-C the end of an outer one may have taken this one off."""
        _watchers.remove(self._watcher)
        if not _watchers:
            del _FunctionBase.apply
        modes = []
        while _get_current_function_mode() is not None and self not in modes:
            modes.append(_pop_mode())
        for mode in reversed(modes):
            if mode is not self:
                _push_mode(mode)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func not in _METADATA:
            self._use(args)
            self._use(tuple(kwargs.values()))
        return func(*args, **kwargs)
