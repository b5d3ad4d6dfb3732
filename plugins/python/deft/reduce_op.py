"""How the values of the ranks become one: Average, Sum, Min, Max, Product, Adasum."""

from typing import NamedTuple

import deft


class ReduceOp:
    def __init__(self, name, wire):
        self.name = name
        self.wire = wire  # what the daemon computes; None: the values of all ranks are gathered

    def __reduce__(self):
        return self.name  # a copy is the same object

    def __repr__(self):
        return self.name


Average = ReduceOp("Average", deft.SUM)
Sum = ReduceOp("Sum", deft.SUM)
Min = ReduceOp("Min", deft.MIN)
Max = ReduceOp("Max", deft.MAX)
Adasum = ReduceOp("Adasum", None)
Product = ReduceOp("Product", None)


class Scaling(NamedTuple):
    """The factors of gradients."""

    before: float = 1.0  # what gradients are multiplied by before the sum
    after: float = 1.0  # and what sums are multiplied by
    again: float = 1.0  # before the sum, if all ranks have what came after an earlier one: it comes back the same

    @property
    def terms(self):
        """Words that are the same on all ranks if they average alike."""
        return f"gradients times {self.before:g}, sums times {self.after:g}"

    def unscaled(self, loss_scale):
        """The same for gradients of a loss that was multiplied by `loss_scale`: they travel without it."""
        return Scaling(self.before / loss_scale, self.after * loss_scale, self.again / loss_scale)


def scaling_of(op, predivide, size):
    """Of gradients of `size` ranks. `predivide`: how much of an average's division comes before the sum."""
    if op is Sum:
        return Scaling(1.0, 1.0, 1.0 / size)
    if predivide == 1.0:
        return Scaling(1.0 / size, 1.0, 1.0 / size)
    return Scaling(1.0 / predivide, predivide / size, 1.0 / predivide)


def choose_op(average, op):
    """Horovod's two ways to say it: op=, or the older average=True or False."""
    if average is not None:
        if op is not None:
            raise ValueError("give either op or average, not both")
        return Average if average else Sum
    op = Average if op is None else op
    if not isinstance(op, ReduceOp):
        raise ValueError(f"op is {op!r}; give one of Average, Sum, Min, Max, Product, Adasum")
    return op
