"""How the values of the ranks become one: Average, Sum, Min, Max, Product, Adasum."""

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
