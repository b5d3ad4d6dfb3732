"""Which group of gradients tells the stages of a step."""

from deft.stage_reporters import StageReporters


class Group:
    pass


def of(count):
    reporters, groups = StageReporters(0), [Group() for _ in range(count)]
    for group in groups:
        reporters.add(group)
    return reporters, groups


def test_a_group_that_makes_no_steps_gives_way():
    reporters, (kept, other, trained) = of(3)
    assert reporters.step_begins(kept)
    told = [reporters.step_begins(trained) for _ in range(20)]
    assert not told[0] and told[-1] and told == sorted(told), "it takes over once"
    assert reporters.reports(trained) and not reporters.reports(kept) and not reporters.reports(other)
    assert not reporters.step_begins(kept), "one step takes nothing back"
    reporters.remove(trained)
    assert reporters.reports(kept)


def test_groups_in_turn_keep_the_oldest():
    reporters, (first, second) = of(2)
    for _ in range(20):
        assert reporters.step_begins(first)
        assert not any(reporters.step_begins(second) for _ in range(5))


def test_the_next_reports_when_the_oldest_has_ended():
    reporters, groups = of(2)
    assert not reporters.reports(groups[1])
    del groups[0]
    assert reporters.reports(groups[0])


def test_groups_that_have_ended_leave_nothing():
    reporters, groups = of(50)
    groups.clear()
    last = Group()
    reporters.add(last)
    assert len(reporters._waiting) == 1
