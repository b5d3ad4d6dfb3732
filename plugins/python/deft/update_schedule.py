"""Which generation a step's gradients belong to, and when its average is due. Needs no framework.

    schedule = UpdateSchedule(slots=4)          # 1: every step is applied before the next one (merges 1, delays 0)
    schedule.attach(group)                      # the declared tensors
    schedule.open_step()                        # schedule.now[place]: the generation that merges this step's gradient
    ...                                         # the gradients of the step are handed over
    schedule.advance()                          # the step is over
    for due in schedule.take_due():             # the updates before the next step, oldest first
        ...

All ranks get the same answers, since libdeft computes them from steps and from plans that all ranks follow.
Not thread-safe: the thread that runs backward() and step() owns it.
"""

import collections
from typing import NamedTuple

from deft.session import Generation, Group, runs_of


class Due(NamedTuple):
    """One update: averages of all gradients, or of some."""

    common: Generation | None  # of all gradients
    by_place: dict[int, Generation]  # if they have different generations, or some have none
    first_step: int  # the oldest step whose gradients are in them
    last_step: int
    merged: int  # steps, at most

    def of(self, place: int) -> Generation | None:
        return self.common or self.by_place.get(place)


class UpdateSchedule:
    """The steps and generations of one group of gradients on this worker.

    `slots`: how many generations the arena holds. With 1 slot a generation is a step: it merges 1 and delays 0, and
    nothing is asked of libdeft. `splits_merged`: gradients that merge different numbers of steps are applied in updates
    of their own.
    """

    def __init__(self, slots: int = 1, splits_merged: bool = False):
        self.slots = slots
        self.splits_merged = splits_merged
        self.step = 0
        self.now: list[Generation] = []  # by place; empty before attach(), and with 1 slot
        self._group: Group | None = None
        self._next: list[int] = []  # by place, the oldest generation that is neither applied nor dropped

    @property
    def delays(self) -> bool:
        """Whether updates may merge steps, or come some steps later."""
        return self.slots > 1

    def attach(self, group: Group) -> None:
        self._group = group
        self._next = [0] * len(group)
        self.open_step()

    def open_step(self) -> None:
        """Looks up the generations of this step. Everything that is due before it has been waited for."""
        if self.delays and self._group is not None:
            self.now = self._group.generations_of(self.step)

    def advance(self) -> None:
        """This step is over."""
        self.step += 1

    def take_due(self) -> list[Due]:
        """The updates before the forward of this step, oldest first; each is given once."""
        if not self.delays:
            last = self.step - 1
            return [Due(Generation(last, last, last, self.step, 0), {}, last, last, 1)]
        found = self._due(self.step)
        for due in found:
            self.applied(due)
        return found

    def due_after_this(self) -> list[Due]:
        """The updates that take_due() would give after advance()."""
        return self._due(self.step + 1)

    def applied(self, due: Due) -> None:
        """An average of due_after_this() is applied before advance()."""
        for place in range(len(self._next)):
            generation = due.of(place)
            if generation is not None:
                self._next[place] = generation.number + 1

    def pending(self) -> bool:
        """Whether gradients wait for their update."""
        if not self.delays or self._group is None or self.step == 0:
            return False
        newest = self._group.generations_of(self.step - 1)
        return any(generation.number >= first for generation, first in zip(newest, self._next, strict=True))

    def flush(self) -> list[tuple[int, int, int, int]]:
        """Ends the generations under way before this step, on all ranks alike.

        Gives what Group.ready() has to be called with: (first tensor, count, generation, slot). take_due() gives
        everything afterwards.
        """
        newest = self._group.generations_of(self.step - 1)
        self._group.flush(self.step)
        open_places = collections.defaultdict(list)
        for place, generation in enumerate(newest):
            if generation.last_step >= self.step:
                open_places[generation.number, generation.slot].append(place)
        return [
            (first, count, number, slot)
            for (number, slot), places in open_places.items()
            for first, count in runs_of(places)
        ]

    def oldest_step(self, taken: list[Due]) -> int:
        """The oldest step whose gradients some update may still have; `taken` is not applied yet."""
        waiting = self._group.generations(self._next)
        first = taken[0].first_step if taken else self.step
        return min(first, *(generation.first_step for generation in waiting))

    def _due(self, step: int) -> list[Due]:
        """The updates before the forward of `step` that were not applied yet, oldest first."""
        numbers, found = list(self._next), []
        while True:
            due = {}
            for place, generation in enumerate(self._group.generations(numbers)):
                if generation.apply_step <= step:
                    due[place] = generation
                    numbers[place] += 1
            if not due:
                return found
            found += self._updates_of(due)

    def _updates_of(self, generations: dict[int, Generation]) -> list[Due]:
        kinds = sorted({generation.merged for generation in generations.values()})
        if self.splits_merged and len(kinds) > 1:
            chosen = [{p: g for p, g in generations.items() if g.merged == merged} for merged in kinds]
            return [update for some in chosen for update in self._updates_of(some)]
        first = min(generation.first_step for generation in generations.values())
        last = max(generation.last_step for generation in generations.values())
        different = set(generations.values())
        if len(generations) == len(self._next) and len(different) == 1:
            return [Due(different.pop(), {}, first, last, kinds[-1])]
        return [Due(None, generations, first, last, kinds[-1])]
