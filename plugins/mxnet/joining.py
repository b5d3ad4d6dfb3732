"""join() for ranks that have no more batches."""

from deft import joining, world
from deft.process_sets import global_process_set

from .engine import mxnet_errors, wait_for_all
from .exchange import Sums


@mxnet_errors
def join():
    """Says that this rank has no more data, and waits until all ranks have said so. Gives the rank that was the last.

    Until then this rank counts as zero in the others' allreduces, and averages are still divided by the number of all
    ranks. The others' updates are not made here, so broadcast the parameters of the last rank afterwards.
    """
    session = global_process_set.session()
    mine = [one for one, used in world.dependents() if used is session and isinstance(one, Sums)]
    for one in mine:
        one.push_zeros()
    wait_for_all()
    return joining.join(session, mine)
