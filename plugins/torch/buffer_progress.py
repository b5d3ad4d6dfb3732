"""How far the gradients of one optimizer are, for ranks that may wait for them."""

import weakref

from deft.gradient_round import Phase


class BufferProgress:
    """A deft.session_optimizers.OptimizerProgress. It keeps no buffer alive."""

    def __init__(self, buffer):
        self.name = buffer.name
        self._buffer = weakref.proxy(buffer)

    def handed_in(self):
        buffer = self._buffer
        return 0 if buffer.arena is None else 1 + buffer.schedule.step + (buffer.round.phase is Phase.HANDED)

    def may_declare(self):
        buffer = self._buffer
        return buffer.arena is None and buffer.round.phase is Phase.IDLE and not buffer.round.amid_passes()

    def declare(self):
        self._buffer.declare()
