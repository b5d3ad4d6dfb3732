"""deft.elastic: which errors lead back to the last commit, and how often; how a new job is met. No daemon is there."""

import pytest
from deft import elastic
from deft._native import DeftError

LOST, MISMATCH = 4, 2


class Book:
    """A state that notes what is done with it."""

    def __init__(self):
        self.log, self.commits = [], 0

    def __getattr__(self, name):
        if name not in ("sync", "restore", "on_reset"):
            raise AttributeError(name)
        return lambda: self.log.append(name)


@pytest.fixture
def rejoined(monkeypatch):
    jobs = []
    monkeypatch.setattr(elastic, "rejoin", lambda restore: (jobs.append(1), restore()))
    return jobs


def own_error(error):
    return error if isinstance(error, DeftError) else None


def test_a_lost_job_is_begun_again_from_the_last_commit(rejoined):
    book, given = Book(), []

    def train(state, *arguments, **named):
        given.append((arguments, named))
        if len(given) < 3:
            raise DeftError(LOST, "rank 1 is lost")
        return "done"

    assert elastic.run_again(train, own_error)(book, 1, two=2) == "done"
    assert given == [((1,), {"two": 2})] * 3 and len(rejoined) == 2
    assert book.log == ["sync", "restore", "on_reset", "sync", "restore", "on_reset", "sync"]


@pytest.mark.parametrize("error", [ValueError("of the script"), DeftError(MISMATCH, "shapes differ")])
def test_other_errors_are_raised(rejoined, error):
    book = Book()

    def train(state):
        raise error

    with pytest.raises(type(error)) as raised:
        elastic.run_again(train, own_error)(book)
    assert raised.value is error and rejoined == [] and book.log == ["sync"]


@pytest.mark.parametrize(
    ("committing", "jobs"),
    [((), 5), ((1,), 6), ((1, 4), 9), (range(1, 13), 12)],
)
def test_jobs_that_bring_nothing_come_to_an_end(rejoined, committing, jobs):
    """`committing`: the jobs in which there is a commit. After five in turn without one the error is raised."""
    book, begun = Book(), []

    def train(state):
        begun.append(1)
        state.commits += len(begun) in committing
        if len(begun) == 12:
            return
        raise DeftError(LOST, "the link is lost")

    if jobs == 12:
        elastic.run_again(train, own_error)(book)
    else:
        with pytest.raises(DeftError, match="the link is lost"):
            elastic.run_again(train, own_error)(book)
    assert len(begun) == jobs


def object_state(received=None, **objects):
    """A state of rank 0, or of a rank that receives `received`."""
    return elastic.ObjectState(lambda own: own if received is None else received, lambda: 0, **objects)


def test_the_first_call_begins_with_what_the_script_has_set():
    state = object_state(epoch=0)
    state.epoch = 7
    state.sync()
    assert state.epoch == 7
    state.epoch = 8
    state.restore()
    assert state.epoch == 7
    other = object_state(received={"epoch": 7}, epoch=0)
    other.epoch = 3
    other.sync()
    assert other.epoch == 7


def test_what_was_changed_in_place_goes_back_to_the_last_commit():
    state = object_state(losses=[], seen={})
    state.sync()
    state.losses.append(1)
    state.seen["a"] = [1]
    state.commit()
    for _ in range(2):
        state.losses.append(2)
        state.seen["a"].append(2)
        state.restore()
        assert (state.losses, state.seen) == ([1], {"a": [1]})
    state.sync()
    state.losses.append(2)
    state.restore()
    assert state.losses == [1]


class World:
    """deft.world, whose init() fails as `errors` say, one after the other."""

    def __init__(self, *errors):
        self.errors, self.log = list(errors), []

    def init_options(self):
        return {"job": "a"}

    def shutdown(self):
        self.log.append("shutdown")

    def init(self, **options):
        self.log.append(options)
        if self.errors:
            raise self.errors.pop(0)


@pytest.mark.parametrize(
    ("errors", "timeout_s", "tries"),
    [
        ([DeftError(LOST, "no daemon")] * 2, 1000, 3),
        ([DeftError(LOST, "no daemon")] * 2, -1, 1),
        ([DeftError(MISMATCH, "other options")], 1000, 1),
    ],
)
def test_a_new_job_is_met_as_soon_as_it_is_there(monkeypatch, errors, timeout_s, tries):
    world = World(*errors)
    monkeypatch.setattr(elastic, "world", world)
    monkeypatch.setattr(elastic, "timeout_seconds", lambda: timeout_s)

    def restore():
        world.log.append("restore")

    if tries > len(errors):
        elastic.rejoin(restore)
    else:
        with pytest.raises(DeftError, match=str(errors[0])):
            elastic.rejoin(restore)
    assert world.log == ["shutdown", "restore", *[{"job": "a"}] * tries]
