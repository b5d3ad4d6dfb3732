"""What delayed updates must give: one process that follows the calendar of a run, and the loops that both share."""

import deft.torch as hvd
import torch
from small_models import OPTIMIZERS, batches, loss_of, make, own_share, wrapped


def share_of(rank, size, *tensors):
    return [tensor.chunk(size)[rank] for tensor in tensors]


def data_of(step, passes, dtype):
    return list(batches(passes, dtype, seed=100 + step))


def backward(model, shares, passes):
    for x, y in shares:
        (loss_of(model, x, y) / passes).backward()


class Run:
    """A training with delayed updates: step() for each step, then the calendar that it followed."""

    def __init__(self, optimizer="sgd", dtype=torch.float64, passes=1, schedule=None, **options):
        self.kind, self.dtype, self.passes, self.schedule = optimizer, dtype, passes, schedule
        self.model = make(dtype=dtype)
        self.optimizer = wrapped(self.model, optimizer, backward_passes_per_step=passes, **options)
        self.scheduler = schedule(self.optimizer) if schedule else None
        self.steps = 0

    def step(self, count=1):
        for _ in range(count):
            self.backward()
            self.optimizer.step()
            if self.scheduler is not None:
                self.scheduler.step()

    def backward(self):
        self.optimizer.zero_grad()
        shares = [own_share(x, y) for x, y in data_of(self.steps, self.passes, self.dtype)]
        backward(self.model, shares, self.passes)
        self.steps += 1

    @property
    def group(self):
        return self.optimizer._deft.exchange.arena.group

    def calendar(self):
        return [self.group.generation_of(step) for step in range(self.steps)]

    def state(self, flush=True):
        """Of all parameters, by default with nothing pending."""
        if flush:
            self.optimizer.flush()
        return {name: value.detach().clone() for name, value in self.model.state_dict().items()}

    def expected(self, before_update=lambda _model: None):
        """The same in one process: each generation's average over merged steps and ranks, applied when it was."""
        return follow(self.calendar(), self.kind, self.dtype, self.passes, self.schedule, before_update)


def follow(calendar, kind, dtype, passes, schedule, before_update):
    model = make(dtype=dtype)
    optimizer = OPTIMIZERS[kind](model.parameters())
    scheduler = schedule(optimizer) if schedule else None
    params = list(model.parameters())
    sums = {}  # of each generation that is not applied yet, oldest first
    for step in range(len(calendar) + 1):
        for number in [n for n, (now, _) in sums.items() if now.apply_step <= step]:
            now, total = sums.pop(number)
            for param, value in zip(params, total):
                param.grad = value / now.merged
            before_update(model)
            optimizer.step()
            if scheduler is not None:
                scheduler.step()
        if step == len(calendar):
            break
        now = calendar[step]
        optimizer.zero_grad()
        for rank in range(hvd.size()):
            shares = [share_of(rank, hvd.size(), x, y) for x, y in data_of(step, passes, dtype)]
            backward(model, shares, passes * hvd.size())
        _, total = sums.setdefault(now.number, (now, [torch.zeros_like(param) for param in params]))
        for value, param in zip(total, params):
            value += param.grad
    return model.state_dict()
