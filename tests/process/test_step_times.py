"""What a step takes each node's slowest worker, as the leader learns it: plans are made for the slowest of all."""

from pathlib import Path

from cluster import Cluster, wait_for_line

STEPS = 10
SLOWER_MS = 300  # far more than what a busy machine takes from the fast one in most of its steps

TRAIN = """
group = session.declare("g", [deft.Tensor("t", deft.FLOAT32, (50_000,), 0)])
for step in range(int(os.environ["STEPS"])):
    session.stage(deft.FORWARD, step)
    if rank == int(os.environ["SLOW"]):
        time.sleep(int(os.environ["SLOWER_MS"]) / 1000)
    session.stage(deft.BACKWARD, step)
    vector(group, 0, np.float32)[:] = 1
    group.ready(0, 1, step)
    group.wait(0, 1, step)
say("trained")
while not os.path.exists(os.environ["END"]):
    time.sleep(0.01)
session.close()
"""


def test_a_slow_worker_is_seen_and_those_that_wait_for_it_are_not_slow():
    with Cluster(2) as cluster:
        end = Path(cluster.folder.name, "end")
        options = {"STEPS": str(STEPS), "SLOWER_MS": str(SLOWER_MS), "SLOW": "3", "END": str(end)}
        workers = cluster.start(TRAIN, per_node=2, **options)
        for worker in workers:
            wait_for_line(worker, "trained")
        fast, slow = (node["step_us"] for node in cluster.status(0)["jobs"][0]["leader"]["nodes"])
        end.touch()
        cluster.finish(workers)
    assert slow >= 1000 * SLOWER_MS
    assert 0 < fast < slow / 2, "what it waited for counts as its own time"
