"""Learning rates of delayed and merged updates: what schedulers count, and k times the rate for k merged steps."""

import warnings

import deft.torch as hvd
import pytest
import torch
from delayed_reference import SCHEDULES, Run, delayed
from small_models import DOUBLE, assert_close, assert_same_everywhere


def made_before(schedule):
    run = Run()
    plain = torch.optim.SGD(run.model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-3)
    run.scheduler = schedule(plain)
    run.optimizer = hvd.DistributedOptimizer(plain, run.model.named_parameters())
    run.schedule = schedule
    return run


def schedule_updates(name, wrapped_before):
    run = Run(schedule=SCHEDULES[name]) if wrapped_before else made_before(SCHEDULES[name])
    rates = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(14):
            run.step()
            rates.append(run.optimizer.param_groups[0]["lr"])
    calendar = run.calendar()
    applied = [sum(g.apply_step <= step + 1 for g in set(calendar)) for step in range(14)]
    expected = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    scheduler = SCHEDULES[name](expected)
    wanted = [0.1 * 0.1 if name == "sequential" else 0.1]
    for _ in range(applied[-1]):
        expected.step()
        scheduler.step()
        wanted.append(expected.param_groups[0]["lr"])
    assert rates == [wanted[count] for count in applied]
    state = run.state(flush=False)
    assert_same_everywhere(state)
    if hvd.rank() == 0:
        assert_close(state, run.expected(), **DOUBLE)
    return True


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("wrapped_before", [True, False])
def test_schedulers_count_applied_updates(start, name, wrapped_before):
    assert all(delayed(start, 2, schedule_updates, name, wrapped_before, plan="0-1@4", overlap_forward="on"))


def recorded_rates(run):
    """Notes the learning rate of each update that the optimizer makes."""
    rates = []

    class Recording(torch.optim.SGD):
        def step(self, closure=None):
            rates.append(self.param_groups[0]["lr"])
            return super().step(closure)

    plain = Recording(run.model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-3)
    return plain, rates


def linear_scaling(argument, overlap, scaled):
    """The rate of each update, and the weights that follow from it."""
    run = Run("sgd")
    plain, rates = recorded_rates(run)
    run.optimizer = hvd.DistributedOptimizer(
        plain, run.model.named_parameters(), scale_merged_lr=argument, overlap_forward=overlap
    )
    run.step(9)
    state = run.state()
    assert_same_everywhere(state)
    if hvd.rank() == 0:
        assert_close(state, run.expected(scaled=scaled), **DOUBLE)
    merged = [len(dates) for dates in steps_of_updates(run)]
    assert {group["lr"] for group in run.optimizer.param_groups} == {0.1}  # as the user set it
    return merged, rates


def steps_of_updates(run):
    """The steps that each update merges, if all gradients have the same generations."""
    numbers = {}
    for step, generation in enumerate(run.calendar()):
        numbers.setdefault(generation.number, []).append(step)
    return list(numbers.values())


@pytest.mark.parametrize(
    ("argument", "options", "scaled"),
    [
        (True, {}, True),
        (None, {"scale_merged_lr": "on"}, True),
        (True, {"scale_merged_lr": "off"}, True),
        (False, {"scale_merged_lr": "on"}, False),
        (None, {}, False),
    ],
)
def test_an_update_of_k_merged_steps_takes_k_times_the_learning_rate_if_asked(start, argument, options, scaled):
    for merged, rates in delayed(start, 1, linear_scaling, argument, False, scaled, plan="0-1@3", **options):
        assert merged == [1, 2, 2, 2, 2]
        assert rates == [0.1 * (k if scaled else 1) for k in merged]


def test_the_same_rates_with_forward_overlap(start):
    for merged, rates in delayed(start, 2, linear_scaling, True, True, True, plan="0-1@3"):
        assert merged == [1, 2, 2, 2, 2]
        assert set(rates) == {0.1, 0.2}  # a call of step() for each batch of layers
        assert rates == sorted(rates)


def several_kinds_of_merging():
    """Each bucket its own plan: what merges different numbers of steps is applied in calls of its own."""
    run = Run("sgd", scale_merged_lr=True)
    run.step(10)
    state = run.state()
    assert_same_everywhere(state)
    if hvd.rank() == 0:
        assert_close(state, run.expected(scaled=True), **DOUBLE)
    return sorted({generation.merged for dates in run.calendars() for generation in dates.values()})


def test_each_gradient_has_the_rate_of_its_own_merging(start):
    options = {"plan": "0@2;0:0@1;1,2:0-1@3;4:0-2@4", "partition_bytes": 4096}
    for kinds in delayed(start, 1, several_kinds_of_merging, **options):
        assert kinds == [1, 2, 3]
