"""Elastic trainings of every framework: a daemon that is killed amid a job and started again, and what ends them."""

import os
import signal
import threading

import pytest

STEPS, STEPS_TO_COMMIT, KILLED_AT = 8, 2, 5


class Victim:
    """Rank 1 kills a process, once."""

    def __init__(self, pid):
        self._pid = pid

    def kill(self):
        from deft import world

        pid, self._pid = self._pid, None
        if pid and world.rank() == 1:
            os.kill(pid, signal.SIGKILL)


def train_through_restart(run, state, pid, make_step):
    """Makes each of STEPS steps by make_step(number), in a function that `run`, the framework's, decorates."""
    from deft import world

    victim, begun, resets = Victim(pid), [], []
    state.register_reset_callbacks([lambda: resets.append(world.size())])

    @run
    def train(state):
        begun.append(state.step)
        while state.step < STEPS:
            if state.step == KILLED_AT:
                victim.kill()
            make_step(state.step)
            state.step += 1
            if state.step % STEPS_TO_COMMIT == 0:
                state.commit()
        return "done"

    assert train(state) == "done"
    assert (begun, resets) == ([0, KILLED_AT - 1], [2])


def check_that_errors_end_it(run, state, *errors):
    """`errors`: (class, text, function that raises it); `state` has batch=0. A lost job alone is a reason to go on."""
    calls = []

    @run
    def wrong(state, call):
        calls.append(state.batch)
        call()

    for error, text, call in errors:
        with pytest.raises(error, match=text):
            wrong(state, call)
    assert calls == [0] * len(errors)


def run_with_restart(cluster, function):
    """Runs function(pid of the daemon of node 1), and starts that daemon again when it has ended."""
    daemon = cluster.daemons[1]

    def start_again():
        daemon.wait()
        cluster.restart_daemon(1)

    restarter = threading.Thread(target=start_again)
    restarter.start()
    try:
        return cluster.run(function, daemon.pid)
    finally:
        daemon.kill()  # if the test has failed before: then the thread ends, too
        restarter.join()
