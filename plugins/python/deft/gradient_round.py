"""Which gradients of one generation this worker has handed over. Needs no framework.

    round = GradientRound(count=3, passes=1)
    round.phase = Phase.OPEN         # the first gradient has come
    round.marks[2] = HANDED          # by place in the arena; a hook does this
    round.missing()                  # [0, 1]: what nobody has handed over yet
    round.averaged()                 # all averages are back
    round.used()                     # the update is made: the next backward begins a new generation

Not thread-safe: the thread that runs backward() and step() owns it.
"""

import enum
from collections.abc import Sequence

FREE, HANDED, AVERAGED = 0, 1, 2  # a mark
_AFTER_WAIT = bytes([FREE, AVERAGED, AVERAGED]) + bytes(253)


class Phase(enum.Enum):
    IDLE = 0  # no gradient of the next generation yet
    OPEN = 1  # some are handed over
    HANDED = 2  # all are handed over
    AVERAGED = 3  # all are back


class GradientRound:
    """Marks and pass counts of `count` gradients. `passes`: backward passes before a gradient is handed over.

    Hooks keep `marks` and `counts`: both lists are changed in place, except by resize().
    """

    def __init__(self, count: int, passes: int):
        self.phase = Phase.IDLE
        self.passes = passes
        self.resize(count)

    def resize(self, count: int) -> None:
        """Begins anew with `count` gradients, in the same phase. Hooks must be made again."""
        self.marks = bytearray(count)
        self.counts = [0] * count

    def reset_marks(self) -> None:
        self.marks[:] = bytes(len(self.marks))
        self.restart_passes()

    def restart_passes(self) -> None:
        self.counts[:] = [0] * len(self.counts)

    def used(self) -> None:
        """The averages are applied or dropped."""
        self.phase = Phase.IDLE
        self.reset_marks()

    def averaged(self, dropped: Sequence[int] = ()) -> None:
        """The averages are back. A gradient that no hook handed over stays free: a further backward may produce it.

        So may those at the places `dropped`, whose averages nobody wants."""
        self.marks[:] = self.marks.translate(_AFTER_WAIT)
        for place in dropped:
            self.marks[place] = FREE
        self.phase = Phase.AVERAGED

    def has_begun(self, place: int | None) -> bool:
        """Whether the gradient at this place has had a pass in this generation. None: it has no place in the arena."""
        return place is not None and bool(self.marks[place] or self.counts[place])

    def all_handed(self) -> bool:
        return self.marks.count(HANDED) == len(self.marks)

    def amid_passes(self) -> list[int]:
        """The places of the gradients that have had some of their passes, and not all."""
        return [place for place, count in enumerate(self.counts) if count] if self.passes > 1 else []

    def missing(self) -> list[int]:
        """The places of the gradients that are not handed over."""
        if self.all_handed():
            return []
        return [place for place, mark in enumerate(self.marks) if mark != HANDED]
