"""The hooks that run when a parameter's gradient exists.

torch never frees a cycle through a parameter's hook, so a hook holds nothing that holds parameters: the buffer and the
gradient are weak references.
"""

import weakref

import torch

current_task = torch._C._current_graph_task_id


def install(param, hook):
    """What remove_all() takes off again. torch refuses a hook on a frozen parameter, which may thaw later."""
    is_frozen = not param.requires_grad
    param.requires_grad_(True)
    try:
        return param, param.register_post_accumulate_grad_hook(hook)
    finally:
        param.requires_grad_(not is_frozen)


def install_before(param, hook):
    """The same for a hook that runs before autograd adds to p.grad."""
    return param, param.register_hook(hook)


def remove_all(installed):
    """Empties the list. While a cycle is collected, its weak references are dead, and handle.remove() works by one."""
    for param, handle in installed:
        handle.remove()
        for hooks in (param._post_accumulate_grad_hooks, param._backward_hooks):
            (hooks or {}).pop(handle.id, None)
    installed.clear()


def observing(buffer, index, gradient):
    """Of the first backward: only notes which gradient appeared."""
    buffer_of, gradient_of = weakref.ref(buffer), weakref.ref(gradient)

    def observe(_param):
        buffer = buffer_of()
        if buffer is not None:
            buffer.observe(index, gradient_of())

    return observe


def handing_over(buffer, gradient):
    """Hands the gradient over as soon as it exists."""
    return buffer.writer.hook(buffer, gradient)


def accumulating(buffer, gradient):
    """Lets autograd add up in p.grad and hands over in the last of the passes."""
    hand_over, place, passes = handing_over(buffer, gradient), gradient.place, buffer.round.passes
    marks, counts, seen = buffer.round.marks, buffer.round.counts, [None]
    buffer_of, gradient_of = weakref.ref(buffer), weakref.ref(gradient)

    def count(param):
        buffer = buffer_of()
        if buffer is None:
            return
        if marks[place]:
            buffer.check_again(gradient_of())
        restarted = counts[place] and (seen[0] is None or seen[0]() is not param.grad)
        counts[place] = 1 if restarted else counts[place] + 1
        if counts[place] < passes:
            seen[0] = weakref.ref(param.grad)
            return
        counts[place] = 0
        seen[0] = None
        hand_over(param)

    return count


def noting_sparse(buffer):
    """Of a sparse gradient: it is gathered after the backward, which this hook lets begin."""
    buffer_of = weakref.ref(buffer)

    def note(_param):
        buffer = buffer_of()
        if buffer is not None and buffer.round.passes == 1 and buffer.task != current_task():
            buffer.begin_backward()

    return note
