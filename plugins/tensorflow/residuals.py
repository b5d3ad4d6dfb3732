"""What encodings have left out of gradients so far. The daemons keep it; no checkpoint does."""

from .averaging import send_residuals
from .host import tensorflow_errors


@tensorflow_errors
def flush_residuals():
    """Has the gradients of the next step travel as they are, and bring what encodings have left out so far.

    Call it on all ranks before the same step, the last one before a checkpoint. After that step nothing is missing.
    Not for graphs.
    """
    send_residuals()
