"""The collectives of torch.distributed that gloo runs.

The ranks of a group first agree on what they are going to do: through Deft in a group of all ranks
(c10d_agreement.py), through a gloo group of its own in a subgroup (c10d_subgroup.py). If they differ, all get the same
error, and gloo hears nothing of it. A call waits for no rank: it notes what is to begin when all agree. Operations
begin in the order of their calls, because gloo matches them by their order. torch's C++ may ask gloo for something at
once, in between, so that has connections of its own.

Operations that FSDP2 or tensor parallelism calls for each layer go to gloo at once, because an agreement would take
longer than they do: ranks agree on them only if TORCH_DISTRIBUTED_DEBUG=DETAIL asks for it.
"""

import collections
import dataclasses
import functools
import threading
from typing import NamedTuple

from deft import DeftError

import torch
import torch.distributed as dist

from .c10d_agreement import Alike, ByDeft, count_of, splits_of_lists, splits_of_rows, terms_of
from .c10d_futures import threads
from .c10d_subgroup import ByGloo
from .c10d_work import DeftWork, as_backend_error, await_event
from .compiling import hidden, hidden_methods


class _Kind(NamedTuple):
    what: str
    tensors: int = 1  # how many arguments hold them; then come options
    agreed: int = 0  # the place of those that have equally many elements on all ranks
    larger: int | None = None  # the place of those that have as many for each rank; a rank may have none
    is_frequent: bool = False
    is_frequent_in_subgroups: bool = False


_KINDS = {
    "barrier": _Kind("barrier", 0),
    "broadcast": _Kind("broadcast"),
    "reduce": _Kind("reduce"),
    "allreduce": _Kind("all_reduce by gloo", is_frequent_in_subgroups=True),
    "allreduce_coalesced": _Kind("all_reduce_coalesced"),
    "allgather": _Kind("all_gather", 2, agreed=1, larger=0),
    "_allgather_base": _Kind("all_gather_into_tensor", 2, agreed=1, larger=0, is_frequent=True),
    "gather": _Kind("gather", 2, agreed=1, larger=0),
    "scatter": _Kind("scatter", 2, agreed=0, larger=1),
    "reduce_scatter": _Kind("reduce_scatter", 2, agreed=1),
    "_reduce_scatter_base": _Kind("reduce_scatter_tensor", 2, agreed=0, larger=1, is_frequent=True),
}
_NEW_NAMES = {  # of torch 2.13
    "all_gather_single": "_allgather_base",
    "reduce_scatter_single": "_reduce_scatter_base",
    "all_to_all_single": "alltoall_base",
}


@hidden_methods
class GlooWork(dist.Work):
    """An operation of gloo that begins when all ranks agree. agreed() is called once, from any thread."""

    def __init__(self, what, limit_s, begin):
        super().__init__()
        self._what, self._limit_s, self._begin = what, limit_s, begin
        self._settled = threading.Event()  # it has begun, or never will
        self._error = None
        self._gloo = None  # gloo's Work
        self._future = None
        self._lock = threading.Lock()

    def agreed(self, error):
        """Begins the operation, unless `error` came instead."""
        begin, self._begin = self._begin, None
        if error is None:
            try:
                self._gloo = begin()
            except Exception as failure:  # gloo refuses the tensors
                error = failure
        self._error = None if error is None else as_backend_error(error)
        self._settled.set()

    def wait(self, timeout=None):
        await_event(self._settled, self._what, timeout, self._limit_s)
        if self._error is not None:
            raise self._error
        return self._gloo.wait(timeout) if timeout else self._gloo.wait()

    def get_future(self):
        with self._lock:
            if self._future is None:
                ends = DeftWork(())
                self._future = ends.get_future()
                threads.run(functools.partial(self._end, ends))
        return self._future

    def _end(self, ends):
        """Waits on a thread of its own: gloo's must not run Python when the process ends."""
        try:
            self._settled.wait()
            if self._error is not None:
                raise self._error
            self._gloo.wait()
            ends.end(result=self._gloo.get_future().value())
        except Exception as error:
            ends.end(error)

    def is_completed(self):
        return self._settled.is_set() and (self._gloo is None or self._gloo.is_completed())

    def is_success(self):
        return self.is_completed() and self._error is None and self._gloo.is_success()

    def exception(self):
        return self._error if self._gloo is None else self._gloo.exception()

    def result(self):
        self.wait()
        return self._gloo.result()

    def synchronize(self):
        self.wait()


@dataclasses.dataclass
class _Call:
    work: GlooWork
    is_settled: bool = False  # the ranks agree, or an error came
    error: Exception | None = None


class _InOrder:
    """Begins works in the order of add(), each when all ranks agree on it. `asking` is a ByDeft or a ByGloo."""

    def __init__(self, asking):
        self._asking = asking
        self._lock = threading.RLock()  # what is asked may be settled at once
        self._waiting = collections.deque()  # of _Call

    def add(self, work, agreement):
        call = _Call(work)
        try:
            with self._lock:
                self._waiting.append(call)
                ask = self._asking.next(agreement)
            ask(functools.partial(self._settle, call))
        except (DeftError, ValueError, RuntimeError) as error:
            self._settle(call, functools.partial(_raise, error))
        return work

    def _settle(self, call, finish):
        try:
            finish()
        except Exception as error:
            call.error = error
        with self._lock:
            call.is_settled = True
            while self._waiting and self._waiting[0].is_settled:
                first = self._waiting.popleft()
                first.work.agreed(first.error)


def _raise(error):
    raise error


@hidden_methods
class GlooCollectives(dist.ProcessGroup):
    """What gloo runs of a process group. open_gloo() comes before all else; `_gloo` is of what torch itself asks."""

    def open_gloo(self, options, store, prefix, numbers):
        """`prefix` and `numbers` name what all ranks of the job agree on; a prefix of None: this is a subgroup."""
        place = (options.group_rank, options.group_size, options.timeout)
        self._gloo = self._agreed_gloo = dist.ProcessGroupGloo(store, *place)
        self._terms_gloo = self._in_order = None
        if options.group_size == 1:
            return
        self._agreed_gloo = dist.ProcessGroupGloo(dist.PrefixStore("agreed", store), *place)
        if prefix is not None:
            self._in_order = _InOrder(ByDeft(prefix, numbers))
        else:
            self._terms_gloo = dist.ProcessGroupGloo(dist.PrefixStore("terms", store), *place)
            self._in_order = _InOrder(ByGloo(self._terms_gloo, options.global_ranks_in_group))

    def gloos(self):
        return {self._gloo, self._agreed_gloo, self._terms_gloo} - {None}

    def limit_s(self, arguments=()):
        """How long a wait may take, by an argument that has c10d's options."""
        for argument in arguments:
            timeout = getattr(argument, "timeout", None)
            if timeout is not None and timeout.total_seconds() > 0:  # else it is not given
                return timeout.total_seconds()
        return self._gloo.options._timeout.total_seconds()  # a script may have changed it

    def ask_gloo(self, method, agreement, arguments, named):
        """Calls a method of gloo's process group, when all ranks agree."""
        call = getattr(self._agreed_gloo, method)
        if self._in_order is None:
            return call(*arguments, **named)
        self._agreed_gloo._set_default_timeout(self._gloo.options._timeout)
        limit_s = self.limit_s([*arguments, *named.values()])
        begin = functools.partial(call, *arguments, **named)
        return self._in_order.add(GlooWork(agreement.terms, limit_s, begin), agreement)

    def alltoall(self, outputs, inputs, *options, **named):
        agreement = splits_of_lists(outputs, inputs)
        return self.ask_gloo("alltoall", agreement, (outputs, inputs, *options), named)

    def alltoall_base(self, output, given, output_splits, input_splits, *options, **named):
        agreement = splits_of_rows(output, given, output_splits, input_splits, self.size())
        arguments = (output, given, output_splits, input_splits, *options)
        return self.ask_gloo("alltoall_base", agreement, arguments, named)

    def allgather_into_tensor_coalesced(self, outputs, inputs, *options, **named):
        return _each(self._allgather_base, outputs, inputs, *options, **named)

    def reduce_scatter_tensor_coalesced(self, outputs, inputs, *options, **named):
        return _each(self._reduce_scatter_base, outputs, inputs, *options, **named)

    def send(self, *arguments, **named):
        return self._gloo.send(*arguments, **named)

    def recv(self, *arguments, **named):
        return self._gloo.recv(*arguments, **named)


def _each(function, outputs, inputs, *options, **named):
    """Several operations as one that has ended."""
    for work in [function(output, given, *options, **named) for output, given in zip(outputs, inputs)]:
        work.wait()
    ended = DeftWork(outputs)
    ended.end()
    return ended


def _is_detailed():
    return dist.get_debug_level() == dist.DebugLevel.DETAIL


def _agreement_of(kind, arguments, named, size):
    terms = kind.what
    if kind.tensors > 0:
        terms += f" of {count_of(arguments[kind.agreed])}"
    if kind.larger is not None:
        terms += _misfit(arguments[kind.agreed], arguments[kind.larger], size)
    return Alike(terms + "".join(map(terms_of, [*arguments[kind.tensors :], *named.values()])))


def _misfit(smaller, larger, size):
    """If a rank has tensors for all ranks of another size, the others differ from it."""
    elements, of_all = _elements(smaller), _elements(larger)
    return "" if of_all is None or of_all == elements * size else f" for {of_all} elements in all"


def _elements(tensors):
    """None: there are no tensors."""
    if isinstance(tensors, torch.Tensor):
        return tensors.numel()
    counts = [_elements(one) for one in tensors]
    return None if not counts or None in counts else sum(counts)


def _method(name, kind):
    def method(self, *arguments, **named):
        is_frequent = kind.is_frequent or (kind.is_frequent_in_subgroups and self._terms_gloo is not None)
        if is_frequent and not _is_detailed():
            return getattr(self._gloo, name)(*arguments, **named)
        return self.ask_gloo(name, _agreement_of(kind, arguments, named, self.size()), arguments, named)

    return hidden(method)


for _name, _kind in _KINDS.items():
    setattr(GlooCollectives, _name, _method(_name, _kind))
for _new, _old in _NEW_NAMES.items():
    setattr(GlooCollectives, _new, getattr(GlooCollectives, _old))
