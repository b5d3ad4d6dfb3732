"""What encodings have left out of an optimizer's gradients so far. The daemons keep it; no checkpoint does."""

import deft


class Residuals:
    def __init__(self, buffer):
        self._buffer = buffer
        self._sent_in = None  # the step whose gradients took all of it along

    def send(self):
        """The next step's gradients take it along."""
        buffer = self._buffer
        if buffer.arena is not None and buffer.arena.count:
            buffer.arena.group.send_residuals(buffer.schedule.step)
            self._sent_in = buffer.schedule.step

    def codecs(self):
        """The codecs that the user has chosen, if they may have left something out that no update has brought."""
        buffer = self._buffer
        if buffer.arena is None or (self._sent_in is not None and buffer.schedule.step == self._sent_in + 1):
            return []
        default = deft.option("compression")
        return sorted({gradient.codec or default for gradient in buffer.gradients} - {"", "none"})
