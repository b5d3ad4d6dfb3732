"""A daemon whose job waits sleeps: laptops, and the cores of other jobs, are left alone."""

import time
from pathlib import Path

from cluster import Cluster, wait_for_line

SECONDS = 2
MOST_A_SECOND = 40  # wake-ups of all threads: heartbeats and looks at deadlines
WAITS = """
group = session.declare("sgd", [deft.Tensor("w", deft.FLOAT32, (1 << 16,), 0)])
group.ready(0, 1, 0)
group.wait(0, 1, 0)
say("waits")
while not os.path.exists(os.environ["GO_ON"]):
    time.sleep(0.05)
session.close()
say("done")
"""


def wake_ups(pid: int) -> int:
    """How often the threads of a process have gone to sleep so far."""
    texts = [(thread / "status").read_text() for thread in Path(f"/proc/{pid}/task").iterdir()]
    return sum(int(text.split("voluntary_ctxt_switches:")[1].split()[0]) for text in texts)


def wake_ups_a_second(pid: int) -> float:
    before = wake_ups(pid)
    time.sleep(SECONDS)
    return (wake_ups(pid) - before) / SECONDS


def test_a_daemon_whose_job_waits_sleeps(tmp_path):
    go_on = tmp_path / "go-on"
    with Cluster(2) as cluster:
        workers = cluster.start(WAITS, GO_ON=str(go_on))
        for worker in workers:
            wait_for_line(worker, "waits")
        time.sleep(1)  # the job's first seconds
        assert max(wake_ups_a_second(daemon.pid) for daemon in cluster.daemons) < MOST_A_SECOND
        go_on.touch()
        assert all("done" in output for output in cluster.finish(workers))
