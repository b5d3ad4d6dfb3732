"""init() for TensorFlow: a policy that delays updates plans without delays, because a graph applies what it has."""

import logging

import deft
from deft import world

log = logging.getLogger("deft.tensorflow")


def init(**options):
    """Attaches to this node's daemon and waits for the whole job; a second call does nothing.

    `options` are Deft's options by name (policy="bytescheduler", timeout="5s") and win over DEFT_* variables.
    """
    delays = deft.policy_traits(options.get("policy")).delays_updates
    if delays:
        options["max_staleness_steps"] = 0
    world.init(**options)
    if delays and world.rank() == 0:
        log.info("deft.tensorflow applies each gradient in its own step: max_staleness_steps is 0")
