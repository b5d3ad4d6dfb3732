"""Noise-aware coordinate descent: changes one size, or both, as long as steps get shorter by more than the noise.

    search = descend(compare, start, Space(), trials=15, least_gain=0.01, tell=print)

It begins with large steps on a logarithmic scale. If no neighbour is better, it takes smaller ones, and ends after the
smallest. A neighbour must win a duel (duel.py) beyond its noise and by more than `least_gain`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from deft_tuner.duel import Duel
from deft_tuner.settings import Settings, Space

FACTORS = (4.0, 2.0)  # by which a size changes at once
DIRECTIONS = (
    {"partition_bytes": 1},
    {"partition_bytes": -1},
    {"credit_bytes": 1},
    {"credit_bytes": -1},
    {"partition_bytes": 1, "credit_bytes": 1},
    {"partition_bytes": -1, "credit_bytes": -1},
)


@dataclass(frozen=True)
class Trial:
    number: int
    settings: Settings
    duel: Duel
    is_new_best: bool


@dataclass
class Search:
    best: Settings
    trials: list[Trial] = field(default_factory=list)
    why_it_ended: str = ""


Compare = Callable[[Settings, Settings], Duel]
Tell = Callable[[Trial], None]


class Contest:
    """The best setting so far, and its challengers."""

    def __init__(self, compare: Compare, start: Settings, trials: int, least_gain: float, tell: Tell) -> None:
        self.compare, self.least_gain, self.tell = compare, least_gain, tell
        self.most = trials
        self.search = Search(start)
        self.seen = {start}

    @property
    def is_over(self) -> bool:
        return len(self.search.trials) >= self.most

    def challenge(self, settings: Settings) -> Trial:
        """Compares a setting with the best one, which it becomes if it wins."""
        duel = self.compare(self.search.best, settings)
        won = duel.is_better and duel.gain > self.least_gain
        trial = Trial(len(self.search.trials) + 1, settings, duel, won)
        self.search.trials.append(trial)
        self.seen.add(settings)
        if won:
            self.search.best = settings
        self.tell(trial)
        return trial


def climb(contest: Contest, space: Space, direction: dict[str, int], factor: float) -> bool:
    """Goes on in one direction as long as that helps. True: it did."""
    moved = False
    while not contest.is_over:
        next_one = space.scaled(contest.search.best, {name: factor**sign for name, sign in direction.items()})
        if next_one is None or next_one in contest.seen:
            return moved
        if not contest.challenge(next_one).is_new_best:
            return moved
        moved = True
    return moved


def descend(
    compare: Compare,
    start: Settings,
    space: Space,
    trials: int,
    least_gain: float = 0.01,
    tell: Tell = lambda trial: None,
    predicted: Settings | None = None,
) -> Search:
    """`predicted`: what replay says is best, which is tried first."""
    contest = Contest(compare, start, trials, least_gain, tell)
    if predicted is not None and predicted != start and not contest.is_over:
        contest.challenge(predicted)
    for factor in FACTORS:
        moved = True
        while moved and not contest.is_over:
            moved = False
            for direction in DIRECTIONS:
                moved = climb(contest, space, direction, factor) or moved
    ended = "all trials were made" if contest.is_over else "no neighbour gains more than the noise"
    contest.search.why_it_ended = ended
    return contest.search
