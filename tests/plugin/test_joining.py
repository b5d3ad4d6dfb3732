"""Joining is used by several threads: of the program, of an engine, and of a watch that looks."""

import json
import threading
import time

from deft.joining import Call, Joining

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
