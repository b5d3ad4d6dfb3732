"""In which order backward produces the gradients: found by the first backward, and rank 0's order holds for all ranks.

    order = ProductionOrder(count=3)
    order.saw(2), order.saw(0, sparse=True)      # in hooks; each gives how many passes this gradient has had
    places = order.agree(session, "sgd.order")   # collective, once
    places.order, places.sparse                  # [2, 0, 1], [0]: indices of gradients
    places.one_of_several                        # True if rank 0 has more optimizers

What travels are numbers, no pickles: a peer cannot make this process run anything.
"""

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

from deft.session import INT64, Session


class Agreed(NamedTuple):
    order: list[int]  # of all gradients, by index
    sparse: list[int]  # the gradients that are sparse
    one_of_several: bool = False  # other optimizers exist, too


class ProductionOrder:
    """The order in which the first backward shows `count` gradients, which are numbered in forward order."""

    def __init__(self, count: int):
        self._count = count
        self._sparse: dict[int, bool] = {}  # by index, in order of appearance
        self._passes = [0] * count

    def saw(self, index: int, sparse: bool = False) -> int:
        """Notes a gradient; gives the number of backward passes that have produced it since restart_passes()."""
        self._passes[index] += 1
        if self._passes[index] == 1:
            self._sparse.setdefault(index, sparse)
        return self._passes[index]

    def restart_passes(self) -> None:
        self._passes = [0] * self._count

    def appeared(self) -> list[int]:
        return list(self._sparse)

    def own(self) -> Agreed:
        """This rank's findings. A gradient that did not appear comes last, in reverse forward order."""
        unseen = [index for index in reversed(range(self._count)) if index not in self._sparse]
        return Agreed([*self._sparse, *unseen], sorted(index for index, sparse in self._sparse.items() if sparse))

    def agree(self, session: Session, name: str, terms: str = "", one_of_several: bool = False) -> Agreed:
        """Rank 0's findings; every rank calls this, with the same name. Different `terms` are an error on all ranks.
        `one_of_several`: what rank 0 says of it counts.

        If the numbers of gradients differ, each rank keeps its own: the declaration that follows then names the
        difference. Raises DeftError if the job has failed.
        """
        own = self.own()
        count, several = _broadcast(session, f"{name}.count", [self._count, one_of_several], terms)
        if count < 0:
            return own
        mine = [*own.order, *own.sparse, *[-1] * (self._count - len(own.sparse))]
        root = _broadcast(session, f"{name}.order", mine if session.rank == 0 else [0] * (2 * count))
        order, sparse = root[:count], [index for index in root[count:] if index >= 0]
        if sorted(order) != list(range(self._count)) or not set(sparse) <= set(order):
            return own
        return Agreed(order, sparse, bool(several))


def _broadcast(session: Session, name: str, numbers: Sequence[int], terms: str = "") -> list[int]:
    """Rank 0's `numbers` on every rank, all of which give equally many."""
    if not numbers:
        return []
    memory = (ctypes.c_int64 * len(numbers))(*numbers)
    operation = session.broadcast(name, ctypes.addressof(memory), len(numbers), INT64, terms=terms)
    operation.finish(ctypes.addressof(memory))
    return list(memory)
