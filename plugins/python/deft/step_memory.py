"""The memory of a step, as a worker tells it while a trace is written.

deft_trace.h has the same structures; core/trace/record.h says how the positions of a step are numbered.
"""

from collections.abc import Sequence
from typing import NamedTuple

WEIGHTS, OPTIMIZER, ARENA, GRADIENTS, INPUTS, ACTIVATIONS, TEMPORARY = range(1, 8)  # parts
NO_LAYER = 0xFFFFFFFF


class Layer(NamedTuple):
    """A call of a module with parameters: the first tensor that backward makes of it, and the time of its forward."""

    tensor: int
    forward_ns: int


class Amount(NamedTuple):
    """Bytes of one part (WEIGHTS, ...) from one position of a step to another: deft_memory of deft_trace.h."""

    part: int
    begin: int
    end: int
    input_of: int
    bytes: int
    growing: int


class StepMemory(NamedTuple):
    """The memory of a step."""

    step: int
    samples: int
    layers: Sequence[Layer]
    amounts: Sequence[Amount]
