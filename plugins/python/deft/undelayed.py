"""init() for frameworks whose plugin applies each gradient in its own step. A policy that delays updates plans without
delays there."""

import deft
from deft import process_sets, world


def init_undelayed(package, options):
    """process_sets.init(**options) for `package` ("deft.tensorflow"), which is named in the log."""
    delays = deft.policy_traits(options.get("policy")).delays_updates
    if delays:
        options = {**options, "max_staleness_steps": 0}
    process_sets.init(**options)
    if delays and world.rank() == 0:
        world.log.getChild(package.removeprefix("deft.")).info(
            "%s applies each gradient in its own step: max_staleness_steps is 0", package
        )
