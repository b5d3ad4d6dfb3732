"""How the ranks of a subgroup find out whether they ask gloo for the same: Deft's own collectives are of all ranks.

    asking = ByGloo(gloo, [2, 3])      # a process group of gloo that nothing else uses; the ranks in the job
    ask = asking.next(agreement)       # in the same order on all ranks, as gloo itself needs it
    ask(settle)                        # as c10d_agreement says

Each rank gathers what all say, in messages of one size. So gloo can run that whatever they say.
"""

import array
import collections
import functools
import threading

from deft._native import EMISMATCH, DeftError
from deft.session import MOST_TERMS_BYTES, shortened

import torch

from .c10d_futures import threads


class ByGloo:
    def __init__(self, gloo, ranks):
        self._gloo, self._ranks = gloo, list(ranks)
        self._lock = threading.Lock()
        self._asked = collections.deque()  # (settle, finish)
        self._is_served = False  # a thread waits for what was asked

    def next(self, agreement):
        mine = self._message(agreement)
        said = torch.empty((len(self._ranks), len(mine)), dtype=torch.uint8)
        work = self._gloo._allgather_base(said.view(-1), mine)
        return functools.partial(self._follow, functools.partial(self._finish, agreement, work, mine, said))

    def _follow(self, finish, settle):
        with self._lock:
            self._asked.append((settle, finish))
            if self._is_served:
                return
            self._is_served = True
        threads.run(self._serve)

    def _serve(self):
        while True:
            with self._lock:
                if not self._asked:
                    self._is_served = False
                    return
                settle, finish = self._asked.popleft()
            settle(finish)

    def _finish(self, agreement, work, mine, said):
        work.wait()
        texts, numbers = said[:, :MOST_TERMS_BYTES], said[:, MOST_TERMS_BYTES:]
        if not bool((texts == mine[:MOST_TERMS_BYTES]).all()):
            raise DeftError(EMISMATCH, f"ranks ask for different things: {self._described(texts.tolist())}")
        problem = agreement.problem([row.view(torch.int64).tolist() for row in numbers], self._ranks)
        if problem:
            raise DeftError(EMISMATCH, f"{agreement.terms}: {problem}")

    def _described(self, texts):
        ranks_of = {}
        for rank, text in zip(self._ranks, texts):
            words = bytes(text).rstrip(b"\0").decode(errors="replace")
            ranks_of.setdefault(words, []).append(str(rank))
        return "; ".join(f"rank {', '.join(ranks)} for {words}" for words, ranks in ranks_of.items())

    def _message(self, agreement):
        count = 2 * len(self._ranks)
        numbers = agreement.numbers or [0] * count
        if len(numbers) != count:
            numbers = [-1] * count  # no rank can split its tensors so
        text = shortened(agreement.terms).ljust(MOST_TERMS_BYTES, b"\0")
        return torch.frombuffer(bytearray(text + array.array("q", numbers).tobytes()), dtype=torch.uint8)
