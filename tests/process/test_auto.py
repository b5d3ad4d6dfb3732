"""The policy `auto` with real daemons, and `deft set`: policies change between steps, and no bit of the sums does."""

import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest
from cluster import Cluster, deft, wait_for_line, wait_until

# It ends after STEPS steps, or all ranks together when the file ENOUGH is there: rank 0 says so.
SUMS = """
import hashlib
SIZES = [300_001, 7, 1009, 40096, 3000, 40009, 1, 2048, 150_000]
tensors = [deft.Tensor(f"t{n}", deft.FLOAT32, (n,), len(SIZES) - 1 - i) for i, n in enumerate(SIZES)]
group = session.declare("all", [*tensors, deft.Tensor("last", deft.FLOAT32, (1,), len(SIZES))])
digest = hashlib.sha256()
random = np.random.default_rng(rank)
steps, step, last = int(os.environ.get("STEPS", 1 << 30)), 0, False
while not last:
    while step == 20 and os.environ.get("HOLD") and not os.path.exists(os.environ["HOLD"]):
        time.sleep(0.01)
    session.stage(deft.FORWARD, step)
    time.sleep(0.002)
    session.stage(deft.BACKWARD, step)
    for index, tensor in enumerate(tensors):
        vector(group, index)[:] = random.standard_normal(tensor.shape[0], dtype=np.float32)
        group.ready(index, 1, step)
    vector(group, len(SIZES))[:] = rank == 0 and os.path.exists(os.environ.get("ENOUGH", ""))
    group.ready(len(SIZES), 1, step)
    for index, tensor in enumerate(tensors):
        group.wait(index, 1, step)
        digest.update(vector(group, index).tobytes())
    group.wait(len(SIZES), 1, step)
    last = step + 1 == steps or vector(group, len(SIZES))[0] > 0
    if step == 10:
        say("ten steps")
    step += 1
say(f"{digest.hexdigest()} {step}")
while not os.path.exists(os.environ["END"]):
    time.sleep(0.01)
session.close()
"""


# Whole numbers, so that every order of adding gives the same sum, which each rank knows.
EXACT = """
import hashlib
SIZES = [300_001, 7, 1009, 40096, 3000, 150_000]
tensors = [deft.Tensor(f"t{n}", deft.FLOAT32, (n,), len(SIZES) - 1 - i) for i, n in enumerate(SIZES)]
group = session.declare("all", tensors)
digest = hashlib.sha256()
numbers = {n: np.arange(n, dtype=np.float32) % 1000 for n in SIZES}
for step in range(int(os.environ["STEPS"])):
    session.stage(deft.FORWARD, step)
    session.stage(deft.BACKWARD, step)
    for index, n in enumerate(SIZES):
        vector(group, index)[:] = (rank + 1) * (numbers[n] + step)
        group.ready(index, 1, step)
    for index, n in enumerate(SIZES):
        group.wait(index, 1, step)
        sums = vector(group, index)
        if not np.array_equal(sums, size * (size + 1) // 2 * (numbers[n] + step)):
            sys.exit(f"step {step}: the sum of tensor {index} is wrong")
        digest.update(sums.tobytes())
    if step % 5 == 4:
        say(f"step {step}")
        while os.environ.get("HOLD") and not os.path.exists(f"{os.environ['HOLD']}{step}"):
            time.sleep(0.005)
say(digest.hexdigest())
session.close()
"""


def run_set(cluster: Cluster, node: int, *words: str) -> subprocess.CompletedProcess:
    return deft("set", *words, "--socket", cluster.socket(node))


def deft_set(cluster: Cluster, node: int, policy: str, job: str) -> subprocess.CompletedProcess:
    return run_set(cluster, node, f"policy={policy}", job)


class Trained(NamedTuple):
    digests: set[str]  # and after how many steps
    policies: list
    log: str


def has_trained_with_another_policy(cluster: Cluster) -> bool:
    job = cluster.status(0)["jobs"][0]
    policies = job["leader"]["policies"]
    return bool(policies) and job["groups"][0]["step"] > policies[0]["from_step"] + 20


def train(policy: str, nodes: int, per_node: int, steps: int | None = None) -> Trained:
    """For some steps, or until the policy has changed: it is chosen in the background, on a busy machine late."""
    with Cluster(nodes, partition_bytes="64KB") as cluster:
        end, enough = Path(cluster.folder.name, "end"), Path(cluster.folder.name, "enough")
        limit = {"ENOUGH": str(enough)} if steps is None else {"STEPS": str(steps)}
        workers = cluster.start(SUMS, per_node, DEFT_POLICY=policy, END=str(end), **limit)
        for worker in workers:
            wait_for_line(worker, "ten steps")
        if steps is None:
            wait_until(lambda: has_trained_with_another_policy(cluster), 120, "a change of the policy")
            enough.touch()
        digests = {wait_for_line(worker, "") for worker in workers}
        policies = cluster.status(0)["jobs"][0]["leader"]["policies"]
        end.touch()
        cluster.finish(workers)
        return Trained(digests, policies, cluster.log(0))


@pytest.mark.parametrize("nodes, per_node", [(2, 2), (3, 1)])
def test_auto_follows_the_simulator_and_the_sums_are_fifos(nodes, per_node):
    auto = train("auto", nodes, per_node)
    assert len(auto.digests) == 1
    fifo = train("fifo", nodes, per_node, int(min(auto.digests).split()[1]))
    assert fifo.digests == auto.digests
    assert fifo.policies == []
    first = auto.policies[0]
    assert first["from_step"] >= 8, "it has to measure before"
    simulated = {row["policy"]: row["step_us"] for row in first["simulated"]}
    assert len(simulated) >= 7
    best = first["simulated"][0]
    if best["step_us"] < 0.989 * simulated["fifo (25 MB)"]:  # it must be a hundredth better, and these are rounded
        assert simulated[first["policy"]] <= 1.011 * best["step_us"], "of equal ones the fewest launches come first"
        assert first["before_us"] > 0
    else:
        assert simulated[first["policy"]] <= 1.031 * simulated["fifo (25 MB)"], "it may be as good"
    assert f"policy {first['policy']} from step {first['from_step']} on, because the first profile" in auto.log


def test_deft_set_changes_the_policy_of_a_running_job():
    fifo = train("fifo", 2, 1, steps=60)
    with Cluster(2, partition_bytes="64KB") as cluster:
        end, hold = Path(cluster.folder.name, "end"), Path(cluster.folder.name, "hold")
        options = {"DEFT_POLICY": "fifo", "DEFT_JOB": "mine", "STEPS": "60", "END": str(end), "HOLD": str(hold)}
        workers = cluster.start(SUMS, **options)
        for worker in workers:
            wait_for_line(worker, "ten steps")
        for policy in ("p3", "prophet"):  # the second one replaces the first one, which was not in force yet
            done = deft_set(cluster, 0, policy, "mine")
            assert (done.returncode, done.stdout) == (0, f"job mine: policy={policy} from the next step on\n"), (
                done.stderr
            )
        refusals = {
            (0, "knapsack", "mine"): "delays updates",
            (0, "fife", "mine"): "policy: 'fife' is none of",
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
        status = deft("status", "--socket", cluster.socket(0))
        assert "policy prophet\n        because the user set it" in status.stdout
        assert "running, policy prophet (configured: fifo), world 2" in status.stdout
        assert digests == fifo.digests
        assert deft_set(cluster, 0, "auto", "mine").returncode == 0
        end.touch()
        cluster.finish(workers)
        wait_until(lambda: not cluster.status(0)["jobs"], what="the end of the job")
        assert "no job 'mine'" in deft_set(cluster, 0, "p3", "mine").stderr


def test_sizes_change_every_few_steps_and_no_sum_does():
    changes = [
        ("credit_bytes=64KB",),
        ("partition_bytes=16KB", "credit_bytes=4KB"),
        ("policy=p3",),
        ("policy=fifo", "partition_bytes=1MB"),
        ("policy=bytescheduler", "partition_bytes=128KB", "credit_bytes=1MB"),
        ("partition_bytes=256KB",),
    ]
    with Cluster(3, policy="bytescheduler", partition_bytes="64KB") as cluster:
        hold = f"{cluster.folder.name}/hold"
        workers = cluster.start(EXACT, DEFT_JOB="mine", STEPS=str(5 * len(changes) + 5), HOLD=hold)
        for number, change in enumerate(changes):
            step = 5 * number + 4
            for worker in workers:
                wait_for_line(worker, f"step {step}")
            done = run_set(cluster, 0, *change, "mine")
            assert (done.returncode, done.stdout) == (0, f"job mine: {' '.join(change)} from the next step on\n")
            Path(f"{hold}{step}").touch()
        last = 5 * len(changes) + 4
        for worker in workers:
            wait_for_line(worker, f"step {last}")
        leader = cluster.status(0)["jobs"][0]["leader"]
        Path(f"{hold}{last}").touch()
        assert len({wait_for_line(worker, "") for worker in workers}) == 1, "the replicas differ"
        cluster.finish(workers)
    in_force = [(c["from_step"], c["policy"], c["partition_bytes"], c["credit_bytes"]) for c in leader["policies"]]
    assert in_force == [
        (5, "bytescheduler", 64 << 10, 64 << 10),
        (10, "bytescheduler", 16 << 10, 4 << 10),
        (15, "p3", 16 << 10, 4 << 10),
        (20, "fifo", 1 << 20, 4 << 10),
        (25, "bytescheduler", 128 << 10, 1 << 20),
        (30, "bytescheduler", 256 << 10, 1 << 20),
    ]
    assert leader["settings"] == {"policy": "bytescheduler", "partition_bytes": 256 << 10, "credit_bytes": 1 << 20}
    (times,) = leader["step_times"]
    assert times["first_step"] == 0 and len(times["us"]) == last and min(times["us"]) > 0


def test_usage_of_deft_set_is_told():
    for words in ([], ["policy=p3", "job", "more"], ["job"]):
        refused = deft("set", *words)
        assert refused.returncode == 2 and "usage: deft set policy=NAME|" in refused.stderr
    refused = deft("set", "policy=p3")
    assert refused.returncode == 2 and "the name of the job is missing (say deft set policy=p3 JOB" in refused.stderr
    for word, why in {
        "colour=red": "no setting 'colour' that can change (set one of policy, partition_bytes, credit_bytes",
        "credit_bytes=12 apples": "credit_bytes: '12 apples' is not a size",
        "partition_bytes=1": "partition_bytes: 1 is out of range (between 4096 and",
    }.items():
        refused = deft("set", word, "job")
        assert refused.returncode == 2 and why in refused.stderr, refused
