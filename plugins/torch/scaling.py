"""GradScaler for every optimizer of Deft.

Each gradient is divided by its own step's scale on its way into the arena: delayed updates merge steps whose scales may
differ, and what an encoding leaves out is added to the gradients of later steps. If an update is made with the step's
gradients, the averages get the scale back, and the rest is torch's own. With delayed updates infinities are looked for
in the averages, which have the same bits on all ranks: all skip the same updates and all lower the scale.
"""

import functools
import weakref

import torch

from .hooks import current_task
from .nested_backward import is_nested, running_backward

_TorchScaler = getattr(torch.amp, "GradScaler", None) or torch.cuda.amp.GradScaler
_queue_callback = torch.autograd.Variable._execution_engine.queue_callback

_under_way = None  # (scale, autograd's number, running_backward()) of the backward of a scaled loss


def scale_under_way():
    """The factor of the loss of the running backward; 1 if no GradScaler of Deft did.

    A backward that ended by an error has not forgotten its scale, which is none of another backward."""
    if _under_way is None:
        return 1.0
    scale, task, backward = _under_way
    runs = task == current_task() or (is_nested() and backward is running_backward())
    return scale if runs else 1.0


def _forget_scale():
    global _under_way
    _under_way = None


class GradScaler(_TorchScaler):
    """torch.amp.GradScaler, which also works with delayed updates and with codecs."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._outcomes = []  # (scale, infinite) of the delayed updates since the last update()
        self._stepped = {}  # id of a delayed optimizer -> its calls since the last update()
        self._known_scale = None

    def get_scale(self):
        if self._known_scale is None:
            self._known_scale = super().get_scale()
        return self._known_scale

    def scale(self, outputs):
        scaled = super().scale(outputs)
        if self.is_enabled():
            self._watch(scaled)
        return scaled

    def _watch(self, scaled):
        if isinstance(scaled, torch.Tensor):
            if scaled.requires_grad:
                scale = self.get_scale()
                scaled.register_hook(lambda _grad: _note_backward(scale))
            return
        for tensor in scaled:
            self._watch(tensor)

    def unscale_(self, optimizer):
        steps = self._delayed(optimizer)
        if steps is None:
            return super().unscale_(optimizer)
        self._call_once(optimizer, "unscale_")
        steps.scaled_by(self, self.get_scale())
        return steps.synchronize()

    def step(self, optimizer, *args, **kwargs):
        steps = self._delayed(optimizer)
        if steps is None:
            return super().step(optimizer, *args, **kwargs)
        if "closure" in kwargs:
            raise RuntimeError("GradScaler.step() takes no closure: compute the loss and its gradients before")
        self._call_once(optimizer, "step")
        steps.scaled_by(self, self.get_scale())
        return optimizer.step(*args, **kwargs)

    def update(self, new_scale=None):
        outcomes, self._outcomes = self._outcomes, []
        delayed, self._stepped = bool(self._stepped), {}
        if not (delayed or outcomes) or new_scale is not None or not self.is_enabled():
            super().update(new_scale)
        else:
            self._update_by(outcomes)
        self._known_scale = None

    def _update_by(self, outcomes):
        """An overflow of a step whose scale was lowered since says nothing about the present one."""
        present = self.get_scale()
        telling = [infinite for scale, infinite in outcomes if not infinite or scale <= present]
        states = self._per_optimizer_states
        if telling:
            found = torch.full((), float(any(telling)), dtype=torch.float32, device=self._device_of_scale())
            states["delayed"]["found_inf_per_device"] = {found.device: found}
        if any(state["found_inf_per_device"] for state in states.values()):
            super().update()
        else:
            states.clear()

    def load_state_dict(self, state_dict):
        super().load_state_dict(state_dict)
        self._known_scale = None

    def note(self, scale, infinite):
        """An update whose gradients had been scaled by at most `scale` was applied, or skipped for infinities."""
        self._outcomes.append((scale, infinite))

    def _delayed(self, optimizer):
        return _delayed(optimizer) if self.is_enabled() else None

    def _call_once(self, optimizer, call):
        called = self._stepped.setdefault(id(optimizer), [])
        if call in called or "step" in called:
            raise RuntimeError(f"{call}() was called after {called[-1]}() on this optimizer since the last update()")
        called.append(call)

    def _device_of_scale(self):
        return "cpu" if self._scale is None else self._scale.device


def _note_backward(scale):
    global _under_way
    _under_way = scale, current_task(), running_backward()
    _queue_callback(_forget_scale)


def _delayed(optimizer):
    """The steps of an optimizer whose updates are delayed; None for all others."""
    steps = getattr(optimizer, "_deft", None)
    return steps if steps is not None and steps.schedule.delays else None


def refuse_torch_scalers():
    """torch's own GradScaler gives an error for an optimizer whose updates are delayed."""
    for name in ("step", "unscale_"):
        method = getattr(_TorchScaler, name)
        if not hasattr(method, "deft_checks"):
            setattr(_TorchScaler, name, _checked(method))


def let_scalers_agree():
    """Scalers, also torch's own, then skip a step of an Adasum optimizer on all ranks or on none."""
    method = _TorchScaler._unscale_grads_  # looks for infinities, whoever asks for that
    if not hasattr(method, "deft_agrees"):
        _TorchScaler._unscale_grads_ = _agreed(method)


def _agreed(method):
    @functools.wraps(method)
    def agreed(scaler, optimizer, *args, **kwargs):
        found = method(scaler, optimizer, *args, **kwargs)
        adasum = getattr(optimizer, "_deft_adasum", None)
        if adasum is not None:
            adasum.agree_on_infinities(found)
        return found

    agreed.deft_agrees = True
    return agreed


def _checked(method):
    @functools.wraps(method)
    def checked(scaler, optimizer, *args, **kwargs):
        if scaler.is_enabled() and not isinstance(scaler, GradScaler) and _delayed(optimizer) is not None:
            raise RuntimeError(
                "updates are delayed, and torch's GradScaler cannot unscale gradients that are merged with those of "
                "other steps: use deft.torch.GradScaler, which takes the same arguments, or a synchronous DEFT_POLICY"
            )
        return method(scaler, optimizer, *args, **kwargs)

    checked.deft_checks = True
    return checked


class LossScales:
    """The steps of an optimizer whose losses were scaled: by whom, and by how much at most."""

    def __init__(self):
        self._of = {}

    def __bool__(self):
        return bool(self._of)

    def note(self, step, scaler, scale):
        _, before = self._of.get(step, (None, 0.0))
        self._of[step] = (weakref.ref(scaler), max(scale, before))

    def cover(self, due):
        """Whether gradients of a scaled loss are in this update."""
        return any(due.first_step <= step <= due.last_step for step in self._of)

    def tell(self, due, infinite):
        """The update was made, or was not because it is `infinite`."""
        notes = [self._of[step] for step in sorted(self._of) if due.first_step <= step <= due.last_step]
        scaler = notes[-1][0]()
        if scaler is not None:
            scaler.note(max(scale for _, scale in notes), infinite)

    def forget_before(self, step):
        """No update will have gradients of an older step."""
        self._of = {at: note for at, note in self._of.items() if at >= step}


def has_infinities(grads):
    """Whether any element of these tensors is infinite or no number."""
    largest = [torch.linalg.vector_norm(grad.detach(), float("inf")) for grad in grads if grad is not None]
    return not all(bool(torch.isfinite(norm)) for norm in largest)
