"""Adasum: a sum that adapts to the angle between gradients. Needs no framework.

    adasum([a, b, c, d], dot)          # of 4 ranks: pairs first, then the pairs' results

Two gradients that point the same way become their average, and two that are orthogonal their sum: from each, half of
its projection on the other is taken away. `dot` gives the inner product of two values as a float.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

Value = TypeVar("Value")


def adasum(values: Sequence[Value], dot: Callable[[Value, Value], float]) -> Value:
    """The reduction of the values of all ranks, in the order of ranks; as many as check_ranks() allows."""
    while len(values) > 1:
        values = [_of_two(a, b, dot) for a, b in zip(values[::2], values[1::2], strict=True)]
    return values[0]


def check_ranks(size: int, where: str) -> None:
    """NotImplementedError, as in Horovod, if Adasum cannot pair so many ranks."""
    if size & (size - 1):
        raise NotImplementedError(f"Adasum needs a number of ranks that is a power of two; {where} has {size}")


def _of_two(a: Value, b: Value, dot: Callable[[Value, Value], float]) -> Value:
    both = dot(a, b)
    return a * _share(both, dot(a, a)) + b * _share(both, dot(b, b))


def _share(both: float, own: float) -> float:
    return 1.0 - both / (2.0 * own) if own > 0.0 else 1.0
