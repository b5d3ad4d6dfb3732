"""BatchNorm with the mean and variance of the batches of all ranks together.

    torch.nn.BatchNorm2d(64)  ->  hvd.SyncBatchNorm(64)

In training each rank adds up its values and their squares a channel, and the sums of all ranks give mean and variance.
Backward needs two such sums, too. Ranks may have different batch sizes. An evaluation uses the running statistics and
communicates nothing. Gradients of weight and bias are this rank's own: the optimizer averages them, as it does for all
parameters.
"""

from deft.process_sets import global_process_set
from deft.reduce_op import Sum

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from .collectives import allreduce_plain
from .compression import Compression


class SyncBatchNorm(_BatchNorm):
    """Takes the arguments of torch.nn.BatchNorm. A forward in training is a collective of all ranks."""

    def _check_input_dim(self, input):
        if input.dim() < 2:
            raise ValueError(f"SyncBatchNorm needs an input of 2 dimensions or more, not of {input.dim()}")

    def forward(self, input):
        self._check_input_dim(input)
        own = not self.track_running_stats or self.running_mean is None  # the batch's own statistics, always
        if not (self.training or own) or global_process_set.size() == 1:
            return super().forward(input)
        output, mean, variance, count = _Normalize.apply(input, self.weight, self.bias, self.eps)
        if self.training and not own:
            self._keep(mean, variance, count)
        return output

    def _keep(self, mean, variance, count):
        with torch.no_grad():
            self.num_batches_tracked.add_(1)
            momentum = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
            unbiased = variance * (count / (count - 1.0)) if count > 1 else variance
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), momentum)
            self.running_var.lerp_(unbiased.to(self.running_var.dtype), momentum)


class _Normalize(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, weight, bias, eps):
        wide = input if input.dtype == torch.float64 else input.float()
        channels, axes = input.shape[1], [axis for axis in range(input.dim()) if axis != 1]
        sums = _sum(_moments(wide, channels, axes))
        count = sums[-1].item()
        if count < 2:
            raise ValueError("SyncBatchNorm needs more than one value a channel, over all ranks, when training")
        mean = sums[:channels] / count
        variance = (sums[channels:-1] / count - mean * mean).clamp_(min=0.0)
        shape = [-1 if axis == 1 else 1 for axis in range(input.dim())]
        scale = (variance + eps).rsqrt()
        normal = (wide - mean.to(wide.dtype).view(shape)) * scale.to(wide.dtype).view(shape)
        ctx.save_for_backward(normal, weight, scale)
        ctx.axes, ctx.shape, ctx.count, ctx.dtype, ctx.has_bias = axes, shape, count, input.dtype, bias is not None
        output = normal if weight is None else normal * weight.view(shape)
        if bias is not None:
            output = output + bias.view(shape)
        ctx.mark_non_differentiable(mean, variance)
        return output.to(input.dtype), mean, variance, count

    @staticmethod
    def backward(ctx, gradient, *_):
        normal, weight, scale = ctx.saved_tensors
        gradient = gradient.to(normal.dtype)
        of_bias, of_weight = gradient.sum(ctx.axes), (gradient * normal).sum(ctx.axes)
        sums = _sum(torch.cat([of_bias, of_weight]).double()) / ctx.count
        mean, along = (part.to(normal.dtype).view(ctx.shape) for part in sums.chunk(2))
        factor = scale.to(normal.dtype) if weight is None else scale.to(normal.dtype) * weight
        of_input = (gradient - mean - normal * along) * factor.view(ctx.shape)
        if weight is None:
            return of_input.to(ctx.dtype), None, None, None
        of_bias = of_bias.to(weight.dtype) if ctx.has_bias else None
        return of_input.to(ctx.dtype), of_weight.to(weight.dtype), of_bias, None


def _moments(values, channels, axes):
    """A channel's sums of values and of squares, and the number of values, in float64: squares lose digits else."""
    count = values.numel() // max(channels, 1)
    if count == 0:
        return torch.zeros(2 * channels + 1, dtype=torch.float64, device=values.device)
    variance, mean = (part.double() for part in torch.var_mean(values, axes, correction=0))
    return torch.cat([mean, variance + mean * mean, mean.new_ones(1)]) * count


def _sum(sums):
    return allreduce_plain(sums, None, Sum, 1.0, 1.0, Compression.none, global_process_set)
