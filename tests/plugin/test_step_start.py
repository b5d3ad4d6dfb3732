"""What a rank of the leader's node hands in of a step waits until all ranks have begun that step."""

import pytest
from deft._native import DeftError
from deft.step_start import StepStart


class Barrier:
    """Of a job whose other ranks come when end() is called."""

    def __init__(self, name, announced):
        self.name, self.announced, self.error = name, announced, None
        self.finished = False

    def when_done(self, callback):
        self._callback = callback

    def end(self, error=None):
        self.error = error
        self._callback(error)

    def finish(self):
        self.finished = True
        if self.error is not None:
            raise self.error


class Session:
    def __init__(self, node):
        self.node = node
        self.barriers = []

    def node_of(self, rank):
        assert rank == 0
        return 0

    def start_barrier(self, name, announced):
        self.barriers.append(Barrier(name, announced))
        return self.barriers[-1]


def start_on(node, hand_over=None):
    session, handed = Session(node), []
    return session, handed, StepStart(session, "a", hand_over or (lambda *arguments: handed.append(arguments)))


def test_what_is_handed_in_waits_for_the_other_ranks():
    session, handed, start = start_on(0)
    start.begin(0)
    start.ready(1, 1, 0, 0)
    start.ready(0, 1, 0, 0)
    assert handed == []
    session.barriers[0].end()
    assert handed == [(1, 1, 0, 0), (0, 1, 0, 0)]
    start.ready(2, 1, 0, 0)
    assert handed[-1] == (2, 1, 0, 0)
    assert session.barriers[0].finished


def test_a_step_begins_once_and_ranks_that_have_joined_are_not_told():
    session, _, start = start_on(0)
    for step in (0, 0, 1, 1):
        start.begin(step)
    assert [(barrier.name, barrier.announced) for barrier in session.barriers] == [
        ("a.begins.0", False),
        ("a.begins.1", False),
    ]


def test_on_other_nodes_nothing_waits():
    session, handed, start = start_on(1)
    start.begin(0)
    start.ready(1, 1, 0, 0)
    assert handed == [(1, 1, 0, 0)]
    session.barriers[0].end()
    assert session.barriers[0].finished and len(handed) == 1


def test_steps_keep_their_order_if_a_rank_runs_ahead():
    """With delayed updates it does."""
    session, handed, start = start_on(0)
    for step in range(3):
        start.begin(step)
        start.ready(0, 1, step, 0)
    first, second, third = session.barriers
    second.end()
    assert handed == []
    first.end()
    assert [step for _, _, step, _ in handed] == [0, 1]
    third.end()
    assert [step for _, _, step, _ in handed] == [0, 1, 2]


def test_a_lost_job_and_a_closed_arena_end_quietly():
    def lost(*_arguments):
        raise DeftError(4, "the job failed")

    session, _, start = start_on(0, lost)
    start.begin(0)
    start.ready(0, 1, 0, 0)
    session.barriers[0].end(DeftError(4, "the job failed"))
    with pytest.raises(DeftError, match="the job failed"):  # whoever hands in next hears of it
        start.ready(1, 1, 0, 0)

    session, handed, start = start_on(0)
    start.begin(0)
    start.ready(0, 1, 0, 0)
    start.close()
    session.barriers[0].end()
    assert handed == []
