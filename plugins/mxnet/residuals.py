"""What encodings have left out of gradients so far. The daemons keep it; no checkpoint does."""

from deft import world

from .engine import mxnet_errors, wait_for_all
from .exchange import Sums


@mxnet_errors
def flush_residuals():
    """Has the gradients of the next step travel as they are, and bring what encodings have left out so far.

    Call it on all ranks before the same step, the last one before a checkpoint. After that step nothing is missing.
    """
    wait_for_all()
    for one, _ in world.dependents():
        if isinstance(one, Sums) and one.group is not None and one.group.views:  # it has an arena
            one.group.send_residuals()
