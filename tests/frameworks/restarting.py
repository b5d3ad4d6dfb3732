"""A daemon that is killed amid a job and started again, for elastic trainings of every framework."""

import os
import signal
import threading


class Victim:
    """Rank 1 kills a process, once."""

    def __init__(self, pid):
        self._pid = pid

    def kill(self):
        from deft import world

        pid, self._pid = self._pid, None
        if pid and world.rank() == 1:
            os.kill(pid, signal.SIGKILL)


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
