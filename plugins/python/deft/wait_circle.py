"""Whether ranks wait for each other in a circle, by what each has said of itself.

    circle_through(0, {0: Standing("a", 2, {"b": 1}), 1: Standing("b", 2, {"a": 1})})      # [0, 1]

A rank that has told its standing waits: so the circle is real, although what a rank has said may be old. This rank's
own standing is of now. If it has not handed in what rank 1 waits for, that wait goes on, so all that rank 1 has said is
true now. Then the same holds for the rank whose hand-in rank 1 is said to owe, and so on along the circle.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Standing:
    """A rank waits until all ranks have handed in the gradients `name` `number` times."""

    name: str
    number: int
    handed_in: Mapping[str, int]  # by itself, of each optimizer

    def as_text(self) -> str:
        return json.dumps(asdict(self))

    def owes(self, other: "Standing") -> bool:
        """Whether the other rank waits for this one."""
        return self.handed_in.get(other.name, 0) < other.number


def circle_through(own: int, standings: Mapping[int, Standing]) -> list[int]:
    """The ranks of a shortest circle: each waits for the next one, and the last for rank `own`. Empty: no circle."""
    paths = [[own]]
    seen = {own}
    for path in paths:  # grows
        waiting = standings[path[-1]]
        for rank, standing in standings.items():
            if rank == path[-1] or not standing.owes(waiting):
                continue
            if rank == own:
                return path
            if rank not in seen:
                seen.add(rank)
                paths.append([*path, rank])
    return []
