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

from .autograd import allreduce


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
        mean, variance, count = _statistics(input)
        if count < 2:
            raise ValueError("SyncBatchNorm needs more than one value a channel, over all ranks, when training")
        scale = (variance + eps).rsqrt()
        ctx.save_for_backward(input, weight, mean, scale)
        ctx.count, ctx.eps, ctx.has_bias = count, eps, bias is not None
        output = _normal(input, mean, scale)
        if weight is not None:
            output = output * _by_channel(weight, input)
        if bias is not None:
            output = output + _by_channel(bias, input)
        ctx.mark_non_differentiable(mean, variance)
        return output.to(input.dtype), mean, variance, count

    @staticmethod
    def backward(ctx, gradient, *_):
        input, weight, mean, scale = ctx.saved_tensors
        if torch.is_grad_enabled():  # a gradient of the gradient flows through the statistics, too
            mean, variance, _ = _statistics(input)
            scale = (variance + ctx.eps).rsqrt()
        normal, axes = _normal(input, mean, scale), _axes(input)
        gradient = gradient.to(normal.dtype)
        of_bias, of_weight = gradient.sum(axes), (gradient * normal).sum(axes)
        sums = allreduce(torch.cat([of_bias, of_weight]).double(), op=Sum) / ctx.count
        average, along = (_by_channel(part.to(normal.dtype), input) for part in sums.chunk(2))
        factor = scale.to(normal.dtype) if weight is None else scale.to(normal.dtype) * weight
        of_input = ((gradient - average - normal * along) * _by_channel(factor, input)).to(input.dtype)
        if weight is None:
            return of_input, None, None, None
        return of_input, of_weight.to(weight.dtype), of_bias.to(weight.dtype) if ctx.has_bias else None, None


def _axes(input):
    """All but the channels."""
    return [axis for axis in range(input.dim()) if axis != 1]


def _by_channel(values, input):
    return values.view([-1 if axis == 1 else 1 for axis in range(input.dim())])


def _normal(input, mean, scale):
    wide = _wide(input)
    return (wide - _by_channel(mean.to(wide.dtype), input)) * _by_channel(scale.to(wide.dtype), input)


def _wide(input):
    return input if input.dtype == torch.float64 else input.float()


def _statistics(input):
    """Mean and variance of each channel over all ranks, in float64, and how many values it has."""
    channels = input.shape[1]
    sums = allreduce(_moments(_wide(input), channels, _axes(input)), op=Sum)
    count = sums[-1].item()
    mean = sums[:channels] / max(count, 1)
    return mean, (sums[channels:-1] / max(count, 1) - mean * mean).clamp(min=0.0), count


def _moments(values, channels, axes):
    """A channel's sums of values and of squares, and the number of values, in float64: squares lose digits else."""
    count = values.numel() // max(channels, 1)
    if count == 0:
        return torch.zeros(2 * channels + 1, dtype=torch.float64, device=values.device)
    variance, mean = (part.double() for part in torch.var_mean(values, axes, correction=0))
    return torch.cat([mean, variance + mean * mean, mean.new_ones(1)]) * count
