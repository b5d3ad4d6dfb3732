"""join() for ranks that have no more batches."""

from deft import joining
from deft.process_sets import global_process_set

from .averaging import groups_for_join
from .host import tensorflow_errors


@tensorflow_errors
def join():
    """Says that this rank has no more data, and waits until all ranks have said so. Gives the rank that was the last.

    Until then this rank counts as zero in the others' allreduces, and averages are still divided by the number of all
    ranks. The others' updates are not made here, so broadcast the variables of the last rank afterwards. Not for
    graphs.
    """
    return joining.join(global_process_set.session(), groups_for_join(global_process_set))
