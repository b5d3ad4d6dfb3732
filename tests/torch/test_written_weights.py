"""Who writes or computes weights and gradients around an update that waits for the next forward."""

import copy

import deft.torch as hvd
import pytest
import torch
from small_models import (
    CLASSES,
    FEATURES,
    OPTIMIZERS,
    Mixed,
    batches,
    check,
    loss_of,
    make,
    overlaps,
    own_share,
    parameters,
    wrapped,
)
from torch import nn
from torch.nn.utils import prune, spectral_norm, weight_norm
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

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


# ---- weights that are loaded between step() and the next forward


def load_between_steps():
    both = pair(Mixed)
    saved = [copy.deepcopy(model.state_dict()) for model, _ in both]
    for count, (x, y) in enumerate(batches(STEPS + 3)):
        for (model, optimizer), best in zip(both, saved):
            step(model, optimizer, x, y)  # the same batch on all ranks: the same bits
            if count == STEPS:
                model.load_state_dict(best)
            elif count == STEPS + 1:
                model.narrow.load_state_dict({"weight": best["narrow.weight"], "bias": best["narrow.bias"]})
    (alone, _), (model, optimizer) = both
    assert overlaps(optimizer)
    optimizer.flush()
    return all(torch.equal(value, model.state_dict()[name]) for name, value in alone.state_dict().items())


@pytest.mark.parametrize("policy", ["bytescheduler", "knapsack 0@1"])
def test_no_update_comes_on_top_of_weights_that_were_loaded(start, policy):
    assert all(start(2, policy=policy).run(load_between_steps))


def clip(model):
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.3)


def mask(model):
    for param in model.parameters():
        param.grad = param.grad * 0.5


def change_while_overlapping():
    for change, look in (
        (clip, lambda _: None),
        (mask, lambda _: None),
        (mask, lambda optimizer: optimizer.param_groups),
        (mask, lambda optimizer: optimizer.synchronize()),
    ):
        model = make()
        optimizer = wrapped(model)
        for count, (x, y) in enumerate(batches(STEPS)):
            optimizer.zero_grad()
            loss_of(model, *own_share(x, y)).backward()
            if count == 4:
                assert overlaps(optimizer)
                change(model)
                with pytest.raises(RuntimeError, match=r"changed between backward\(\) and step\(\)"):
                    look(optimizer)
                    optimizer.step()
                break
            optimizer.step()
        optimizer.zero_grad()
    return True


def test_a_late_change_of_gradients_is_an_error_where_forward_overlaps(start):
    assert all(start(2, policy="bytescheduler").run(change_while_overlapping))


# ---- averages of weights


def average_weights():
    """update_parameters() right after step() sees its update, though that waits for the next forward."""
    averages = []
    for (model, optimizer), share in zip(pair(Mixed), (lambda *batch: batch, own_share), strict=True):
        average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5))
        for batch in batches(STEPS):
            step(model, optimizer, *share(*batch))
            average.update_parameters(model)
        averages.append(average.module)
    assert overlaps(optimizer)
    return check(averages[1], optimizer, parameters(averages[0]))


@pytest.mark.parametrize("policy", ["bytescheduler", "knapsack 0@1"])
def test_averages_of_weights_have_the_updates_that_wait(start, policy):
    assert all(start(2, policy=policy).run(average_weights))
