"""step(closure): what the closure gives back, and which parameters its backward may reach."""

import deft.torch as hvd
import pytest
import torch
from small_models import FEATURES, batches, check, loss_of, make, own_share, parameters, wrapped
from torch import nn

STEPS = 4


class Layers(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(FEATURES, 30), nn.Tanh(), nn.Linear(30, 7))


def step_by_closure(model, optimizer, share):
    """The closure gives no loss, which torch's optimizers allow."""
    for batch in batches(STEPS):

        def closure(batch=batch):
            optimizer.zero_grad()
            loss_of(model, *share(*batch)).backward()

        assert optimizer.step(closure) is None
    return parameters(model)


def give_no_loss():
    alone, model = make(Layers), make(Layers)
    sgd = torch.optim.SGD(alone.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-3)
    expected = step_by_closure(alone, sgd, lambda *batch: batch)
    optimizer = wrapped(model)
    step_by_closure(model, optimizer, own_share)
    return check(model, optimizer, expected)


def unfreeze():
    model = make(Layers)
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    before = parameters(model)
    model[0].requires_grad_(True)
    with pytest.raises(RuntimeError, match="did not require one"):
        step_by_closure(model, optimizer, own_share)
    return check(model, optimizer, before)


@pytest.mark.parametrize("policy", ["fifo", "bytescheduler"])
def test_a_closure_may_give_no_loss(start, policy):
    assert all(start(2, policy=policy).run(give_no_loss))


def test_a_parameter_that_is_unfrozen_is_an_error_in_a_closure(start):
    assert all(start(2, policy="fifo").run(unfreeze))
