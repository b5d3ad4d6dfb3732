"""Stand-ins for a session and a group, for tests that need no daemon."""

import ctypes
import queue
import threading

from deft.session import Generation


class Pattern:
    """Generations of one gradient: each merges `merged` steps and is applied `delay` steps after its last one.

    A cut at step s ends the generation under way before s, and everything older is applied before the forward of s.
    """

    def __init__(self, merged=1, delay=0, slots=4):
        self.merged, self.delay, self.slots, self.cuts = merged, delay, slots, []

    def at(self, number):
        first, count = 0, 0
        while True:
            limit = min((cut for cut in self.cuts if cut > first), default=None)
            last = first + self.merged - 1
            if limit is not None:
                last = min(last, limit - 1)
            if count == number:
                apply = last + 1 + self.delay
                return Generation(
                    number, first, last, apply if limit is None else min(apply, limit), number % self.slots
                )
            first, count = last + 1, count + 1

    def of_step(self, step):
        number = 0
        while self.at(number).last_step < step:
            number += 1
        return self.at(number)


class FakeGroup:
    """As deft.Group answers UpdateSchedule. `patterns`: one a tensor."""

    def __init__(self, patterns):
        self.patterns = patterns
        self.asked = 0

    def __len__(self):
        return len(self.patterns)

    def generations_of(self, step):
        self.asked += 1
        return [pattern.of_step(step) for pattern in self.patterns]

    def generations(self, numbers):
        self.asked += 1
        return [pattern.at(number) for pattern, number in zip(self.patterns, numbers, strict=True)]

    def flush(self, step):
        for pattern in self.patterns:
            pattern.cuts.append(step)


class Ranks:
    """Ranks as threads of this process: run(function) calls function(session) on each and gives the results."""

    def __init__(self, size):
        self.size = size

    def run(self, function):
        boxes = [queue.Queue() for _ in range(self.size)]
        results = [None] * self.size

        def work(rank):
            results[rank] = function(_Session(rank, boxes))

        threads = [threading.Thread(target=work, args=(rank,)) for rank in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        assert not any(thread.is_alive() for thread in threads), "a rank waits for a broadcast that nobody makes"
        return results


class _Session:
    """Broadcasts from rank 0, checked as the daemon checks them: the same name, count and terms on all ranks."""

    def __init__(self, rank, boxes):
        self.rank, self.size, self._boxes = rank, len(boxes), boxes

    def broadcast(self, name, address, count, dtype, root=0, terms=""):
        data = ctypes.string_at(address, count * 8)
        if self.rank == root:
            for box in self._boxes:
                box.put((name, count, dtype, terms, data))
        return _Broadcast(self._boxes[self.rank], (name, count, dtype, terms))


class _Broadcast:
    def __init__(self, box, expected):
        self._box, self._expected = box, expected

    def finish(self, address):
        *found, data = self._box.get(timeout=60)
        assert tuple(found) == self._expected, f"ranks differ: {found} and {self._expected}"
        ctypes.memmove(address, data, len(data))
