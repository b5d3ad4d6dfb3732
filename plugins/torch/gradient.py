"""One parameter's gradient on its way into the arena and back."""

import weakref

from deft.codec import choose_compression

import torch

from .compression import wire_dtype
from .dtypes import GRADIENT_DTYPES


class Gradient:
    """One parameter that takes part, and its place in the arena.

    If the arena has the gradient's own dtype, memory and layout, `p.grad` becomes the view of the arena: one pass over
    the data in all. Otherwise (float16 on the wire, a parameter on another device, or one in channels_last) `p.grad`
    stays where it is and is copied back.
    """

    def __init__(self, param, name, position, compression, sparse_as_dense=False, only_sparse=False):
        if param.dtype not in GRADIENT_DTYPES:
            raise ValueError(
                f"parameter {name} is {param.dtype}; gradients can be float32, float64, float16 or bfloat16"
            )
        given = getattr(param, "grad_dtype", None)  # versions of torch before 2.9 have none
        if given not in (None, param.dtype):
            raise ValueError(f"parameter {name} is {param.dtype} and has grad_dtype {given}; the two must be equal")
        self.param = param
        self.name = name
        self.position = position  # in forward order
        compressor, self.codec = choose_compression(compression, name, param)
        self.wire_dtype = wire_dtype(compressor, param.dtype) if compressor else param.dtype
        self.loss_scale = 1.0  # with which it travels, if it is narrowed: without it small gradients would become zero
        self.place = None  # in the arena
        self.views = ()  # in each slot
        self.direct = False  # p.grad becomes a part of the arena
        self.staging = None  # if the arena is on the host and p.grad on a GPU
        self.sparse_as_dense = sparse_as_dense
        self.only_sparse = only_sparse  # the optimizer takes sparse gradients alone

    @property
    def view(self):
        """Its part of the arena in the first slot; None: it has none."""
        return self.views[0] if self.views else None

    @property
    def is_narrowed(self):
        return self.wire_dtype != self.param.dtype

    def settle_in(self, place, views, staging):
        """Has the place `place` in an arena: `views`, one a slot."""
        self.place, self.views, self.staging = place, views, staging
        fits = self.wire_dtype == self.param.dtype and self.view.device == self.param.device
        # Fused optimizers walk parameter and gradient side by side in memory, and places in the arena are contiguous.
        self.direct = fits and not self.only_sparse and self.param.is_contiguous()

    def put(self, scale, expose=True):
        """Moves p.grad, scaled, into the arena; no gradient counts as zero, and stays None if `expose` is false."""
        grad = self.param.grad
        if grad is None:
            self.clear(self.view)
        elif grad is self.view:
            if scale != 1.0:
                grad.mul_(scale)
        else:
            self.copy(grad, scale * self.loss_scale, self.view)
        if self.direct and (grad is not None or (expose and self.param.requires_grad)):
            self.param.grad = self.view

    def clear(self, view):
        """Writes zeros to `view`, a part of the arena."""
        if self.staging is not None:
            self.staging.settle()
        view.zero_()

    def copy(self, grad, scale, view):
        """Writes `grad`, scaled, to `view`, a part of the arena; on a GPU it only asks for that."""
        grad = grad.detach()
        if grad.is_sparse:
            grad = grad.to_dense()
        if self.staging is not None and grad.device.type != "cpu":
            self.staging.fetch((grad if scale == 1.0 else grad.mul(scale)).to(self.wire_dtype), view)
        elif grad.device != view.device:
            view.copy_(grad if scale == 1.0 else grad.mul(scale))
        elif scale == 1.0:
            view.copy_(grad)
        else:
            torch.mul(grad, scale, out=view)

    def add(self, grad, scale, view):
        """Adds `grad`, scaled, to `view`."""
        grad = grad.detach()
        if grad.is_sparse:
            grad = grad.to_dense()
        if self.staging is not None:
            self.staging.settle()
        view.add_(grad.to(view.device, view.dtype), alpha=scale)

    def take(self, scale, view=None):
        """Brings p.grad to the reduced values, times `scale`; they lie in `view`, or where p.grad was put."""
        scale /= self.loss_scale
        if view is None:
            view = self.view
        elif self.direct:
            self.param.grad = view
        if scale != 1.0 and self.staging is None:
            view.mul_(scale)
        if self.direct:
            return
        param = self.param
        if param.grad is None or param.grad.is_sparse:
            param.grad = torch.empty_like(param)
        with torch.no_grad():
            if self.staging is None:
                param.grad.copy_(view)
            else:
                self.staging.bring(view, param.grad)
                if scale != 1.0:
                    param.grad.mul_(scale)
            if self.only_sparse:
                param.grad = param.grad.to_sparse(1)

    def take_withheld(self, scale):
        """The same if p.grad was None. If a further backward has begun, the average is added to its gradient."""
        fresh = self.param.grad
        if fresh is None:
            if self.param.requires_grad:
                self.take(scale, self.view)
            return
        self.view.mul_(scale / self.loss_scale)
        with torch.no_grad():
            fresh.add_(self.view.to(fresh.device))

    def release(self):
        """Lets go of the arena's memory."""
        if self.param.grad is not None and any(self.param.grad is view for view in self.views):
            self.param.grad = self.param.grad.clone()
        self.views, self.staging = (), None


class GradientVersions:
    """Notices if p.grad is changed or replaced after it was handed over or averaged. It keeps no p.grad alive."""

    def __init__(self):
        self._noted = {}  # gradient -> (weak reference to p.grad, its version), or None if it had none
        self._held = {}  # the same, of those that were handed over in a generation that is not complete
        self._averaged = False

    def note(self, gradients, averaged=False):
        """`averaged`: each p.grad holds its average."""
        grads = ((gradient, gradient.param.grad) for gradient in gradients)
        self._noted = {g: None if grad is None else (weakref.ref(grad), grad._version) for g, grad in grads}
        self._averaged = averaged

    def hold(self, gradients):
        """These are handed over, and further backwards of the step make others."""
        grads = ((gradient, gradient.param.grad) for gradient in gradients)
        self._held = {g: (weakref.ref(grad), grad._version) for g, grad in grads if grad is not None}

    def changed_while_held(self):
        """The name of a gradient that was changed in place since hold(); None if none was."""
        for gradient, held in self._held.items():
            if _changes(gradient, held):
                return gradient.name
        return None

    def changed_in_place(self):
        """The name of a gradient that was changed since note() and is the same tensor; None if none was."""
        return next((gradient.name for gradient in self._noted if self._changes(gradient)), None)

    def forget(self):
        self._noted, self._held = {}, {}

    def changed(self):
        """The name of a gradient that was changed since note(); None if none was."""
        for gradient, noted in self._noted.items():
            grad = gradient.param.grad
            if not (grad is None if noted is None else self._changes(gradient) == 0):
                return gradient.name
        return None

    def holds_average(self, gradient):
        """Whether p.grad is the tensor that was averaged in this step already, though it may be changed since."""
        return self._averaged and self._changes(gradient) is not None

    def is_average(self, gradient):
        """Whether p.grad is what it was when it was averaged in this step."""
        return self._averaged and self._changes(gradient) == 0

    def dropped(self):
        """The gradients under way whose p.grad was cleared or replaced since they were handed over."""
        return set() if self._averaged else {gradient for gradient in self._noted if self.was_replaced(gradient)}

    def replaced(self, round):
        """The name of a gradient under way in whose place is another tensor, which no further backward has made."""
        for gradient in self.dropped():
            if gradient.param.grad is not None and not round.counts[gradient.place]:
                return gradient.name
        return None

    def was_replaced(self, gradient):
        """Whether p.grad is another tensor than the one that was noted, or none."""
        return self._noted.get(gradient) is not None and self._changes(gradient) is None

    def was_changed_before(self, gradient):
        """Whether its average was changed even before the backward that runs added to it."""
        return self.holds_average(gradient) and self._changes(gradient) > 1

    def _changes(self, gradient):
        """How often p.grad was changed since note(); None if it is another tensor, or had none."""
        return _changes(gradient, self._noted.get(gradient))


def _changes(gradient, noted):
    grad = gradient.param.grad
    if grad is None or noted is None or noted[0]() is not grad:
        return None
    return grad._version - noted[1]
