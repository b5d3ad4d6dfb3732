"""What a backward hands over and when it ends: nested backwards, and several of them before one step()."""

import pytest
import torch
from small_models import (
    CLASSES,
    FEATURES,
    assert_same_everywhere,
    batches,
    check,
    loss_of,
    make,
    own_share,
    parameters,
    wrapped,
)
from torch import nn
from torch.utils.checkpoint import checkpoint

STEPS = 5
ALL = ["fifo", "bytescheduler", "knapsack 0@1"]


class Adapted(nn.Module):
    """As adapters are trained: all that learns lies in reentrant checkpoints, or is not used."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(FEATURES, 40).requires_grad_(False)
        self.blocks = nn.ModuleList(nn.Linear(40, 40) for _ in range(3))
        self.last = nn.Linear(40, CLASSES).requires_grad_(False)
        self.unused = nn.Parameter(torch.zeros(3))

    def forward(self, x):
        h = self.first(x).requires_grad_()
        for block in self.blocks:
            h = checkpoint(lambda z, block=block: torch.tanh(block(z)), h, use_reentrant=True)
        return self.last(h)


def train_clipped(model, optimizer, share, scaler):
    """Clips by a norm that every gradient exceeds, right after backward()."""
    for x, y in batches(STEPS):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, *share(x, y))).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.blocks.parameters(), 0.01)
        scaler.step(optimizer)
        scaler.update()
    return parameters(model)


def clip_after_nested_backwards(scaled):
    def scaler():
        return torch.amp.GradScaler("cpu", enabled=scaled)

    alone, model = make(Adapted), make(Adapted)
    learning = [p for p in alone.parameters() if p.requires_grad]
    sgd = torch.optim.SGD(learning, lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-3)
    expected = train_clipped(alone, sgd, lambda *batch: batch, scaler())
    optimizer = wrapped(model)
    train_clipped(model, optimizer, own_share, scaler())
    return check(model, optimizer, expected)


@pytest.mark.parametrize("policy", ["fifo", "bytescheduler"])
def test_a_backward_with_nested_ones_alone_ends_with_averages(start, policy):
    cluster = start(2, policy=policy)
    assert all(cluster.run(clip_after_nested_backwards, False) + cluster.run(clip_after_nested_backwards, True))


# ---- several backwards over different parameters, with backward_passes_per_step


class Halves(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(FEATURES, CLASSES), nn.Linear(FEATURES, CLASSES)


def accumulate(model, optimizer, share):
    """Two passes a step, each with a backward for each loss; at first the parameters of `b` are amid their passes."""
    for pair in zip(*[iter(batches(2 * STEPS))] * 2):
        optimizer.zero_grad()
        for x, y in pair:
            for part in (model.a, model.b):
                loss_of(part, *share(x, y)).backward()
        optimizer.step()
    return parameters(model)


def accumulate_losses():
    alone, model = make(Halves), make(Halves)
    sgd = torch.optim.SGD(alone.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-3)
    expected = accumulate(alone, sgd, lambda *batch: batch)
    optimizer = wrapped(model, backward_passes_per_step=2)
    accumulate(model, optimizer, own_share)
    return check(model, optimizer, expected)


@pytest.mark.parametrize("policy", ALL)
def test_losses_over_different_parameters_have_passes_of_their_own(start, policy):
    assert all(start(2, policy=policy).run(accumulate_losses))


def loss_here(part):
    return loss_of(part, *own_share(*next(batches(1))))


def clip_amid_passes():
    """`b` is used in the second pass alone: only step() or a look at the optimizer says that no more passes come."""
    for first_step in (True, False):
        model = make(Halves)
        optimizer = wrapped(model, backward_passes_per_step=2)
        if not first_step:
            accumulate(model, optimizer, own_share)
        for look in (False, True):
            optimizer.zero_grad()
            loss_here(model.a).backward()
            (loss_here(model.a) + loss_here(model.b)).backward()
            if look:
                assert optimizer.param_groups
                assert_same_everywhere({"b": model.b.weight.grad})
            nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
            if look:
                optimizer.step()
            else:
                with pytest.raises(RuntimeError, match=r"was changed between backward.*synchronize"):
                    optimizer.step()
    return check(model, optimizer, {})


def test_clipping_amid_passes_is_an_error(start):
    assert all(start(2, policy="fifo").run(clip_amid_passes))


def begin_passes_after_averages():
    model = make(Halves)
    optimizer = wrapped(model, backward_passes_per_step=2)
    accumulate(model, optimizer, own_share)
    optimizer.zero_grad()
    for part in (model.a, model.a, model.b):
        loss_here(part).backward()
    with pytest.raises(RuntimeError, match=r"^b.* had fewer than backward_passes_per_step=2 .* after"):
        optimizer.step()
    optimizer.zero_grad()
    accumulate(model, optimizer, own_share)
    return check(model, optimizer, {})


def test_too_few_passes_after_the_averages_are_an_error(start):
    assert all(start(2, policy="fifo").run(begin_passes_after_averages))
