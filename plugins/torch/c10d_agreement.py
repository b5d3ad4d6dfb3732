"""What ranks have to agree on before gloo runs a collective of theirs, and how they find out.

    asking = ByDeft("c10d.0", numbers)           # of a group of all ranks; c10d_subgroup has ByGloo
    ask = asking.next(Alike("broadcast of 6 float32, root 0"))
    ask(settle)                                  # waits for nobody; settle(finish) is called when all ranks have asked
    finish()                                     # DeftError with the same text on all ranks if they differ

gloo compares nothing. Ranks that ask it for different things get parts of other data, wait until a timeout, or lose the
connection that all later collectives need.
"""

import functools
import itertools
import math

from deft import world
from deft._native import EMISMATCH, DeftError
from deft.session import INT64

import torch
import torch.distributed as dist

from .c10d_futures import origin_of_this_call


def count_of(tensors):
    """How much a tensor, or each of a list of them, is: "6 float32". gloo does not see shapes."""
    if isinstance(tensors, torch.Tensor):
        return f"{tensors.numel()} {str(tensors.dtype).removeprefix('torch.')}"
    return " and ".join(count_of(tensor) for tensor in tensors)


def terms_of(option):
    """What an argument says beside the tensors: an object with c10d's options, or one of them."""
    if hasattr(option, "rootRank"):
        reduction = f", {option.reduceOp.op.name}" if hasattr(option, "reduceOp") else ""
        return f"{reduction}, root {option.rootRank}"
    if hasattr(option, "reduceOp"):
        return f", {option.reduceOp.op.name}"
    if isinstance(option, dist.ReduceOp):
        return f", {option.op.name}"
    if isinstance(option, dist.ReduceOp.RedOpType):
        return f", {option.name}"
    return f", root {option}" if isinstance(option, int) else ""


class Alike:
    """All ranks say the same `terms`."""

    numbers = ()

    def __init__(self, terms):
        self.terms = terms

    def start(self, name):
        return world.session().start_barrier(name, self.terms)

    def finish(self, operation):
        operation.finish()

    def problem(self, _numbers, _ranks):
        """Beside the terms there is nothing to compare."""
        return ""


class MatchingSplits:
    """What each rank sends to another is what that one takes from it. Both are numbers of elements, by rank."""

    def __init__(self, terms, sends, takes):
        self.terms = terms
        self.numbers = (*sends, *takes)

    def start(self, name):
        size, self._name = len(self.numbers) // 2, name
        self._mine = torch.tensor(self.numbers, dtype=torch.int64)
        self._all = torch.empty((size, 2 * size), dtype=torch.int64)
        counts = [2 * size] * size
        return world.session().allgather(name, self._mine.data_ptr(), counts, INT64, self.terms)

    def finish(self, operation):
        operation.finish(self._all.data_ptr())
        problem = self.problem(self._all.tolist(), range(len(self._all)))
        if problem:
            raise DeftError(EMISMATCH, f"operation '{self._name}': {self.terms}: {problem}")

    def problem(self, numbers, ranks):
        """`numbers`: of each of the `ranks`. Empty: all match."""
        size = len(ranks)
        return _first_difference([(row[:size], row[size:]) for row in numbers], ranks)


class ByDeft:
    """The ranks of the whole job ask each other. `prefix`: of the names, the same on all ranks. `numbers` counts what
    no callback of a future starts."""

    def __init__(self, prefix, numbers):
        self._prefix, self._numbers = prefix, numbers
        self._numbers_in_callbacks = itertools.count(1)

    def next(self, agreement):
        return functools.partial(self._ask, agreement, self._next_name())

    def _next_name(self):
        if origin_of_this_call() is None:
            return f"{self._prefix}.{next(self._numbers)}"
        return f"{self._prefix}.callbacks.{next(self._numbers_in_callbacks)}"

    def _ask(self, agreement, name, settle):
        operation = agreement.start(name)
        operation.when_done(lambda _error: settle(lambda: agreement.finish(operation)))


def _first_difference(table, ranks):
    """`table`: of each of the ranks, what it sends and what it takes."""
    for rank, (sends, _) in zip(ranks, table):
        if min(sends) < 0:
            return f"rank {rank} cannot split its tensors so"
    for sender, (sends, _) in enumerate(table):
        for receiver, count in enumerate(sends):
            taken = table[receiver][1][sender]
            if count != taken:
                return f"rank {ranks[sender]} sends {count} elements to rank {ranks[receiver]}, which takes {taken}"
    return ""


def splits_of_lists(outputs, inputs):
    """Of alltoall(): a tensor for each rank."""
    return MatchingSplits(
        f"all_to_all of {_dtype(inputs)}", [one.numel() for one in inputs], [one.numel() for one in outputs]
    )


def splits_of_rows(output, given, output_splits, input_splits, size):
    """Of all_to_all_single(): rows for each rank; without splits equally many."""
    sends, takes = _elements(given, input_splits, size), _elements(output, output_splits, size)
    if sends is None or takes is None:
        sends = takes = [-1] * size
    return MatchingSplits(f"all_to_all of {_dtype([given])}", sends, takes)


def _dtype(tensors):
    return str(tensors[0].dtype).removeprefix("torch.") if tensors else "nothing"


def _elements(tensor, splits, size):
    """None: the rows cannot be split so."""
    rows = tensor.shape[0] if tensor.dim() else 0
    if not splits and rows % size == 0:
        splits = [rows // size] * size
    if len(splits) != size or sum(splits) != rows:
        return None
    return [count * math.prod(tensor.shape[1:]) for count in splits]
