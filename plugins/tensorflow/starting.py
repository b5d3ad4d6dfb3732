"""init() for TensorFlow: a graph applies the averages of its own step, and Ctrl-C ends its waits."""

from deft.interrupts import listen
from deft.undelayed import init_undelayed


def init(comm=None, process_sets=None, **options):
    """Attaches to this node's daemon and waits for the whole job; a second call does nothing.

    `process_sets`: a list of ProcessSet, which all ranks give alike. `options` are Deft's options by name
    (policy="bytescheduler", timeout="5s") and win over DEFT_* variables.
    """
    init_undelayed("deft.tensorflow", {"comm": comm, "process_sets": process_sets, **options})
    listen()
