"""What this thread is in the middle of, by the frames of its Python code."""

import sys


def frames_of(code):
    """The frames that run `code`, the innermost first. Whoever keeps a frame keeps all of its variables."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code is code:
            yield frame
        frame = frame.f_back


def runs(code):
    """Whether this thread runs `code`."""
    return next(frames_of(code), None) is not None
