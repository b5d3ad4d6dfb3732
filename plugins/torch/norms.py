"""What the Preserver judges plans by: now and then the norms of a step's gradients, told with the loss.

Of a sampled step the norm of this rank's own gradient is taken at step(), where p.grad still is that gradient, and that
of the average when it comes back, be it steps later and parameter by parameter. So a sample reads all gradients twice,
in one step of eight, more often in the beginning, and only where the user reports a loss; other steps cost nothing.
Norms say something of SGD; of other optimizers the loss is told alone.
(The daemon sees the sums too, but it adds them up in place part by part, so it would have to read every part before and
after its sum.)
"""

import math

import deft

import torch

from .world import log, rank, size

EVERY = 8  # steps between samples, where one has come back by then
AT_LEAST = 16  # steps after which one that has not is given up for the next
FIRST = 1
EARLY, EVERY_EARLY = 128, 4  # up to this step more often: a loss that begins to fall changes what late updates cost
DENSE = 8  # up to this step a sample follows on the other: the first plan is made then, and one sample tells little
_STALE = 4 * AT_LEAST  # steps after which a loss says nothing any more


class _Sample:
    """Squared norms of one step's gradients, by place."""

    def __init__(self, step, own, awaited, loss, target):
        self.step, self.own, self.awaited, self.loss, self.target = step, own, awaited, loss, target
        self.average = []


class Norms:
    """Of one optimizer whose updates may be merged or late. `sums`: k merged steps make k times the step of one."""

    def __init__(self, optimizer, exchange, sums):
        self._optimizer = optimizer
        self._exchange = exchange
        self._sums = sums
        self._loss = None  # (loss, target, step) of the newest report
        self._sample = None
        self._sampled = -1  # the newest sampled step
        self._on = deft.option("preserver") == "on" and size() > 1
        self._is_sgd = isinstance(optimizer, torch.optim.SGD)

    def report_loss(self, loss, target):
        if isinstance(loss, torch.Tensor):
            if loss.numel() != 1:
                raise ValueError(f"report_loss() takes one number, not a tensor of shape {list(loss.shape)}")
            loss = loss.detach()
        if not math.isfinite(target) or target < 0:
            raise ValueError(f"the target of the loss is {target}; give the lowest loss that can be reached, 0 or more")
        if self._on and not self._is_sgd and self._loss is None and rank() == 0:  # once
            log.warning(
                "plans are judged by the loss alone: %s scales its steps by more than a learning rate, and the "
                "Preserver's model of training is that of SGD",
                type(self._optimizer).deft_base.__name__,
            )
        self._loss = (loss, target, self._exchange.step)

    def gathered(self):
        """Each p.grad is this step's own gradient, and complete."""
        self._tell()
        exchange = self._exchange
        step = exchange.step
        if not self._on or self._loss is None or step == self._sampled:
            return
        if step % AT_LEAST != FIRST and (self._sample is not None or not _is_sample(step)):
            return
        loss, target, reported = self._loss
        if exchange.arena is None or step - reported > _STALE:
            return
        self._sampled = step
        unscale = (exchange.factor / exchange.scale) ** 2
        own, awaited = {}, {}
        if self._is_sgd:
            own = {g.place: _squared_norm(g.param.grad) * unscale for g in exchange.gradients}
            awaited = {place: generation.number for place, generation in enumerate(exchange.now())}
        self._sample = _Sample(step, own, awaited, loss, target)

    def averaged(self, averages):
        """Some averages have come and are p.grad now: (gradient, its Average or None)."""
        sample = self._sample
        if sample is None or not sample.awaited:
            return
        for gradient, average in averages:
            if average is None or sample.awaited.get(gradient.place) != average.number:
                continue
            del sample.awaited[gradient.place]
            merged = round(self._exchange.rescale / average.factor)
            norm = _squared_norm(gradient.param.grad) / self._applied**2
            sample.average.append(_of_one_step(norm, sample.own[gradient.place], merged, size()))

    @property
    def _applied(self):
        """What is applied, as a multiple of the average over all ranks."""
        return self._exchange.scale * self._exchange.rescale * size()

    def _tell(self):
        """A step late: what a GPU was asked for then is there by now."""
        sample = self._sample
        if sample is None or sample.awaited:
            return
        self._sample = None
        rates = [_long_run(group) if self._is_sgd else 0.0 for group in self._optimizer.__dict__["param_groups"]]
        numbers = (
            float(sum(sample.own.values())),
            float(sum(sample.average)),
            max(rates) * self._applied,
            float(sample.loss),
        )
        if all(math.isfinite(number) for number in numbers):
            told = deft.Statistics(sample.step, *numbers, sample.target, self._sums)
            self._exchange.arena.group.report(told)


def _is_sample(step):
    """One that is left out where an earlier one has not come back yet."""
    return step <= DENSE or step % (EVERY_EARLY if step <= EARLY else EVERY) == FIRST


def _squared_norm(grad):
    if grad is None:
        return 0.0
    grad = grad.detach()
    wide = torch.float32 if grad.dtype in (torch.float16, torch.bfloat16) else None
    if grad.is_sparse:
        grad = grad.coalesce().values()
    return torch.linalg.vector_norm(grad, dtype=wide).double() ** 2


def _of_one_step(norm, own, merged, ranks):
    """The squared norm of an average over the ranks of one step, from that over `merged` steps.

    Of n gradients with mean G and noise T each, the average's is |G|^2 + T / n, and an own one |G|^2 + T.
    """
    return (norm * merged * (ranks - 1) + own * (merged - 1)) / (merged * ranks - 1)


def _long_run(group):
    """The learning rate of SGD with momentum, as a step's gradient feels it in all steps together."""
    momentum = group.get("momentum", 0.0)
    damped = 1.0 - group.get("dampening", 0.0) if momentum else 1.0
    return float(group["lr"]) * damped / max(1.0 - momentum, 1e-6)
