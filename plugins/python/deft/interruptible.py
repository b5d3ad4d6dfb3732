"""Calls that block for long, while Python runs signal handlers.

session = interruptible(lambda: attach(), undo=close)
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from deft._native import DeftError

Made = TypeVar("Made")


def interruptible(function: Callable[[], Made], undo: Callable[[Made], object]) -> Made:
    """Gives what function() gives. It runs on another thread, because Python runs no handler while a C function blocks.

    If a handler raises meanwhile, as Ctrl-C does, `undo` gets what function() makes later."""
    made: Future[Made] = Future()

    def run() -> None:
        try:
            made.set_result(function())
        except BaseException as error:
            made.set_exception(error)

    threading.Thread(target=run, name="deft opens", daemon=True).start()
    try:
        return made.result()
    except BaseException as error:
        made.add_done_callback(lambda late: None if late.exception() else undo(late.result()))
        if isinstance(error, DeftError):
            raise error.with_traceback(None) from None  # the frames of the other thread tell users nothing
        raise
