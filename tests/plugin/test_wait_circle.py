"""Ranks that wait for each other in a circle."""

import itertools
import json
import random

import pytest
from deft.wait_circle import Standing, circle_through


def waiting(name, number, **handed_in):
    return Standing(name, number, handed_in)


@pytest.mark.parametrize(
    ("standings", "circle"),
    [
        ([waiting("a", 2, a=2, b=1), waiting("b", 2, a=1, b=2)], [0, 1]),
        ([waiting("a", 2, a=2, b=1), waiting("b", 2, a=2, b=2)], []),  # rank 1 waits for rank 0 alone
        ([waiting("a", 1, a=1), waiting("b", 1, b=1)], [0, 1]),  # neither has declared the other's
        ([waiting("a", 2, a=2, b=2), waiting("a", 3, a=3, b=2)], []),
        ([waiting("a", 1, a=1, b=0, c=1), waiting("b", 1, a=1, b=1, c=0), waiting("c", 1, a=0, b=1, c=1)], [0, 2, 1]),
        # A circle of ranks 1 and 2, for which rank 0 waits, is theirs.
        ([waiting("a", 2, a=2, b=2, c=2), waiting("b", 2, a=1, b=2, c=1), waiting("c", 2, a=2, b=1, c=2)], []),
    ],
)
def test_a_circle_goes_through_this_rank(standings, circle):
    assert circle_through(0, dict(enumerate(standings))) == circle


def test_what_is_found_is_what_a_search_of_all_circles_finds():
    chance = random.Random(7)
    found = 0
    for _ in range(400):
        ranks = range(4)
        standings = {
            rank: waiting(chance.choice("abc"), chance.randint(1, 2), **{name: chance.randint(0, 2) for name in "abc"})
            for rank in ranks
        }
        circles = [
            order
            for length in (2, 3, 4)
            for order in itertools.permutations(ranks, length)
            if order[0] == 0
            and all(standings[b].owes(standings[a]) for a, b in zip(order, (*order[1:], 0), strict=True))
        ]
        circle = circle_through(0, standings)
        assert bool(circle) == bool(circles)
        assert not circle or (tuple(circle) in circles and len(circle) == min(map(len, circles)))
        found += bool(circle)
    assert 20 < found < 380


def test_a_standing_can_be_written_and_read():
    standing = waiting("optimizer.0", 3, **{"optimizer.0": 3, "größer": 1})
    assert Standing(**json.loads(standing.as_text())) == standing
