"""Horovod's elastic trainings, for jobs whose workers stay the same. Needs no framework.

    state = TorchState(model, optimizer, epoch=0)        # of the framework

    @run                                                 # of the framework, too
    def train(state):
        for state.epoch in range(state.epoch, 10):
            ...
            state.commit()

A daemon that is started again, or a link that is lost, ends a job by an error on all workers. All of them then go back
to their last commit, meet in a new job with the same ranks and options, and call train(state) again.
"""

import copy
import functools
import time
from collections.abc import Callable

from deft import world
from deft._native import ELOST, ETIMEOUT, EUNAVAILABLE, DeftError
from deft.durations import timeout_seconds

_LOST = (ETIMEOUT, ELOST, EUNAVAILABLE)
_MOST_TRIES = 5
_PAUSE_S = 0.1


class State:
    """What a training keeps. save(), restore() and sync() are those of a subclass."""

    def __init__(self, bcast_object: Callable, get_rank: Callable[[], int]):
        self._bcast_object = bcast_object
        self._rank = get_rank
        self._reset_callbacks: list[Callable[[], None]] = []
        self.commits = 0

    def register_reset_callbacks(self, callbacks: list[Callable[[], None]]) -> None:
        """Functions that are called in a new job, before the training goes on."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def commit(self) -> None:
        """Keeps the state as it is now: an error leads back to it. It is no collective."""
        self.save()
        self.commits += 1
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """In Horovod it looks for new workers. Here the workers stay the same."""

    def save(self) -> None:
        """Copies the state."""
        raise NotImplementedError

    def restore(self) -> None:
        """Goes back to the copy."""
        raise NotImplementedError

    def sync(self) -> None:
        """Gives all ranks the state of rank 0."""
        raise NotImplementedError

    def reset(self) -> None:
        """For subclasses: called in a new job."""


class ObjectState(State):
    """Python objects, as attributes of the state. They are copied, so what a script changes in place goes back, too."""

    def __init__(self, bcast_object: Callable, get_rank: Callable[[], int], **objects):
        super().__init__(bcast_object, get_rank)
        self._saved_state = objects
        self._set_attributes()

    def save(self) -> None:
        attributes = {name: getattr(self, name) for name in self._saved_state}
        self._saved_state = copy.deepcopy(attributes)

    def restore(self) -> None:
        self._set_attributes()

    def sync(self) -> None:
        if self._saved_state:
            ObjectState.save(self)  # a script may have set them before its first call
            self._saved_state = self._bcast_object(self._saved_state)
            self._set_attributes()

    def _set_attributes(self) -> None:
        for name, value in copy.deepcopy(self._saved_state).items():
            setattr(self, name, value)


def run_again(function: Callable, cause_of: Callable[[BaseException], DeftError | None]) -> Callable:
    """`function(state, ...)`, which begins again from the last commit when the job is lost.

    `cause_of` gives the DeftError behind an exception of the framework, or None. The error is raised if a job cannot
    begin within twice DEFT_TIMEOUT, or if several jobs in turn end without a commit.
    """

    @functools.wraps(function)
    def wrapper(state, *arguments, **named):
        tries, commits = 0, state.commits
        while True:
            try:
                state.sync()
                return function(state, *arguments, **named)
            except Exception as error:
                cause = cause_of(error)
                if cause is None or cause.kind not in _LOST:
                    raise
                tries = 0 if state.commits > commits else tries + 1
                if tries == _MOST_TRIES:
                    raise
                world.log.warning("the training begins again from its last commit: %s", cause)
            commits = state.commits
            rejoin(state.restore)
            state.on_reset()

    return wrapper


def rejoin(restore: Callable[[], None]) -> None:
    """Leaves the job, calls restore(), and waits for a new job of the same ranks. Process sets end, and must be added
    again.

    What restore() writes would wait for updates of the old job while that lasts."""
    options = world.init_options()
    ends = time.monotonic() + 2 * timeout_seconds()  # others may hear of the end that much later
    world.shutdown()
    restore()
    while True:
        try:
            return world.init(**options)
        except DeftError as error:  # the daemon may not be back yet, or has not seen the end of the old job
            if error.kind not in _LOST or time.monotonic() > ends:
                raise
        time.sleep(_PAUSE_S)
