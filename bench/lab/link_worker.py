"""The workers of lab/links.py: all-reduces through Deft's session, in the place of a training."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

PARTS = (48, 12)  # of the same bytes: many, and few
_REPEATS = 5


class Probe:
    """Stands in the place of a trainer in lab/worker.py."""

    gradient_bytes = 0

    def __init__(self, setting: dict, _told: Callable[[dict], None]):
        sys.path.insert(0, setting["packages"])
        import deft

        self._deft = deft
        self._session = deft.open()

    def times(self, part_bytes: int) -> dict[str, list[float]]:
        """Microseconds of each repetition, by the number of parts."""
        return {str(count): self._repeat(count, part_bytes * PARTS[0] // count) for count in PARTS}

    def _repeat(self, count: int, tensor_bytes: int) -> list[float]:
        tensors = [self._deft.Tensor(f"t{i}", self._deft.FLOAT32, (tensor_bytes // 4,), i) for i in range(count)]
        group = self._session.declare(f"links.{count}", tensors)
        taken = []
        for step in range(_REPEATS + 1):
            self._session.barrier()
            began = time.perf_counter()
            group.ready(0, count, step=step)
            group.wait(0, count, step=step)
            taken.append(1e6 * (time.perf_counter() - began))
        return taken[1:]

    def close(self) -> None:
        self._session.close()
