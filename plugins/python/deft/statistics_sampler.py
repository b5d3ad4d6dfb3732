"""Which steps the Preserver hears of, and the bookkeeping of one sampled step. Needs no framework.

A sample is one step: the loss, the squared norm of this rank's own gradient, and that of the average over all ranks,
which comes back steps later and gradient by gradient. The framework's part takes the norms.

    sampler.report(loss, target, step)                     # each step, if the user reports losses
    finished = sampler.finished()                          # a Sample whose averages are all back
    if sampler.begins(step): sampler.begin(step, own, awaited)
    sampler.wants(place, generation)                       # when an average is back: is its norm needed?
    sampler.came(place, norm, merged, ranks)

Norms may be numbers that a GPU still computes: they are read in finished() only, a step later.
"""

import math
from collections.abc import Mapping

EVERY = 8  # steps between samples, if the earlier one has come back by then
AT_LEAST = 16  # steps after which a sample that has not come back is given up for the next
FIRST = 1
EARLY, EVERY_EARLY = 128, 4  # up to this step more often: a loss that begins to fall changes what stale updates cost
DENSE = 8  # up to this step each step is sampled: the first plan is made then, and one sample tells little
FORGOTTEN = 4 * AT_LEAST  # steps after which a loss says nothing any more


class Sample:
    """One step. `own`: squared norms of this rank's gradient by place; `awaited`: the generation that averages it."""

    def __init__(self, step: int, loss: object, target: float, own: Mapping, awaited: Mapping[int, int]):
        self.step, self.loss, self.target = step, loss, target
        self.own, self.awaited = own, dict(awaited)
        self.averages: list = []  # squared norms, as of one step

    def numbers(self) -> tuple[float, float, float]:
        """Own norm, norm of the average, loss."""
        return float(sum(self.own.values())), float(sum(self.averages)), float(self.loss)


class StatisticsSampler:
    """The newest loss and at most one sample under way."""

    def __init__(self):
        self._loss = None  # (loss, target, step) of the newest report
        self._sample: Sample | None = None
        self._sampled = -1  # the newest sampled step

    @property
    def has_loss(self) -> bool:
        return self._loss is not None

    def report(self, loss: object, target: float, step: int) -> None:
        """Raises ValueError for a target that no loss can have."""
        if not math.isfinite(target) or target < 0:
            raise ValueError(f"the target of the loss is {target}; give the lowest loss that can be reached, 0 or more")
        self._loss = (loss, target, step)

    def begins(self, step: int) -> bool:
        """Whether `step`, whose gradients are complete, is to be sampled. The answer is the same on all ranks."""
        if self._loss is None or step == self._sampled:
            return False
        if step % AT_LEAST != FIRST and (self._sample is not None or not _is_regular(step)):
            return False
        return step - self._loss[2] <= FORGOTTEN

    def begin(self, step: int, own: Mapping, awaited: Mapping[int, int]) -> None:
        loss, target, _ = self._loss
        self._sampled = step
        self._sample = Sample(step, loss, target, own, awaited)

    def wants(self, place: int, generation: int) -> bool:
        return self._sample is not None and self._sample.awaited.get(place) == generation

    def came(self, place: int, norm: object, merged: int, ranks: int) -> None:
        """The average of a wanted gradient over `merged` steps and `ranks` ranks has this squared norm."""
        sample = self._sample
        del sample.awaited[place]
        sample.averages.append(norm_of_one_step(norm, sample.own[place], merged, ranks))

    def finished(self) -> Sample | None:
        """The sample whose averages have all come; it is given once."""
        sample = self._sample
        if sample is None or sample.awaited:
            return None
        self._sample = None
        return sample


def _is_regular(step: int) -> bool:
    """Whether a step is sampled unless an earlier sample has not come back yet."""
    return step <= DENSE or step % (EVERY_EARLY if step <= EARLY else EVERY) == FIRST


def norm_of_one_step(norm, own, merged: int, ranks: int):
    """The squared norm of an average over the ranks of one step, from that over `merged` steps.

    If n gradients have the mean G and each the noise T, their average has the squared norm |G|^2 + T / n, and each of
    them |G|^2 + T.
    """
    return (norm * merged * (ranks - 1) + own * (merged - 1)) / (merged * ranks - 1)
