"""Parameters that are frozen and unfrozen between step() and the update, as in the training of a GAN."""

import deft
import deft.torch as hvd
import pytest
import torch
from delayed_reference import Run, delayed
from small_models import (
    FEATURES,
    OPTIMIZERS,
    assert_same_everywhere,
    batches,
    check,
    digest,
    loss_of,
    make,
    overlaps,
    own_share,
    parameters,
    wrapped,
)
from torch import nn
from torch.nn import functional

STEPS = 8
ALL = ["fifo", "bytescheduler", "knapsack 0@1"]


class Pair(nn.Module):
    """A generator and a discriminator."""

    def __init__(self):
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(3, 40), nn.Tanh(), nn.Linear(40, FEATURES))
        self.discriminator = nn.Sequential(nn.Linear(FEATURES, 900), nn.Tanh(), nn.Linear(900, 1))


def train_gan(wrap):
    """The loop of pix2pix and CycleGAN. All ranks have the same batches, so averages have one rank's bits."""
    nets = make(Pair)
    optimizers = [wrap(OPTIMIZERS["adamw"](net.parameters()), net) for net in (nets.generator, nets.discriminator)]
    of_generator, of_discriminator = optimizers
    data = torch.Generator().manual_seed(3)
    for _ in range(STEPS):
        real, noise = torch.randn(4, FEATURES, generator=data), torch.randn(4, 3, generator=data)
        nets.discriminator.requires_grad_(True)
        of_discriminator.zero_grad()
        fake = nets.generator(noise).detach()
        judged = torch.cat([nets.discriminator(fake), -nets.discriminator(real)])
        functional.softplus(judged).mean().backward()
        of_discriminator.step()
        nets.discriminator.requires_grad_(False)
        of_generator.zero_grad()
        functional.softplus(-nets.discriminator(nets.generator(noise))).mean().backward()
        of_generator.step()
    return nets, optimizers


def compare_gans():
    nets, optimizers = train_gan(lambda optimizer, net: hvd.DistributedOptimizer(optimizer, net.named_parameters()))
    assert all(overlaps(optimizer) == deft.policy_traits().overlaps_forward for optimizer in optimizers)
    for optimizer in optimizers:
        optimizer.flush()  # the discriminator is frozen
    alone, _ = train_gan(lambda optimizer, _net: optimizer)
    assert {state["step"].item() for o in optimizers for state in o.state.values()} == {STEPS}
    return digest(nets.state_dict()) == digest(alone.state_dict())


@pytest.mark.parametrize("policy", ALL)
def test_freezing_after_a_step_loses_no_update(start, policy):
    assert all(start(2, policy=policy).run(compare_gans))


def frozen_while_updates_wait(freeze, overlap):
    """Every update is made, whether or not parameters are frozen between the steps that made its gradients."""
    run = Run("adamw", overlap_forward=overlap)
    for _ in range(9):
        run.step()
        run.model.requires_grad_(not freeze)
        run.optimizer.state_dict()
        run.model.requires_grad_(True)
    run.model.requires_grad_(not freeze)
    return digest(run.state())


@pytest.mark.parametrize("overlap", ["off", "on"])
def test_delayed_updates_are_made_to_parameters_that_are_frozen_since(start, overlap):
    jobs = [delayed(start, 2, frozen_while_updates_wait, freeze, overlap, plan="0-1@4") for freeze in (False, True)]
    assert len({*jobs[0], *jobs[1]}) == 1


def frozen_for_some_steps(overlap):
    """A parameter without a gradient in any step of an update stays where it is, though all others move it by decay."""
    run = Run("sgd", overlap_forward=overlap)
    run.step(4)
    run.optimizer.flush()
    frozen = run.model.norm.weight
    frozen.requires_grad_(False)
    before, moving = frozen.clone(), run.model.norm.bias.detach().clone()
    run.step(5)
    frozen.requires_grad_(True)
    run.optimizer.flush()
    assert torch.equal(frozen, before)
    assert not torch.equal(run.model.norm.bias, moving)
    run.step(3)
    run.optimizer.flush()
    assert not torch.equal(frozen, before)
    assert_same_everywhere(run.state())
    return True


@pytest.mark.parametrize("plan", ["0@1", "0-1@4"])
@pytest.mark.parametrize("overlap", ["off", "on"])
def test_delayed_updates_leave_parameters_that_were_frozen_alone(start, plan, overlap):
    assert all(delayed(start, 2, frozen_for_some_steps, overlap, plan=plan))


def train_thawing(model, optimizer, share):
    """A layer is frozen from the wrapping to step 4, and the number of passes is set while it is."""
    for number, batch in enumerate(batches(STEPS)):
        model.wide.requires_grad_(number >= 4)
        if number == 2 and hasattr(optimizer, "set_backward_passes_per_step"):
            optimizer.set_backward_passes_per_step(1)
        optimizer.zero_grad()
        loss_of(model, *share(*batch)).backward()
        optimizer.step()


def frozen_before_the_first_backward():
    alone, model = make(), make()
    train_thawing(alone, OPTIMIZERS["sgd"](alone.parameters()), lambda *batch: batch)
    optimizer = wrapped(model)
    train_thawing(model, optimizer, own_share)
    assert not torch.equal(model.wide.weight, make().wide.weight)
    return check(model, optimizer, parameters(alone))


@pytest.mark.parametrize("policy", ALL)
def test_a_layer_may_be_frozen_between_the_wrapping_and_the_first_backward(start, policy):
    assert all(start(2, policy=policy).run(frozen_before_the_first_backward))


def frozen_when_the_session_ends():
    model = make()
    hvd.average_gradients(model)
    loss_of(model, *own_share(*next(batches(1)))).backward()
    model.wide.requires_grad_(False)
    hvd.shutdown()
    return not model.wide.weight.requires_grad


def test_a_session_may_end_while_a_layer_is_frozen(start):
    assert all(start(2, policy="fifo").run(frozen_when_the_session_ends))
