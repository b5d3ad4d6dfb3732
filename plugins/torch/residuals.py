"""What encodings have left out of an optimizer's gradients so far. The daemons keep it; no checkpoint does."""

import os

import deft
from deft._native import DeftError, daemon_status

_NOTHING = {"", "none", "auto/max=none"}  # texts of the option compression
_WITHOUT = {"qsgd", "terngrad", "signsgd"}  # codecs that keep nothing for later: they round at random, or vote


def _leaves_residuals(codec):
    """`codec`: as users write it."""
    name, _, parameters = codec.partition("/")
    return codec not in _NOTHING and name not in _WITHOUT and "unbiased=1" not in parameters.split(",")


class Residuals:
    def __init__(self, buffer):
        self._buffer = buffer
        self._sent_in = None  # the step whose gradients took all of it along
        self._of_job = None  # the codec of the job, once the daemon has told it

    def send(self):
        """The next step's gradients take it along."""
        buffer = self._buffer
        if buffer.arena is not None and buffer.arena.count:
            step = buffer.schedule.step
            buffer.arena.group.send_residuals(step)
            buffer.process_set.session().joining.residuals_asked(buffer.name, step)
            self._sent_in = step

    def codecs(self):
        """The codecs in force, if they may have left something out that no update has brought."""
        buffer = self._buffer
        if buffer.arena is None or (self._sent_in is not None and buffer.schedule.step == self._sent_in + 1):
            return []
        if buffer.arena.nodes == 1:  # gradients are encoded between nodes only
            return []
        own = {gradient.codec for gradient in buffer.gradients}
        return sorted(filter(_leaves_residuals, own | ({self._codec_of_job()} if "" in own else set())))

    def _codec_of_job(self):
        """The daemon knows: its configuration may name a codec, and a policy may have one of its own."""
        if self._of_job is None:
            try:
                jobs = daemon_status()["jobs"]
            except DeftError:  # a daemon that is gone says so at the next step
                jobs = []
            own = [job for job in jobs if (job["name"], job["uid"]) == (deft.option("job"), os.getuid())]
            if not own:
                return deft.option("compression")
            self._of_job = own[0]["compression"]
        return self._of_job
