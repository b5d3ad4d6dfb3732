"""A model of delayed updates: one process that follows the update schedule of a run, and the loops that both share."""

import deft.torch as hvd
import torch
from small_models import OPTIMIZERS, batches, loss_of, make, own_share, wrapped
from torch.optim import lr_scheduler


def delayed(start, nodes, function, *arguments, workers=2, **options):
    """Runs a job whose updates may be delayed."""
    return start(nodes, policy="knapsack", max_staleness_steps=16).run(function, *arguments, workers=workers, **options)


def share_of(rank, size, *tensors):
    return [tensor.chunk(size)[rank] for tensor in tensors]


def data_of(step, passes, dtype):
    return list(batches(passes, dtype, seed=100 + step))


def backward(model, shares, passes):
    for x, y in shares:
        (loss_of(model, x, y) / passes).backward()


class Run:
    """A training with delayed updates: step() for each step, then the schedule that it followed."""

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
        return self.optimizer._deft.buffer.arena.group

    def calendar(self):
        """The generation of each step, if all gradients have the same."""
        found = [set(dates.values()) for dates in self.calendars()]
        assert all(len(dates) == 1 for dates in found)
        return [dates.pop() for dates in found]

    def calendars(self):
        """The generations of each step, by the parameter's name."""
        names = [gradient.name for gradient in self.optimizer._deft.buffer.gradients]
        steps = range(self.steps)
        return [dict(zip(names, self.group.generations_of(step), strict=True)) for step in steps]

    def state(self, flush=True):
        """Of all parameters, by default with nothing pending."""
        if flush:
            self.optimizer.flush()
        return {name: value.detach().clone() for name, value in self.model.state_dict().items()}

    def expected(self, before_update=lambda _model: None, scaled=False):
        """The same in one process: each generation's average over merged steps and ranks, applied when it was.

        `scaled`: k merged steps are applied with k times the learning rate.
        """
        return follow(self.calendars(), self.kind, self.dtype, self.passes, self.schedule, before_update, scaled)


def follow(calendars, kind, dtype, passes, schedule, before_update, scaled=False):
    model = make(dtype=dtype)
    optimizer = OPTIMIZERS[kind](model.parameters())
    scheduler = schedule(optimizer) if schedule else None
    params = dict(model.named_parameters())
    waiting = {name: {} for name in params}  # of each parameter, its generations that are not applied yet, oldest first
    for step in range(len(calendars) + 1):
        while due := take_due(waiting, step):
            for merged, averages in by_merging(due, scaled):
                for name, param in params.items():
                    param.grad = averages.get(name)
                before_update(model)
                step_with_rate(optimizer, merged if scaled else 1)
                if scheduler is not None:
                    scheduler.step()
        if step == len(calendars):
            break
        optimizer.zero_grad()
        for rank in range(hvd.size()):
            shares = [share_of(rank, hvd.size(), x, y) for x, y in data_of(step, passes, dtype)]
            backward(model, shares, passes * hvd.size())
        for name, param in params.items():
            now = calendars[step][name]
            _, total = waiting[name].setdefault(now.number, (now, torch.zeros_like(param)))
            total += param.grad
    return model.state_dict()


def take_due(waiting, step):
    """The oldest average of each parameter that is applied before `step`, and how many steps it merges."""
    due = {}
    for name, generations in waiting.items():
        number = next(iter(generations), None)
        if number is not None and generations[number][0].apply_step <= step:
            now, total = generations.pop(number)
            due[name] = (now.merged, total / now.merged)
    return due


def by_merging(due, split):
    """The averages in one update, or in one for each number of merged steps."""
    kinds = sorted({merged for merged, _ in due.values()})
    chosen = [[merged] for merged in kinds] if split else [kinds]
    for some in chosen:
        yield some[0], {name: average for name, (merged, average) in due.items() if merged in some}


def step_with_rate(optimizer, factor):
    rates = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] *= factor
    optimizer.step()
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate


# ---- learning rates


def jump(update):
    return 0.01 if update in (2, 3) else 10.0 if update == 5 else 1.0


SCHEDULES = {
    "step": lambda optimizer: lr_scheduler.StepLR(optimizer, 2, 0.5),
    "cosine": lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, 7),
    "jump": lambda optimizer: lr_scheduler.LambdaLR(optimizer, jump),
    "sequential": lambda optimizer: lr_scheduler.SequentialLR(
        optimizer,
        [lr_scheduler.LinearLR(optimizer, 0.1, total_iters=3), lr_scheduler.ExponentialLR(optimizer, 0.8)],
        milestones=[3],
    ),
}
