"""Which steps are sampled for the Preserver, and that noise is taken out of merged averages."""

import random

import pytest
from deft.statistics_sampler import EARLY, StatisticsSampler, norm_of_one_step


def sampled_steps(steps, delay, reported=lambda _step: True):
    """The steps that are begun if averages come back after `delay` steps, and those whose sample finishes."""
    sampler, begun, finished, waiting = StatisticsSampler(), [], [], None
    for step in range(steps):
        if waiting is not None and step >= waiting + delay:
            sampler.came(0, 2.0, 1, 2)
            waiting = None
        if reported(step):
            sampler.report(1.0, 0.0, step)
        sample = sampler.finished()
        if sample is not None:
            finished.append(sample.step)
        if sampler.begins(step):
            sampler.begin(step, {0: 2.0}, {0: step})
            begun.append(step)
            waiting = step
    return begun, finished


def test_samples_are_dense_at_first_and_rare_later():
    begun, finished = sampled_steps(200, delay=1)
    assert begun == [*range(9), *range(9, EARLY + 1, 4), *range(EARLY + 1, 200, 8)]
    assert finished == begun


def test_a_step_is_left_out_while_a_sample_is_under_way():
    begun, finished = sampled_steps(60, delay=6)
    assert begun == [0, 1, 7, 13, 17, 25, 33, 41, 49, 57]  # 1 and 17 give up what is under way
    assert finished == [1, 7, 17, 25, 33, 41, 49]


def test_a_sample_that_never_comes_back_is_given_up():
    begun, finished = sampled_steps(60, delay=1000)
    assert begun == [0, 1, 17, 33, 49] and finished == []


def test_a_loss_is_forgotten_after_64_steps():
    begun, _ = sampled_steps(200, delay=1, reported=lambda step: step == 10)
    assert begun == list(range(13, 75, 4))


def test_no_loss_no_sample():
    assert sampled_steps(50, delay=1, reported=lambda _step: False) == ([], [])


def test_only_the_awaited_generation_of_a_gradient_counts_and_only_once():
    sampler = StatisticsSampler()
    sampler.report(3.0, 0.5, 0)
    sampler.begin(0, {0: 1.0, 1: 4.0}, {0: 7, 1: 8})
    assert not sampler.wants(0, 6) and sampler.wants(0, 7) and sampler.wants(1, 8)
    sampler.came(0, 0.5, 1, 2)
    assert not sampler.wants(0, 7) and sampler.finished() is None
    sampler.came(1, 2.0, 1, 2)
    sample = sampler.finished()
    assert (sample.step, sample.target, sample.numbers()) == (0, 0.5, (5.0, 2.5, 3.0))
    assert sampler.finished() is None


@pytest.mark.parametrize("target", [float("nan"), float("inf"), -1.0])
def test_a_target_that_no_loss_can_have_is_refused(target):
    with pytest.raises(ValueError, match="lowest loss that can be reached"):
        StatisticsSampler().report(1.0, target, 0)


@pytest.mark.parametrize(("merged", "ranks"), [(1, 2), (3, 2), (2, 4), (5, 8)])
def test_the_norm_of_one_step_is_estimated_without_bias(merged, ranks):
    """Gradients with mean 1 and noise of variance 4 in 400 dimensions: |G|^2 + T / ranks is 400 + 1600 / ranks."""
    chance, size, estimates = random.Random(1), 400, []
    for _ in range(30):
        grads = [[chance.gauss(1, 2) for _ in range(size)] for _ in range(merged * ranks)]
        mean = [sum(column) / len(grads) for column in zip(*grads)]
        own = sum(x * x for x in grads[0])
        estimates.append(norm_of_one_step(sum(x * x for x in mean), own, merged, ranks))
    assert sum(estimates) / len(estimates) == pytest.approx(size + 4 * size / ranks, rel=0.06)
