"""init() and shutdown() for MXNet: the engine applies the sum of a step in that step.

What ends a session waits for the engine: an operation under way would become an error.
"""

from deft import process_sets, world
from deft.undelayed import init_undelayed

from .engine import wait_for_all
from .importing import check_engine


def init(comm=None, process_sets=None, **options):
    """Attaches to this node's daemon and waits for the whole job; a second call does nothing.

    `process_sets`: a list of ProcessSet, which all ranks give alike. `options` are Deft's options by name
    (policy="bytescheduler", timeout="5s") and win over DEFT_* variables.
    """
    check_engine()
    init_undelayed("deft.mxnet", {"comm": comm, "process_sets": process_sets, **options})


def shutdown():
    """Waits for the operations under way and leaves the job; without init() it does nothing."""
    if world.is_initialized():
        wait_for_all()
    world.shutdown()


def remove_process_set(process_set):
    """Ends a process set, on all ranks. False if it is not in use, or has all ranks of the job by itself."""
    wait_for_all()
    return process_sets.remove_process_set(process_set)
