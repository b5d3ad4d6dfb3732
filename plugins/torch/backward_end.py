"""What happens when a backward has run: the generations that it fills are completed and waited for.

One backward may reach the parameters of several optimizers, on each rank in another order. So the gradients of all of
them are handed over before anybody waits, and all ranks wait for them in the same order.
"""

import functools
import weakref

from deft.gradient_round import Phase

import torch

from .nested_backward import call_in_outermost, is_nested, running_backward

_queue_callback = torch.autograd.Variable._execution_engine.queue_callback
_reached = []  # (what running_backward() gave, weak reference to a buffer)


def end_with_backward(buffer):
    """Has the buffer's listener told when the backward that runs has ended."""
    backward = running_backward()
    # An entry of another backward is left over from one that failed.
    _reached[:] = [(other, ref) for other, ref in _reached if other is backward and ref() is not buffer]
    _reached.append((backward, weakref.ref(buffer)))
    _queue_callback(functools.partial(_end, buffer, backward))


def _end(buffer, backward):
    """A backward that is nested in another one leaves a generation that it does not fill to the outermost."""
    if buffer.round.phase is not Phase.OPEN:
        return  # it has ended together with another one
    if not is_nested():
        _end_all({buffer, *_open(backward)})
    elif buffer.round.all_handed():
        _end_all({buffer})
    else:
        call_in_outermost(buffer.end_with_backward)


def _open(backward):
    """The buffers that this backward has reached, and that have not ended."""
    reached = [ref() for other, ref in _reached if other is backward]
    _reached.clear()
    return [buffer for buffer in reached if buffer is not None and buffer.round.phase is Phase.OPEN]


def _end_all(buffers):
    alike = sorted(buffers, key=lambda buffer: (buffer.process_set.process_set_id, buffer.name))  # on all ranks
    for buffer in alike:
        buffer.task = -1
    # A buffer that is declared hands over without waiting, so it comes before those that have to be declared.
    waiting = [b for b in sorted(alike, key=lambda buffer: buffer.arena is None) if b.listener.backward_ends()]
    for buffer in alike:
        if buffer in waiting:
            buffer.listener.await_averages()
