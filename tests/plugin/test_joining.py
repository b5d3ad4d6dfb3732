"""Joining is used by several threads: of the program, of an engine, and of a watch that looks."""

import json
import threading
import time

import pytest
from deft.joining import Call, Joining, _Follower

THREADS, CALLS = 4, 25


class Store:
    """What Joining uses of a session. Another rank has joined, which the second look sees."""

    size, rank = 2, 0

    def __init__(self):
        self.written = []

    def set(self, key, value):
        time.sleep(0.0001)  # another thread comes in between
        self.written.append((key, json.loads(value)))

    def ask(self, _key):
        return self

    def answer(self):
        return b"1"


def test_announcements_of_several_threads_have_numbers_without_gaps():
    store = Store()
    joining = Joining(store)

    def begin(thread):
        for number in range(CALLS):
            joining.started(Call(1, f"{thread}.{number}", 1, 1, 1, ""))
            joining.look()
            joining.round_begins(f"optimizer.{thread}", number)

    threads = [threading.Thread(target=begin, args=(thread,)) for thread in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    keys = [key for key, _ in store.written]
    assert keys == [joining.key_of(0, number) for number in range(len(keys))]
    announced = {said["call"][1] for _, said in store.written if "call" in said}
    assert announced == {f"{thread}.{number}" for thread in range(THREADS) for number in range(CALLS)}
    assert joining.begun == 2 * THREADS * CALLS


class Kept(Store):
    """A store of which the values count that are there."""

    def __init__(self):
        self.values, self.keys = {}, set()

    def set(self, key, value):
        self.keys.add(key)
        self.values[key] = value
        if not value:
            del self.values[key]


def test_a_round_leaves_nothing_in_the_store():
    store = Kept()
    joining = Joining(store)
    for _ in range(3):
        for number in range(CALLS):
            joining.started(Call(1, f"call.{number}", 1, 1, 1, ""))
            joining.look()
            joining.round_begins("optimizer", number)
        joining.announce_end()
        assert len(store.values) >= 2 * CALLS
        joining.next_round()
        assert store.values == {}
    assert joining.round == 3 and joining.key_of(0, 0) not in store.keys


class JoinedRanks:
    """The session of one of three ranks, all of which have joined; it remembers whose announcements are asked for."""

    size = 3

    def __init__(self, rank):
        self.rank, self.asked = rank, []
        self.joining = Joining(self)

    def ask(self, key):
        self.asked.append(key)
        return self

    def answer(self, _timeout_s):
        return b'{"joined": true}'


@pytest.mark.parametrize("rank", range(JoinedRanks.size))
def test_a_rank_that_has_joined_follows_every_other_rank_and_never_itself(rank):
    session = JoinedRanks(rank)
    follower = _Follower(session, {})
    while not follower.all_have_joined():
        follower.follow(0)
    others = [other for other in range(JoinedRanks.size) if other != rank]
    assert session.asked == [session.joining.key_of(other, 0) for other in others]
