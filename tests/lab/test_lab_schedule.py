import math

import pytest
from lab.schedule import SCHEDULES, WARMUP, learning_rate_factor


def test_constant_leaves_the_learning_rate():
    assert {learning_rate_factor("constant", step, 10) for step in range(20)} == {1.0}


def test_cosine_rises_then_falls_and_ends_near_zero():
    steps = 200
    factors = [learning_rate_factor("cosine", step, steps) for step in range(steps)]
    top = factors.index(max(factors))
    assert top == pytest.approx(WARMUP * steps, abs=1)
    assert factors[: top + 1] == sorted(factors[: top + 1])
    assert factors[top:] == sorted(factors[top:], reverse=True)
    assert 0 < factors[0] < 0.2 and 0 < factors[-1] < 1e-3
    assert factors[steps // 2] == pytest.approx(0.5, abs=0.02)
    assert max(factors) < 1 and max(factors) > 0.95


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_run_that_goes_on_stays_as_it_ended(name):
    assert learning_rate_factor(name, 70, 50) == learning_rate_factor(name, 49, 50)
    assert all(math.isfinite(learning_rate_factor(name, step, 1)) for step in range(3))
