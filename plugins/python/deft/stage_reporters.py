"""Who tells the daemon the stages of a step. Needs no framework.

The daemon times steps by the stages of one optimizer, or of another group of gradients; those of two would be mixed. So
the oldest one that is in use reports, and when it has ended the next one does.
"""

import logging
import threading
import weakref

log = logging.getLogger("deft")


class StageReporters:
    """All groups of gradients of one session. It keeps none of them alive. Any thread may call the methods."""

    def __init__(self, rank):
        self._rank = rank
        self._waiting = []  # weak references, the oldest first
        self._reporting = None
        self._lock = threading.RLock()  # what ends while add() runs is removed at once

    def add(self, who):
        with self._lock:
            self._waiting = [*self._waiting, weakref.ref(who)]

    def remove(self, who):
        """It is out of use, though it may live on. More than once is harmless."""
        with self._lock:
            self._waiting = [one for one in self._waiting if one() is not None and one() is not who]

    def reports(self, who):
        """Whether `who` is the one that reports."""
        first = next((one for one in self._waiting if one() is not None), None)
        if first is None or first() is not who:
            return False
        if first is not self._reporting:
            if self._reporting is not None and self._rank == 0:
                log.info("the steps of another optimizer are timed: the one that told its stages before has ended")
            self._reporting = first
        return True
