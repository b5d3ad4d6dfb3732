"""What ranks have to agree on before gloo runs a collective of theirs, and how they find out.

    agreement = Alike("broadcast of 6 float32, root 0")
    operation = agreement.start("c10d.0.5")      # the same name on all ranks; waits for nobody
    agreement.finish(operation)                  # waits; DeftError with the same text on all ranks if they differ

gloo compares nothing. Ranks that ask it for different things get parts of other data, wait until a timeout, or lose the
connection that all later collectives need.
"""

import math

from deft import world
from deft._native import EMISMATCH, DeftError
from deft.session import INT64

import torch
import torch.distributed as dist


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

    def __init__(self, terms):
        self.terms = terms

    def start(self, name):
        return world.session().start_barrier(name, self.terms)

    def finish(self, operation):
        operation.finish()


class MatchingSplits:
    """What each rank sends to another is what that one takes from it. Both are numbers of elements, by rank."""

    def __init__(self, terms, sends, takes):
        self.terms = terms
        self._mine = torch.tensor([sends, takes], dtype=torch.int64)
        self._all = torch.empty((len(sends), *self._mine.shape), dtype=torch.int64)

    def start(self, name):
        counts = [self._mine.numel()] * len(self._all)
        self._name = name
        return world.session().allgather(name, self._mine.data_ptr(), counts, INT64, self.terms)

    def finish(self, operation):
        operation.finish(self._all.data_ptr())
        problem = _first_difference(self._all.tolist())
        if problem:
            raise DeftError(EMISMATCH, f"operation '{self._name}': {self.terms}: {problem}")


def _first_difference(table):
    """`table`: of each rank, what it sends and what it takes."""
    for rank, (sends, _) in enumerate(table):
        if min(sends) < 0:
            return f"rank {rank} cannot split its tensors so"
    for sender, (sends, _) in enumerate(table):
        for receiver, count in enumerate(sends):
            taken = table[receiver][1][sender]
            if count != taken:
                return f"rank {sender} sends {count} elements to rank {receiver}, which takes {taken}"
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
