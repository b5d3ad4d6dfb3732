"""One parameter's gradient on its way into the arena and back."""

import torch

from .dtypes import GRADIENT_DTYPES


class Gradient:
    """What is known of one parameter that takes part.

    Where the arena has the gradient's own dtype and memory, `p.grad` becomes the view of the arena: one pass over the
    data in all. Otherwise (float16 on the wire, a parameter on another device) `p.grad` stays where it is and is copied
    back.
    """

    def __init__(self, param, name, position, compression):
        if param.dtype not in GRADIENT_DTYPES:
            raise ValueError(
                f"parameter {name} is {param.dtype}; gradients can be float32, float64, float16 or bfloat16"
            )
        self.param = param
        self.name = name
        self.position = position  # in forward order
        compress = compression.wire_dtype is not None and param.dtype in (torch.float32, torch.float64)
        self.wire_dtype = compression.wire_dtype if compress else param.dtype
        self.place = None  # in the arena
        self.view = None  # in the first slot
        self.views = ()  # in each slot
        self.direct = not compress and param.device.type == "cpu"
        self.sparse = False

    def put(self, scale, expose=True):
        """Moves p.grad, scaled, into the arena; no gradient counts as zero, and stays none where `expose` is false."""
        grad = self.param.grad
        if grad is None:
            self.view.zero_()
        elif grad is self.view:
            if scale != 1.0:
                grad.mul_(scale)
        else:
            self.copy(grad, scale, self.view)
        if self.direct and (grad is not None or (expose and self.param.requires_grad)):
            self.param.grad = self.view

    def copy(self, grad, scale, view):
        """Writes `grad`, scaled, to `view`, a part of the arena."""
        grad = grad.detach()
        if grad.is_sparse:
            grad = grad.to_dense()
        if grad.device.type != "cpu":
            view.copy_(grad.to(self.wire_dtype) if scale == 1.0 else grad.mul(scale).to(self.wire_dtype))
        elif scale == 1.0:
            view.copy_(grad)
        else:
            torch.mul(grad, scale, out=view)

    def add(self, grad, scale, view):
        """Adds `grad`, scaled, to what is in `view`."""
        grad = grad.detach()
        if grad.is_sparse:
            grad = grad.to_dense()
        view.add_(grad.to(view.device, view.dtype), alpha=scale)

    def take(self, scale, view=None):
        """Brings p.grad to the reduced values, times `scale`; they lie in `view`, or where p.grad was put."""
        if view is None:
            view = self.view
        elif self.direct:
            self.param.grad = view
        if scale != 1.0:
            view.mul_(scale)
        if self.direct:
            return
        param = self.param
        if param.grad is not None and not param.grad.is_sparse:
            with torch.no_grad():
                param.grad.copy_(view)
        elif param.requires_grad:
            param.grad = view.to(param.device, param.dtype, copy=True)

    def take_late(self, scale):
        """The same where p.grad was none, and a further backward may have begun: what that has made is added to."""
        fresh = self.param.grad
        if fresh is None:
            self.take(scale)
            if self.direct and self.param.requires_grad:
                self.param.grad = self.view
            return
        self.view.mul_(scale)
        with torch.no_grad():
            fresh.add_(self.view.to(fresh.device))

    def release(self):
        """Lets go of the arena's memory."""
        if self.param.grad is not None and any(self.param.grad is view for view in self.views):
            self.param.grad = self.param.grad.clone()
        self.view, self.views = None, ()
