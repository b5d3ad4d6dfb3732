"""Sums that a loop leaves in p.grad, so that its next backward adds to them.

Every rank has the same sum there, and what the backward leaves is summed over the ranks once more. So each rank divides
the old sum by the number of ranks before the backward adds to it. An average needs no such care: it is its own average.
"""

import weakref

from . import hooks


class KeptSums:
    """Of the gradients of a buffer whose averages nobody takes in a step(); release() or its end takes the hooks off.

    A parameter that the backward does not reach is the buffer's matter: it hands in what p.grad holds."""

    def __init__(self, buffer):
        self._hooks = [hooks.install_before(one.param, _dividing(buffer, one)) for one in buffer.gradients]

    def release(self):
        hooks.remove_all(self._hooks)

    def __del__(self):
        self.release()


def _dividing(buffer, gradient):
    buffer_of, gradient_of = weakref.ref(buffer), weakref.ref(gradient)
    divided = [lambda: None]  # the sum that was divided last

    def divide(_fresh):
        buffer, gradient = buffer_of(), gradient_of()
        if buffer is None or not buffer.versions.holds_average(gradient) or buffer.round.has_begun(gradient.place):
            return
        kept, scaling = gradient.param.grad, buffer.writer.scaling
        if kept.is_sparse:  # the round does not count its passes, but each sum is a tensor of its own
            if divided[0]() is kept:
                return
            divided[0] = weakref.ref(kept)
        kept.mul_(scaling.again / scaling.before)

    return divide
