"""MG-WFBP with real daemons: it measures, then sends neighbours as one operation, and the sums are what they were."""

from pathlib import Path
from typing import NamedTuple

import pytest
from cluster import TIMEOUT_S, Cluster, wait_for_line, wait_until

SUMS = """
import hashlib
DTYPES = [deft.FLOAT32, deft.FLOAT16]
SIZES = [150_001, 7, 1009, 4096, 3000, 40009, 1, 2048, 5000]  # the others are ready while the first is on its way
tensors = [deft.Tensor(f"t{d}.{n}", d, (n,), 100 - i * len(SIZES) - j)
           for i, d in enumerate(DTYPES) for j, n in enumerate(SIZES)]
kinds = {deft.FLOAT32: np.float32, deft.FLOAT16: np.float16}
group = session.declare("mixed", tensors)
def await_end():
    while not os.path.exists(os.environ["END"]):
        time.sleep(0.01)
# Small whole numbers are exact in every type, so the sum must be exact, too. A tensor's are a piece of a long row.
own = np.resize(np.arange(17) - 8, max(SIZES) + 17)
summed = np.resize(sum((np.arange(17) + r) % 17 - 8 for r in range(size)), max(SIZES) + 17)
digest = hashlib.sha256()
for step in range(int(os.environ["STEPS"])):
    session.stage(deft.FORWARD, step)
    session.stage(deft.BACKWARD, step)
    for index, tensor in enumerate(tensors):
        vector(group, index, kinds[tensor.dtype])[:] = own[(step * index + rank) % 17:][:tensor.shape[0]]
    # All at once, so that merging never waits for a gradient: whatever the machine does, it saves a start each.
    owed = 1 if step == 14 and rank == int(os.environ.get("LATE", -1)) else 0
    group.ready(0, len(tensors) - owed, step)
    if step == 14 and "LATE" in os.environ:
        say("all but one")
    if owed:
        await_end()
        group.ready(len(tensors) - 1, 1, step)
    for index, tensor in enumerate(tensors):
        group.wait(index, 1, step)
        got = vector(group, index, kinds[tensor.dtype])
        assert (got == summed[step * index % 17:][:tensor.shape[0]]).all(), (tensor.name, step)
        digest.update(got.tobytes())
say(digest.hexdigest())
await_end()
session.close()
"""
STEPS = 16


class Trained(NamedTuple):
    digests: set[str]
    merged: int
    parts: int
    merging: list
    log: str


def train(policy: str, nodes: int, per_node: int, links: str) -> Trained:
    with Cluster(nodes, links=links, partition_bytes="16KB") as cluster:
        end = Path(cluster.folder.name, "end")
        options = {"DEFT_POLICY": policy, "DEFT_BUCKETING": "tensor", "STEPS": str(STEPS), "END": str(end)}
        workers = cluster.start(SUMS, per_node, **options)
        digests = {wait_for_line(worker, "") for worker in workers}
        statuses = [job for node in range(nodes) for job in cluster.status(node)["jobs"]]
        end.touch()
        cluster.finish(workers)
        merged = {sum(link["merged_parts"] for link in status["links"]) for status in statuses}
        parts = {sum(link["parts"] for link in status["links"]) for status in statuses}
        assert len(merged) == len(parts) == 1, "the nodes started other operations"
        return Trained(digests, merged.pop(), parts.pop(), statuses[0]["leader"]["merging"], cluster.log(0))


@pytest.mark.parametrize("links", ["gloo:lo", "tcp:lo", "gloo:lo,tcp:lo"])
@pytest.mark.parametrize("nodes, per_node", [(2, 1), (2, 2), (3, 1)])
def test_merged_operations_carry_the_exact_sums(nodes, per_node, links):
    fifo = train("fifo", nodes, per_node, links)
    mgwfbp = train("mgwfbp", nodes, per_node, links)
    assert len(fifo.digests) == 1 and mgwfbp.digests == fifo.digests
    assert fifo.merged == 0 and fifo.merging == []
    [chosen] = mgwfbp.merging
    assert 2 <= chosen["transfers"] < chosen["buckets"], "two types are two operations at least"
    assert 8 <= chosen["from_step"] < STEPS
    assert mgwfbp.merged > 0
    if "," not in links:  # on several links the number of parts changes with what each of them has to do
        assert mgwfbp.parts < fifo.parts
    assert f"merged {chosen['buckets']} buckets into {chosen['transfers']} transfers" in mgwfbp.log


def status_of_a_stall(late: int) -> dict:
    with Cluster(2, timeout=f"{2 * TIMEOUT_S:g}s", partition_bytes="16KB") as cluster:  # a stall is told after a third
        end = Path(cluster.folder.name, "end")
        options = {"DEFT_BUCKETING": "tensor", "STEPS": str(STEPS), "END": str(end), "LATE": str(late)}
        workers = cluster.start(SUMS, DEFT_POLICY="mgwfbp", **options)
        for worker in workers:
            wait_for_line(worker, "all but one")  # until then any worker may be late on a busy machine
        job = {}

        def late_alone() -> bool:
            job.update(cluster.status(0)["jobs"][0])
            return {stall["rank"] for stall in job["stalls"]} == {late}

        wait_until(late_alone, what="the stall in the status")
        end.touch()
        cluster.finish(workers)
        return job


@pytest.mark.parametrize("late", [0, 1])
def test_the_worker_and_the_tensor_for_which_merged_ones_wait_are_named(late):
    job = status_of_a_stall(late)
    assert job["leader"]["merging"], "nothing was merged before"
    owed = {(stall["rank"], stall["owes"], stall["step"]) for stall in job["stalls"]}
    assert (late, "t3.5000", 14) in owed and all(rank == late for rank, _, _ in owed)
