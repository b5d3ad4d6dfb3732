"""Names by which ranks match their collectives and their tensors. Needs no framework."""

import itertools
from collections.abc import Iterable

_KINDS = ("allreduce", "allgather", "alltoall", "barrier", "broadcast", "reducescatter", "sparse")
_unnamed = {kind: itertools.count() for kind in _KINDS}


def wire_name(kind: str, name: str | None) -> str:
    """The name under which a collective travels. Calls without a name match in the order in which they are made."""
    return f"{kind}.{name}" if name is not None else f"{kind}.noname.{next(_unnamed[kind])}"


def check_named(pairs: Iterable) -> list[tuple]:
    """`named_parameters` as the user gave them, as a list; ValueError if they are no pairs or names repeat."""
    named = list(pairs)
    if not all(isinstance(pair, tuple) and len(pair) == 2 for pair in named):
        raise ValueError(
            "named_parameters should be a sequence of tuples (name, parameter), as model.named_parameters()"
        )
    names = [name for name, _ in named]
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ValueError(f"names in named_parameters must differ; found more than once: {', '.join(twice)}")
    return named


def in_forward_order(named: Iterable[tuple], own: Iterable[object]) -> list[tuple]:
    """The first (name, parameter) of each parameter that is in `own`; ValueError if one of those has no name."""
    named, ids = list(named), {id(param) for param in own}
    unnamed = len(ids - {id(param) for _, param in named})
    if unnamed:
        raise ValueError(f"named_parameters was given, but {unnamed} of the optimizer's parameters are not in it")
    first: dict[int, tuple] = {}
    for name, param in named:
        if id(param) in ids:
            first.setdefault(id(param), (name, param))
    return list(first.values())
