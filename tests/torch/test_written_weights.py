"""Who writes or computes weights around an update that waits for the next forward, compared with the plain loop."""

import deft.torch as hvd
from small_models import (
    CLASSES,
    FEATURES,
    OPTIMIZERS,
    batches,
    check,
    loss_of,
    make,
    overlaps,
    own_share,
    parameters,
)
from torch import nn
from torch.nn.utils import prune, spectral_norm, weight_norm

STEPS = 6


def pair(build):
    """(model, optimizer) of the plain loop and of Deft's."""
    found = []
    for wrap in (lambda _model, optimizer: optimizer, lambda m, o: hvd.DistributedOptimizer(o, m.named_parameters())):
        model = make(build)
        found.append((model, wrap(model, OPTIMIZERS["sgd"](model.parameters()))))
    return found


def step(model, optimizer, x, y):
    optimizer.zero_grad()
    loss_of(model, x, y).backward()
    optimizer.step()


# ---- modules whose own hooks compute a weight before each forward


def reparametrized():
    """Each kind comes first in forward, or fills a batch of updates of its own."""
    return nn.Sequential(
        weight_norm(nn.Linear(FEATURES, 900)),
        nn.Tanh(),
        spectral_norm(nn.Linear(900, 40)),
        nn.Tanh(),
        prune.l1_unstructured(nn.Linear(40, 500), "weight", 0.5),
        nn.Tanh(),
        nn.Linear(500, CLASSES),
    )


def train_reparametrized():
    (alone, alone_optimizer), (model, optimizer) = pair(reparametrized)
    for x, y in batches(STEPS):
        step(alone, alone_optimizer, x, y)
        step(model, optimizer, *own_share(x, y))
    assert overlaps(optimizer)
    return check(model, optimizer, parameters(alone))


def test_hooks_that_compute_weights_see_the_update(start):
    assert all(start(2, policy="bytescheduler").run(train_reparametrized))
