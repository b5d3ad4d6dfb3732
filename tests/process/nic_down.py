"""One training on emulated nodes of which one loses a NIC: run by test_lost_links.py, once for each case.

    nic_down.py '{"links": "gloo:eth0,gloo:eth1", "nics": 2, "down": [[1, 1]], ...}'

Prints one JSON object: what the workers printed, the daemons' status in the middle and before the end, and their logs.
"""

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

from cluster import Cluster, wait_for_line, wait_until

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))
from lab import netns

DOWN_AT = 8
GO_ON_AT = 12  # here a fast job waits until the NIC is down
AWAIT = """
import os, time
def await_file(name):
    while not os.path.exists(os.environ[name]):
        time.sleep(0.01)
"""
TRAIN = """
STEPS = int(os.environ["STEPS"])
sizes = [300_000, 1000, 500_000, 64, 250_001]
tensors = [deft.Tensor(f"t{i}", deft.FLOAT32, (n,), len(sizes) - 1 - i) for i, n in enumerate(sizes)]
group = session.declare("sgd", tensors)
weights = [np.zeros(n, np.float32) for n in sizes]
random = np.random.default_rng(rank)
noise = [random.standard_normal(n).astype(np.float32) for n in sizes]
n = 40_000
for step in range(STEPS):
    try:
        session.stage(deft.FORWARD, step)
        time.sleep(0.01)
        session.stage(deft.BACKWARD, step)
        for i, count in enumerate(sizes):
            # Of the weights too: what is lost or added twice is never forgotten.
            vector(group, i)[:count] = np.roll(noise[i], step) * np.float32(1 + rank) - weights[i] * np.float32(0.1)
            group.ready(i, 1, step)
        loss, root = np.full(n, rank + step, np.float32), np.full(n, rank + step, np.float32)
        all_ranks = np.zeros(n * size)
        block = np.full(n, rank * 7.0 + step)
        handles = [session.allreduce("loss", pointer(loss), n, deft.FLOAT32),
                   session.broadcast("root", pointer(root), n, deft.FLOAT32, step % size),
                   session.allgather("all", pointer(block), [n] * size, deft.FLOAT64)]
        for handle, out in zip(handles, [loss, root, all_ranks]):
            handle.finish(pointer(out))
        assert (loss == sum(range(size)) + size * step).all() and (root == step % size + step).all(), step
        assert (all_ranks == np.repeat(np.arange(size) * 7.0 + step, n)).all(), step
        for i, count in enumerate(sizes):
            group.wait(i, 1, step)
            weights[i] -= np.float32(0.01) * vector(group, i)[:count] / size
    except deft.DeftError as error:
        say(f"ERROR {time.monotonic()} {error}")
        raise SystemExit(7)
    say(f"step {step}")
    if step == int(os.environ["GO_ON_AT"]):
        await_file("GO_ON")
import hashlib
say("weights " + hashlib.sha256(b"".join(w.tobytes() for w in weights)).hexdigest())
await_file("END")
session.close()
"""

TORCH = """
import hashlib, os, torch
import deft.torch as hvd
from torch.nn import Linear, ReLU, Sequential

def train(each_step):
    torch.manual_seed(1)
    model = Sequential(Linear(400, 700), ReLU(), Linear(700, 500), ReLU(), Linear(500, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    samples = torch.Generator().manual_seed(hvd.rank())
    for step in range(int(os.environ["STEPS"])):
        optimizer.zero_grad()
        model(torch.randn(8, 400, generator=samples)).square().mean().backward()
        optimizer.step()
        each_step(step)
    optimizer.flush()
    return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()

def until_the_nic_is_down(step):
    print(f"step {step}", flush=True)
    if step == int(os.environ["GO_ON_AT"]):
        await_file("GO_ON")

torch.set_num_threads(1)
print("imported", flush=True)
await_file("BEGIN")
if "UNDISTURBED" in os.environ:  # a job before with this timeout, in the processes that have imported torch
    hvd.init(job="undisturbed", timeout=os.environ["UNDISTURBED"])
    print("undisturbed " + train(lambda step: None), flush=True)
    hvd.shutdown()
hvd.init(job="disturbed")
print("weights " + train(until_the_nic_is_down), flush=True)
await_file("END")
hvd.shutdown()
"""


class Nodes(Cluster):
    def __init__(self, lab, case, nodes=None):
        self.lab = lab
        super().__init__(nodes or lab.nodes, timeout=case["timeout"], links=case["links"], partition_bytes="64KB",
                         credit_bytes="512KB", bucket_bytes="1MB", insecure="on")  # fmt: skip

    def address_to_listen_on(self, node):
        return f"{self.lab.address(node)}:29610"

    def prefix(self, node):
        return self.lab.prefix(node)

    def place(self, node):
        return {"network": f"/run/netns/node{node}", "cores": self.lab.cores[node]}


def shorten_queue(lab: "netns.Lab", node: int, rate: str, size: int) -> None:
    """The network drops what is sent to the node and does not fit into a queue of `size` bytes."""
    words = ["tc", "qdisc", "replace", "dev", f"n{node}e0", "root", "handle", "1:", "tbf", "rate", rate]
    subprocess.run([*words, "burst", "70kb", "limit", str(size)], check=True)


def read(worker, outputs: list[str], rank: int) -> None:
    out, errors = worker.communicate()
    outputs[rank] = out + errors


def start_torch(cluster: Cluster, variables: dict[str, str]) -> list[subprocess.Popen]:
    """On a busy machine imports take longer than ranks wait for each other: no rank begins before all have imported."""
    begin = Path(cluster.folder.name, "begin")
    begins = {**variables, "BEGIN": str(begin)}
    imported = ("numpy", "torch._dynamo")
    workers = [cluster.start_program(AWAIT + TORCH, rank, modules=imported, **begins) for rank in range(cluster.nodes)]
    for worker in workers:
        wait_for_line(worker, "imported")
    begin.touch()
    return workers


def await_loss(cluster: Cluster) -> dict:
    def is_lost() -> bool:
        return any("lost" in link for job in cluster.status()["jobs"] for link in job["links"])

    wait_until(is_lost, what="a lost link in the status")
    return cluster.status()


def run(case: dict) -> dict:
    """The link is lost after step DOWN_AT, and before the job ends, however busy the machine is."""
    variables = {"DEFT_POLICY": case["policy"], "STEPS": str(case["steps"]), **case.get("variables", {})}
    with netns.Lab(nodes=case.get("nodes", 2), nics=case["nics"]) as lab:
        lab.shape([case["rate"]] * case["nics"])
        if case.get("queue"):
            shorten_queue(lab, 0, **case["queue"])
        with Nodes(lab, case) as cluster:
            go_on, end = Path(cluster.folder.name, "go-on"), Path(cluster.folder.name, "end")
            variables |= {"GO_ON": str(go_on), "GO_ON_AT": str(GO_ON_AT), "END": str(end)}
            if case.get("torch"):
                workers = start_torch(cluster, variables)
            else:
                workers = cluster.start(AWAIT + TRAIN, case.get("per_node", 1), **variables)
            wait_for_line(workers[0], f"step {DOWN_AT}")
            middle = [cluster.status(node) for node in range(cluster.nodes)]
            began = time.monotonic()
            for node, nic in case["down"]:
                lab.change(nic, netns.DOWN, node)
            go_on.touch()
            outputs = [""] * len(workers)
            readers = [threading.Thread(target=read, args=(worker, outputs, i)) for i, worker in enumerate(workers)]
            for reader in readers:
                reader.start()
            status = await_loss(cluster) if case["down"] and case.get("look", True) else None
            end.touch()
            for reader in readers:
                reader.join(60)
            return {
                "seconds": time.monotonic() - began,
                "codes": [worker.returncode for worker in workers],
                "outputs": outputs,
                "status": status,
                "middle": middle,
                "logs": [cluster.log(node) for node in range(cluster.nodes)],
            }


if __name__ == "__main__":
    if not netns.inside():
        sys.exit(netns.enter([sys.executable, *sys.argv]))
    print(json.dumps(run(json.loads(sys.argv[1]))))
