"""The norms of gradients by which the Preserver judges plans, told with the loss.

Of a sampled step (deft/statistics_sampler.py) the norm of this rank's own gradient is taken at step(), while p.grad
still is that gradient. The norm of the average is taken when it comes back, which may be steps later and parameter by
parameter. So a sample reads all gradients twice, and only if the user reports a loss; other steps cost nothing.
Norms say something of SGD. Of other optimizers only the loss is told.

(The daemon sees the sums too, but it adds them up in place and part by part, so it would have to read every part before
and after its sum.)
"""

import logging
import math
import weakref

import deft
from deft.statistics_sampler import StatisticsSampler

import torch

log = logging.getLogger("deft.torch")


class Norms:
    """Of one optimizer whose updates may be merged or stale. `sums`: k merged steps make k times the step of one."""

    def __init__(self, optimizer, buffer, sums):
        self._optimizer_of = weakref.ref(optimizer)
        self._buffer = buffer
        self._sums = sums
        self._sampler = StatisticsSampler()
        self._on = deft.option("preserver") != "off" and buffer.process_set.size() > 1
        self._is_sgd = isinstance(optimizer, torch.optim.SGD)

    def report_loss(self, loss, target):
        if isinstance(loss, torch.Tensor):
            if loss.numel() != 1:
                raise ValueError(f"report_loss() takes one number, not a tensor of shape {list(loss.shape)}")
            loss = loss.detach()
        first = not self._sampler.has_loss
        self._sampler.report(loss, target, self._buffer.schedule.step)
        if first and self._on and not self._is_sgd and self._buffer.process_set.rank() == 0:
            log.warning(
                "plans are judged by the loss alone: %s scales its steps by more than a learning rate, and the "
                "Preserver's model of training is that of SGD",
                type(self._optimizer_of()).deft_base.__name__,
            )

    def gathered(self):
        """Each p.grad is this step's own gradient, and complete."""
        self._tell()
        buffer, step = self._buffer, self._buffer.schedule.step
        if not self._on or buffer.arena is None or not self._sampler.begins(step):
            return
        own, awaited = {}, {}
        if self._is_sgd:
            unscale = (buffer.writer.factor / buffer.writer.scaling.before) ** 2
            own = {g.place: _squared_norm(g.param.grad) * unscale for g in buffer.gradients}
            awaited = {place: generation.number for place, generation in enumerate(buffer.schedule.now)}
        self._sampler.begin(step, own, awaited)

    def averaged(self, gradients, due):
        """The averages of `due` have come for these gradients and are p.grad now."""
        for gradient in gradients:
            generation = due.of(gradient.place)
            if generation is not None and self._sampler.wants(gradient.place, generation.number):
                norm = _squared_norm(gradient.param.grad) / self._applied**2
                self._sampler.came(gradient.place, norm, generation.merged, self._buffer.process_set.size())

    @property
    def _applied(self):
        """The applied gradient as a multiple of the average over all ranks."""
        scaling = self._buffer.writer.scaling
        return scaling.before * scaling.after * self._buffer.process_set.size()

    def _tell(self):
        """A step after the averages have come: by then a GPU has computed them."""
        sample = self._sampler.finished()
        if sample is None:
            return
        own, average, loss = sample.numbers()
        groups = self._optimizer_of().__dict__["param_groups"]
        rates = [_long_run(group) if self._is_sgd else 0.0 for group in groups]
        numbers = (own, average, max(rates) * self._applied, loss)
        if not math.isfinite(loss):  # says all: no norm means anything beside it
            numbers = (0.0, 0.0, numbers[2], loss)
        if all(math.isfinite(number) for number in numbers[:3]):
            self._buffer.arena.group.report(deft.Statistics(sample.step, *numbers, sample.target, self._sums))


def _squared_norm(grad):
    if grad is None:
        return 0.0
    grad = grad.detach()
    wide = torch.float32 if grad.dtype in (torch.float16, torch.bfloat16) else None
    if grad.is_sparse:
        grad = grad.coalesce().values()
    return torch.linalg.vector_norm(grad, dtype=wide).double() ** 2


def _long_run(group):
    """The learning rate of SGD with momentum, as a step's gradient feels it in all steps together."""
    momentum = group.get("momentum", 0.0)
    damped = 1.0 - group.get("dampening", 0.0) if momentum else 1.0
    return float(group["lr"]) * damped / max(1.0 - momentum, 1e-6)
