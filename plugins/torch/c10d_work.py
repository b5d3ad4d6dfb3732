"""A collective of torch.distributed that Deft runs: what dist.all_reduce(..., async_op=True) gives.

work = DeftWork([tensor])
operation.when_done(lambda _error: work.end_after(None, lambda: operation.finish(address)))
work.wait()                      # DistBackendError with Deft's text if it failed
work.get_future().wait()         # [tensor]
"""

import threading

import torch
import torch.distributed as dist

from .c10d_futures import threads
from .compiling import hidden_methods


@hidden_methods
class DeftWork(dist.Work):
    """end() is called once, from any thread. A wait can be interrupted by Ctrl-C and by other signal handlers.

    `what` it is, for messages. `limit_s`: how long wait() waits if it is not told."""

    def __init__(self, tensors, what="the operation", limit_s=None):
        super().__init__()
        self._what, self._limit_s = what, limit_s
        self.calls_back = True  # a script may have callbacks on the future
        self._error = None
        self._ended = threading.Event()
        self._source = torch.futures.Future()
        # C++ code sees an error only in a future whose callback has raised.
        self._future = self._source.then(self._outcome)
        self._tensors = tensors

    def end(self, error=None, result=None):
        """The tensors hold the result, or `result` does, or `error` came instead."""
        if error is not None:
            self._error = as_backend_error(error)
        if result is not None:
            self._tensors = result
        self._ended.set()
        if self.calls_back:
            threads.run(self._set_result)
        else:
            self._set_result()

    def end_after(self, error, finish):
        """Calls finish(), unless `error` came, and ends: nobody would hear of an exception on a thread of libdeft."""
        if error is None:
            try:
                finish()
            except Exception as failure:
                error = failure
        self.end(error)

    def wait(self, timeout=None):
        await_event(self._ended, self._what, timeout, self._limit_s)
        if self._error is not None:
            raise self._error
        return True

    def get_future(self):
        return self._future

    def is_completed(self):
        return self._ended.is_set()

    def is_success(self):
        return self._ended.is_set() and self._error is None

    def exception(self):
        return self._error

    def result(self):
        return self._tensors

    def synchronize(self):
        self.wait()

    def _set_result(self):
        self._source.set_result(None)

    def _outcome(self, _source):
        if self._error is not None:
            raise self._error
        return self._tensors


def await_event(event, what, timeout, limit_s):
    """Raises a DistBackendError about `what` after `timeout`, or else after `limit_s`. Both may be None."""
    seconds = timeout.total_seconds() if timeout else limit_s
    if not event.wait(seconds or None):
        raise dist.DistBackendError(f"{what} did not end within {seconds:g} s")


def as_backend_error(error):
    """The error that torch.distributed's users expect, with Deft's text."""
    return error if isinstance(error, dist.DistBackendError) else dist.DistBackendError(str(error))
