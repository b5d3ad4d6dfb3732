"""GradientGroup: factors, and what it says of a round that an error has ended. No daemon is there."""

import ctypes
import types

import numpy as np
import pytest
from deft.gradient_group import GradientGroup, GradientSpec
from deft.reduce_op import Scaling

FACTOR = 1 / 3  # no float16


class Memory:
    """A declared group that sums nothing."""

    def __init__(self, tensors):
        self._bytes = [2 * int(np.prod(tensor.shape)) for tensor in tensors]
        self._memory = (ctypes.c_char * sum(self._bytes))()
        self.ready_places, self.calls, self.residuals_sent = [], 0, []

    def arena_bytes(self):
        return len(self._memory)

    def data(self, place):
        return ctypes.addressof(self._memory) + sum(self._bytes[:place])

    def keep_mapped(self, _memory):
        pass

    def handle(self):
        pass

    def ready(self, place, count, _step):
        self.calls += 1
        self.ready_places.extend(range(place, place + count))

    def wait(self, place, count, _step):
        assert count == 1
        self.ready_places.remove(place)

    def send_residuals(self, step):
        self.residuals_sent.append((step, len(self.ready_places)))


class AloneSet:
    """A process set of this rank, and its session."""

    rank = 0
    joining = types.SimpleNamespace(round_begins=lambda _name, _step: None)
    reporters = types.SimpleNamespace(add=lambda _who: None, reports=lambda _who: False, step_begins=lambda _who: False)

    def session(self):
        return self

    def declare(self, _name, tensors):
        return Memory(tensors)


def halves_group(scaling=Scaling(), count=1):  # noqa: B008
    half = np.dtype(np.float16)
    return GradientGroup(
        "halves", [GradientSpec(f"g{i}", half, (2000,), half) for i in range(count)], scaling, AloneSet()
    )


@pytest.mark.parametrize("scaling", [Scaling(before=FACTOR), Scaling(after=FACTOR)])
def test_factors_of_halves_are_not_rounded_to_halves(scaling):
    gradient = np.linspace(0.1, 60.0, 2000).astype(np.float16)
    exact = (gradient.astype(np.float32) * np.float32(FACTOR)).astype(np.float16)
    assert (exact != gradient * np.float16(FACTOR)).any()
    group = halves_group(scaling)
    group.hand_over([0], [gradient])
    (average,) = group.collect()
    assert average.dtype == np.float16
    np.testing.assert_array_equal(average, exact)


def test_a_round_that_an_error_has_ended_is_told(caplog):
    group, ones = halves_group(count=2), np.ones(2000, np.float16)
    group.finish_round()
    assert not caplog.records
    group.hand_over([1], [ones])
    group.finish_round()
    assert "rank 0 did not apply the averages of step 0 of halves" in caplog.text
    caplog.clear()
    for index in (1, 0):
        group.hand_over([index], [ones])
    group.collect()
    group.finish_round()
    assert group.rounds() == 2 and not caplog.records


def test_a_rank_that_joins_waits_for_its_own_round_last():
    group, ones = halves_group(count=2), np.ones(2000, np.float16)
    group.hand_over([1], [ones])
    group.join_begins()
    group.give_zeros(0)
    assert group.rounds() == 0, "nothing is handed over twice, and nobody has waited"
    group.give_zeros(1)
    assert group.rounds() == 1, "others have done round 0 if they begin round 1"
    group.join_ends()
    group.join_ends()
    assert group.rounds() == 2


def test_neighbours_are_handed_over_in_one_call():
    group = halves_group(count=3)
    values = [np.full(2000, value, np.float16) for value in (1.0, 2.0, 3.0)]
    for runs in ([[2, 1, 0]], [[2], [1, 0]], [[1, 0], [2]]):
        before = group._group.calls
        for run in runs:
            group.hand_over(run, [values[index] for index in run])
        assert group._group.calls - before == len(runs)
        for average, value in zip(group.collect(), values, strict=True):
            np.testing.assert_array_equal(average, value)


def test_the_next_round_brings_residuals():
    group, ones, asked = halves_group(), np.ones(2000, np.float16), []
    group._session.joining = types.SimpleNamespace(
        round_begins=lambda _name, _step: None, residuals_asked=lambda name, step: asked.append((name, step))
    )
    group.send_residuals()
    group.hand_over([0], [ones])
    group.collect()
    group.send_residuals()
    assert [step for step, _ in group._group.residuals_sent] == [0, 1]
    assert asked == [("halves", 0), ("halves", 1)], "rank 0 asks as well, if it has joined"
    group.give_zeros(1)
    group.send_residuals(2)
    assert group._group.residuals_sent[-1] == (2, 0), "the round before is done then"
