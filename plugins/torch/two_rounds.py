"""A collective in two rounds: the first says how much each rank gives, and the second brings it.

The second round begins when the first has ended, and not when somebody waits for it: a rank that waits late would keep
the others waiting for its data.
"""

import threading

_LOOK_S = 0.2  # how often a rank that waits looks whether others have joined


class TwoRounds:
    """`first`: an Operation. begin(first) gives the handle of the second round, or raises; it runs on a thread of
    libdeft, finishes `first` with keep_name=True, and does not wait."""

    def __init__(self, session, first, begin):
        self._session, self._first, self._begin = session, first, begin
        self._begun = threading.Event()
        self._second = self._error = None
        first.when_done(self._first_ended)

    def poll(self):
        if not self._begun.is_set():
            self._session.look()
            return False
        return self._error is not None or self._second.poll()

    def finish(self):
        """The result of the second round. If a signal's handler raises, finish() may be called again."""
        while not self._begun.wait(_LOOK_S):
            self._session.look()
        self._first.release_name()
        if self._error is not None:
            raise self._error
        return self._second.wait()

    def _first_ended(self, _error):  # finishing it raises the same error
        try:
            self._second = self._begin(self._first)
        except Exception as error:
            self._error = error
        self._begin = None
        self._begun.set()
