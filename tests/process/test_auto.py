"""The policy `auto` with real daemons, and `deft set`: policies change between steps, and no bit of the sums does."""

import subprocess
from pathlib import Path

import pytest
from cluster import BUILD, Cluster, wait_for_line, wait_until

SUMS = """
import hashlib
SIZES = [300_001, 7, 1009, 40096, 3000, 40009, 1, 2048, 150_000]
tensors = [deft.Tensor(f"t{n}", deft.FLOAT32, (n,), len(SIZES) - 1 - i) for i, n in enumerate(SIZES)]
group = session.declare("all", tensors)
digest = hashlib.sha256()
random = np.random.default_rng(rank)
for step in range(int(os.environ["STEPS"])):
    while step == 20 and os.environ.get("HOLD") and not os.path.exists(os.environ["HOLD"]):
        time.sleep(0.01)
    session.stage(deft.FORWARD, step)
    time.sleep(0.002)
    session.stage(deft.BACKWARD, step)
    for index, tensor in enumerate(tensors):
        vector(group, index)[:] = random.standard_normal(tensor.shape[0], dtype=np.float32)
        group.ready(index, 1, step)
    for index, tensor in enumerate(tensors):
        group.wait(index, 1, step)
        digest.update(vector(group, index).tobytes())
    if step == 10:
        say("ten steps")
say(digest.hexdigest())
while not os.path.exists(os.environ["END"]):
    time.sleep(0.01)
session.close()
"""


def deft_set(cluster: Cluster, node: int, policy: str, job: str) -> subprocess.CompletedProcess:
    command = [BUILD / "bin/deft", "set", f"policy={policy}", job, "--socket", cluster.socket(node)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def train(policy: str, nodes: int, per_node: int, steps: int = 40) -> tuple[set[str], list, str]:
    with Cluster(nodes, timeout="20s", partition_bytes="64KB") as cluster:
        end = Path(cluster.folder.name, "end")
        workers = cluster.start(SUMS, per_node, DEFT_POLICY=policy, STEPS=str(steps), END=str(end))
        for worker in workers:
            wait_for_line(worker, "ten steps")
        digests = {wait_for_line(worker, "") for worker in workers}
        policies = cluster.status(0)["jobs"][0]["leader"]["policies"]
        end.touch()
        cluster.finish(workers)
        return digests, policies, cluster.log(0)


@pytest.mark.parametrize("nodes, per_node", [(2, 2), (3, 1)])
def test_auto_follows_the_simulator_and_the_sums_are_fifos(nodes, per_node):
    fifo, unchanged, _ = train("fifo", nodes, per_node)
    digests, policies, log = train("auto", nodes, per_node)
    assert len(fifo) == 1 and digests == fifo
    assert unchanged == []
    first = policies[0]
    assert first["from_step"] >= 8, "it has to measure before"
    simulated = {row["policy"]: row["step_us"] for row in first["simulated"]}
    assert len(simulated) >= 7
    best = first["simulated"][0]
    if best["step_us"] < 0.99 * simulated["fifo (25 MB)"]:
        assert first["policy"] == best["policy"]
        assert first["before_us"] > 0
    else:
        assert first["policy"] == "fifo (25 MB)"
    assert f"policy {first['policy']} from step {first['from_step']} on, because the first profile" in log


def test_deft_set_changes_the_policy_of_a_running_job():
    fifo, _, _ = train("fifo", 2, 1, steps=60)
    with Cluster(2, timeout="20s", partition_bytes="64KB") as cluster:
        end, hold = Path(cluster.folder.name, "end"), Path(cluster.folder.name, "hold")
        options = {"DEFT_POLICY": "fifo", "DEFT_JOB": "mine", "STEPS": "60", "END": str(end), "HOLD": str(hold)}
        workers = cluster.start(SUMS, **options)
        for worker in workers:
            wait_for_line(worker, "ten steps")
        for policy in ("p3", "prophet"):  # the second one replaces the first one, which was not in force yet
            done = deft_set(cluster, 0, policy, "mine")
            assert (done.returncode, done.stdout) == (0, f"job mine: policy {policy} from the next step on\n")
        refusals = {
            (0, "knapsack", "mine"): "delays updates",
            (0, "fife", "mine"): "unknown policy 'fife'",
            (0, "p3", "yours"): "no job 'yours' runs on this daemon",
            (1, "p3", "mine"): f"run deft set on the node of rank 0, at {cluster.listen[0]}",
        }
        for arguments, words in refusals.items():
            refused = deft_set(cluster, *arguments)
            assert refused.returncode == 2 and words in refused.stderr, refused
        hold.touch()
        digests = {wait_for_line(worker, "") for worker in workers}
        job = cluster.status(0)["jobs"][0]
        assert [(change["policy"], change["reason"]) for change in job["leader"]["policies"]][-1] == (
            "prophet",
            "the user set it",
        )
        status = subprocess.run(
            [BUILD / "bin/deft", "status", "--socket", cluster.socket(0)], capture_output=True, text=True, check=True
        )
        assert "policy prophet\n        because the user set it" in status.stdout
        assert digests == fifo
        assert deft_set(cluster, 0, "auto", "mine").returncode == 0
        end.touch()
        cluster.finish(workers)
        wait_until(lambda: not cluster.status(0)["jobs"], what="the end of the job")
        assert "no job 'mine'" in deft_set(cluster, 0, "p3", "mine").stderr


def test_usage_of_deft_set_is_told():
    for words in ([], ["policy=p3"], ["colour=red", "job"], ["policy=p3", "job", "more"]):
        refused = subprocess.run([BUILD / "bin/deft", "set", *words], capture_output=True, text=True, check=False)
        assert refused.returncode == 2 and "usage: deft set policy=NAME JOB" in refused.stderr
