"""An agent's parent: ends what a killed agent leaves behind.

Workers and daemon of a killed agent die with it: the kernel sees to that. What workers have put into sessions of their
own does not. The keeper adopts such processes then, and ends them. It does nothing else.
"""

from __future__ import annotations

import os
import signal

from deft_launcher import strays, wire
from deft_launcher.child import IGNORED_BY_AGENT, LIBC, PR_SET_PDEATHSIG


def part_from_keeper() -> int | None:
    """Makes a child, which goes on as the agent, with None. This process becomes its keeper, until the agent has ended:
    then it gets the status with which it is to end.
    """
    for number in IGNORED_BY_AGENT:
        signal.signal(number, signal.SIG_IGN)
    keeper = os.getpid()
    agent = os.fork()
    if agent == 0:
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)  # without its keeper it ends all in good order
        return None if os.getppid() == keeper else 1
    strays.adopt()
    signal.signal(signal.SIGTERM, lambda number, _: os.kill(agent, number))
    leave_streams_to_agent()
    status = os.waitstatus_to_exitcode(os.waitpid(agent, 0)[1])
    strays.end((), lambda: False)
    return wire.shell_status(status)


def leave_streams_to_agent() -> None:
    """They end with the agent, and so its launcher learns of the end."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):
        os.dup2(nowhere, descriptor)
    os.close(nowhere)
