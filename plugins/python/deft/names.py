"""Names by which ranks match their collectives and their tensors. Needs no framework."""

import collections
import itertools
import re
import weakref
from collections.abc import Iterable, Iterator

from deft.session import Session

# Of a session and a kind; sessions are those of process sets. None: of the session of init(), for all times.
_unnamed: dict[str, Iterator[int]] = collections.defaultdict(itertools.count)
_unnamed_of: "weakref.WeakKeyDictionary[Session, dict[str, Iterator[int]]]" = weakref.WeakKeyDictionary()

_KERAS_COUNTER = re.compile(r"_\d+(?=/|$)")


def wire_name(kind: str, name: str | None, used: Session | None = None) -> str:
    """The name under which a collective travels. Calls without a name match in the order in which they are made.

    `used`: the session of the collective; None: that of init()."""
    if name is not None:
        return f"{kind}.{name}"
    if used is None:
        return f"{kind}.noname.{next(_unnamed[kind])}"
    counters = _unnamed_of.setdefault(used, collections.defaultdict(itertools.count))
    if used.joining.round:  # all ranks have joined, with different numbers of calls: they count anew
        kind += f".joined{used.joining.round}"
    return f"{kind}.noname.{next(counters[kind])}"


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


def common_name(place: int, name: str) -> str:
    """A name of Keras's variable `name` that is the same on all ranks: "seq_1/dense_5/kernel" -> "2.seq/dense/kernel".

    Keras counts the layers that a process has made, and a rank may have made others before."""
    return f"{place}.{_KERAS_COUNTER.sub('', name)}"
