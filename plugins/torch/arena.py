"""The shared arena as torch tensors: in each slot one view a declared tensor, each with a storage of its own.

Own storages keep the views' version counters apart, which is how a later change of one gradient is noticed.
"""

import ctypes

import deft

import torch

from .dtypes import TO_DEFT


class Arena:
    """A declared group of tensors, in the order in which backward produces them."""

    def __init__(self, session, name, specs, slots=1):
        """`specs`: (name, dtype, shape, forward position) of each tensor, in production order."""
        self.count = len(specs)
        self.group = session.declare(
            name,
            [deft.Tensor(tensor, TO_DEFT[dtype], tuple(shape), position) for tensor, dtype, shape, position in specs],
            slots=slots,
        )
        self.views = [  # by slot and place
            [self._map(place, slot, dtype, shape) for place, (_, dtype, shape, _) in enumerate(specs)]
            for slot in range(slots)
        ]
        self.ready = self.group.ready

    def _map(self, place, slot, dtype, shape):
        memory = (ctypes.c_char * self.group.bytes(place)).from_address(self.group.data(place, slot))
        return torch.frombuffer(memory, dtype=dtype).view(shape)

    def wait(self, generation):
        self.group.wait(0, self.count, generation)

    def wait_for(self, runs, generation):
        """Waits for some tensors, given as runs of neighbours: (first, count)."""
        for first, count in runs:
            self.group.wait(first, count, generation)


def runs_of(places):
    """Numbers as runs of neighbours: [3, 1, 2, 7] -> [(1, 3), (7, 1)]."""
    runs = []
    for place in sorted(places):
        if runs and place == runs[-1][0] + runs[-1][1]:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((place, 1))
    return runs
