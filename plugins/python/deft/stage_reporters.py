"""Who tells the daemon the stages of a step. Needs no framework.

The daemon times steps by the stages of one optimizer, or of another group of gradients; those of two would be mixed. So
the oldest one reports. When it has ended the next one does. One that makes no steps while another makes many gives way
to that one: scripts keep models that they do not train any more.
"""

import logging
import threading
import weakref

_PATIENCE = 8  # steps of others in a row, after which the one that reports gives way

log = logging.getLogger("deft")


class StageReporters:
    """All groups of gradients of one session. It keeps none of them alive. Any thread may call the methods."""

    def __init__(self, rank):
        self._rank = rank
        self._waiting = []  # weak references, the oldest first
        self._reporting = None
        self._passed = 0  # steps of others since the one that reports has begun one
        self._lock = threading.RLock()  # what ends while add() runs is removed at once

    def add(self, who):
        with self._lock:
            self._waiting = [*(one for one in self._waiting if one() is not None), weakref.ref(who)]

    def remove(self, who):
        """It is out of use, though it may live on. More than once is harmless."""
        with self._lock:
            self._waiting = [one for one in self._waiting if one() is not None and one() is not who]

    def step_begins(self, who):
        """The gradients of a step of `who` begin. Whether `who` is the one that reports."""
        with self._lock:
            self._passed = 0 if self._is_first(who) else self._passed + 1
            if self._passed >= _PATIENCE:
                self._passed = 0
                self._waiting.sort(key=lambda one: one() is not who)  # the others keep their order
        return self.reports(who)

    def reports(self, who):
        """Whether `who` is the one that reports."""
        if not self._is_first(who):
            return False
        first = self._first()
        if first is not self._reporting:
            if self._reporting is not None and self._rank == 0:
                log.info("the steps of another optimizer are timed: the one that told its stages makes none any more")
            self._reporting = first
        return True

    def _first(self):
        return next((one for one in self._waiting if one() is not None), None)

    def _is_first(self, who):
        first = self._first()
        return first is not None and first() is who
