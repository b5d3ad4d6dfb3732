"""The reductions of torch.distributed that Deft runs.

The daemons compute sums, averages, minima and maxima of the dtypes that dtypes.py lists. For other reductions and other
dtypes they gather the values of all ranks, and each rank reduces these in the order of ranks. So ranks that ask for
different reductions of any kind get the same error.
"""

import functools

import deft
from deft import world
from deft.reduce_op import Average, Max, Min, Product, ReduceOp, Sum

import torch
import torch.distributed as dist

from .c10d_futures import Origin
from .dtypes import HALVES, TO_DEFT, as_bytes

_BITWISE = {
    dist.ReduceOp.BAND: ReduceOp("BAND", None),
    dist.ReduceOp.BOR: ReduceOp("BOR", None),
    dist.ReduceOp.BXOR: ReduceOp("BXOR", None),
}
_OPS = {
    dist.ReduceOp.SUM: Sum,
    dist.ReduceOp.AVG: Average,
    dist.ReduceOp.MIN: Min,
    dist.ReduceOp.MAX: Max,
    dist.ReduceOp.PRODUCT: Product,
    **_BITWISE,
}
_OF_TWO = {  # what makes one tensor of the values of two ranks
    Sum: torch.add,
    Average: torch.add,
    Min: torch.minimum,
    Max: torch.maximum,
    Product: torch.mul,
    _BITWISE[dist.ReduceOp.BAND]: torch.bitwise_and,
    _BITWISE[dist.ReduceOp.BOR]: torch.bitwise_or,
    _BITWISE[dist.ReduceOp.BXOR]: torch.bitwise_xor,
}


def find_op(op, tensor):
    """The reduction `op` of torch.distributed; None if Deft does not run it for this tensor."""
    dense = tensor.device.type == "cpu" and tensor.layout is torch.strided
    takes_bits = not (tensor.is_floating_point() or tensor.is_complex())
    return _OPS.get(op) if dense and (takes_bits or op not in _BITWISE) else None


def reduce_at_once(work, name, tensor, op):
    """Reduces a tensor in place, without waiting; `work` ends when the result is there."""
    Origin(name).follow(work.get_future())
    given = tensor.detach()
    memory = given.contiguous().resolve_conj().resolve_neg()  # `given` itself, if that is so already
    start = _start if op.wire is not None and memory.dtype in TO_DEFT else _start_gathering
    operation, finish = start(name, memory, op)

    def end():
        with torch.inference_mode(given.is_inference()):  # which is off on this thread
            finish()
            if memory is not given:
                given.copy_(memory)

    return operation.when_done(lambda _error: work.end_after(None, end))  # finish() raises the same error


def _start(name, memory, op):
    """A reduction that the daemons compute, and what waits for it and writes the result to `memory`."""
    halves = op is Average and memory.dtype in HALVES  # their sum may be too large
    if halves:
        memory.div_(world.size())
    terms = f"{op.name}, shape {list(memory.shape)}"  # a sum on one rank and an average on another would add up
    if memory.numel() == 0:
        return _without_elements(name, memory, terms)
    operation = world.session().allreduce(
        name, memory.data_ptr(), memory.numel(), TO_DEFT[memory.dtype], op.wire, terms
    )

    def finish():
        operation.finish(memory.data_ptr())
        if op is Average and not halves:
            _divide(memory)

    return operation, finish


def _start_gathering(name, memory, op):
    """The same, of a reduction that each rank computes from the values of all."""
    terms = f"{op.name} of {memory.dtype}, shape {list(memory.shape)}"
    if memory.numel() == 0:
        return _without_elements(name, memory, terms)
    mine, size = as_bytes(memory), world.size()
    operation = world.session().allgather(name, mine.data_ptr(), [mine.numel()] * size, deft.UINT8, terms)

    def finish():
        every = memory.new_empty((size, *memory.shape))
        operation.finish(every.data_ptr())
        memory.copy_(functools.reduce(_OF_TWO[op], every.unbind()))
        if op is Average:
            _divide(memory)

    return operation, finish


def _without_elements(name, memory, terms):
    """The ranks only agree that there are none."""
    operation = world.session().start_barrier(name, f"allreduce, {memory.dtype}, {terms}")
    return operation, operation.finish


def _divide(total):
    is_integer = not (total.is_floating_point() or total.is_complex())
    total.div_(world.size(), rounding_mode="trunc" if is_integer else None)
