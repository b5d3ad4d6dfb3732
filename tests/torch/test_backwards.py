"""What a backward hands over and when it ends: nested backwards, and several of them before one step()."""

import pytest
import torch
from small_models import CLASSES, FEATURES, batches, check, loss_of, make, own_share, parameters, wrapped
from torch import nn
from torch.utils.checkpoint import checkpoint

STEPS = 5


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
