"""UpdateSchedule: each gradient is applied exactly once, in order, when its plan says, on a plan of any kind."""

import itertools

import pytest
from deft.session import Generation, runs_of
from deft.update_schedule import Due, UpdateSchedule
from fake_session import FakeGroup, Pattern

PLANS = {
    "fresh": [(1, 0), (1, 0)],
    "one late": [(1, 0), (1, 1), (1, 0)],
    "all late": [(1, 3)],
    "merged": [(2, 0), (2, 0)],
    "merged and late": [(3, 1), (1, 0), (2, 2)],
}


def made(plan, **options):
    group = FakeGroup([Pattern(*each) for each in PLANS[plan]])
    schedule = UpdateSchedule(slots=4, **options)
    schedule.attach(group)
    return schedule, group


def run(schedule, group, steps, flushes=()):
    """[(step after which it is applied, place, generation)], and all dues."""
    applied, dues = [], []
    for step in range(steps):
        schedule.open_step()
        schedule.advance()
        found = schedule.take_due()
        if step in flushes and schedule.pending():
            for due in found:
                applied += [(step, place, due.of(place)) for place in range(len(group)) if due.of(place)]
            schedule.flush()
            found = schedule.take_due()
            assert not schedule.pending()
        for due in found:
            applied += [(step, place, due.of(place)) for place in range(len(group)) if due.of(place)]
        dues += found
    return applied, dues


@pytest.mark.parametrize(("plan", "flushes"), [*itertools.product(PLANS, [(), (4,), (2, 3, 7)])])
def test_every_gradient_is_applied_once_in_order_at_its_date(plan, flushes):
    schedule, group = made(plan)
    applied, _ = run(schedule, group, 12, flushes)
    for place in range(len(group)):
        mine = [(step, generation) for step, at, generation in applied if at == place]
        assert [generation.number for _, generation in mine] == list(range(len(mine)))
        steps = [step for _, g in mine for step in range(g.first_step, g.last_step + 1)]
        assert steps == list(range(len(steps)))  # no step twice, none left out
        for step, generation in mine:
            assert generation.apply_step <= step + 1  # not before its date
            assert generation.apply_step == step + 1 or step in flushes  # and not later
        waiting = [g for g in (group.patterns[place].of_step(step) for step in range(12)) if g.apply_step <= 12]
        assert {g.number for g in waiting} == {g.number for _, g in mine}


def test_one_slot_merges_one_step_delays_none_and_asks_nobody():
    group = FakeGroup([Pattern(), Pattern()])
    schedule = UpdateSchedule(slots=1)
    schedule.attach(group)
    for step in range(5):
        schedule.open_step()
        schedule.advance()
        assert schedule.take_due() == [Due(Generation(step, step, step, step + 1, 0), {}, step, step, 1)]
        assert not schedule.pending()
    assert group.asked == 0


def test_a_due_says_when_all_gradients_have_the_same_generation():
    schedule, group = made("merged")
    _, dues = run(schedule, group, 6)
    assert [due.common.number for due in dues] == [0, 1, 2]
    assert all((due.first_step, due.last_step, due.merged) == (2 * i, 2 * i + 1, 2) for i, due in enumerate(dues))
    schedule, group = made("one late")
    _, dues = run(schedule, group, 3)
    assert [due.common for due in dues] == [None] * 3
    assert dues[0].of(1) is None and dues[1].of(1).number == 0 and dues[1].of(0).number == 1


@pytest.mark.parametrize("splits", [False, True])
def test_updates_that_merge_different_numbers_are_split_if_asked(splits):
    schedule = UpdateSchedule(slots=4, splits_merged=splits)
    schedule.attach(FakeGroup([Pattern(1, 1), Pattern(2, 0), Pattern(2, 0)]))
    _, dues = run(schedule, schedule._group, 2)
    kinds = [sorted(due.of(place).merged for place in range(3) if due.of(place)) for due in dues]
    assert kinds == ([[1], [2, 2]] if splits else [[1, 2, 2]])
    assert [due.merged for due in dues] == ([1, 2] if splits else [2])


def test_what_is_shown_before_the_step_ends_is_not_given_again():
    schedule, _ = made("all late")
    for _ in range(3):
        schedule.advance()
        assert schedule.take_due() == []
    (shown,) = schedule.due_after_this()
    assert shown.common.number == 0
    schedule.applied(shown)
    schedule.advance()
    assert schedule.take_due() == []
    schedule.advance()
    assert [due.common.number for due in schedule.take_due()] == [1]


def test_a_flush_hands_over_the_generations_under_way_by_runs():
    group = FakeGroup([Pattern(3), Pattern(3), Pattern(1), Pattern(2), Pattern(3), Pattern(5)])
    schedule = UpdateSchedule(slots=4)
    schedule.attach(group)
    for _ in range(4):
        schedule.advance()
        schedule.take_due()
    assert schedule.pending()  # step 3 is in generations that end with step 5, or with the step that comes next
    assert sorted(schedule.flush()) == [(0, 2, 1, 1), (4, 1, 1, 1), (5, 1, 0, 0)]
    (due,) = schedule.take_due()
    assert [due.of(place) is not None for place in range(6)] == [True, True, False, False, True, True]
    assert not schedule.pending()


def test_the_oldest_step_that_an_update_may_need():
    schedule, _ = made("all late")
    for _ in range(6):
        schedule.advance()
        due = schedule.take_due()
    assert [one.first_step for one in due] == [2]
    assert schedule.oldest_step(due) == 2  # not applied yet
    assert schedule.oldest_step([]) == 3


def test_nothing_is_pending_before_the_declaration():
    assert not UpdateSchedule(slots=4).pending()


@pytest.mark.parametrize(
    ("places", "runs"),
    [([], []), ([5], [(5, 1)]), ([3, 1, 2, 7], [(1, 3), (7, 1)]), ([4, 2, 0], [(0, 1), (2, 1), (4, 1)])],
)
def test_runs_of_neighbours(places, runs):
    assert runs_of(places) == runs
