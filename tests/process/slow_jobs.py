"""Trainings on emulated nodes, each with a fault that nobody tells Deft. test_explain.py looks at their traces.

    slow_jobs.py FOLDER '{"name": {"rate": "200mbit", "nic": [2, "80mbit"], ...}, ...}'

Leaves the traces of each case in FOLDER/name. Prints what went wrong with a worker, or nothing. FAULTS has a case for
each fault that `deft explain` knows, and how it is mended; bench/promises compares the promise with what that brings.
"""

import contextlib
import json
import os
import sys
from pathlib import Path

from cluster import wait_until
from nic_down import Nodes, netns

NODES = 3
SERVERS = 2  # that a case may use, on nodes of their own
TRAIN = """
STEPS, SLOW_FROM = int(os.environ["STEPS"]), int(os.environ["SLOW_FROM"])
SLOW, BATCH = float(os.environ["SLOW"]), json.loads(os.environ["BATCH"])[rank]
NOISE, OFTEN = json.loads(os.environ["NOISE"])[rank], float(os.environ["OFTEN"])
LAYERWISE = os.environ["LAYERWISE"] == "1"
COUNT, FLOATS = 12, int(os.environ["FLOATS"])
noise = np.random.default_rng(rank)
group = session.declare("model", [deft.Tensor(f"t{i}", deft.FLOAT32, (FLOATS,), COUNT - 1 - i) for i in range(COUNT)])
for step in range(STEPS):
    times = SLOW if rank == 1 and step >= SLOW_FROM else 1
    times *= 1 + NOISE * (noise.random() < OFTEN if OFTEN else noise.random())
    session.stage(deft.FORWARD, step)
    for tensor in reversed(range(COUNT)):
        if LAYERWISE and step > 0:
            group.wait(tensor, 1, step - 1)
        time.sleep(0.0015 * BATCH * times)
    session.stage(deft.BACKWARD, step)
    for tensor in range(COUNT):
        time.sleep(0.004 * BATCH * times)
        group.ready(tensor, 1, step)
    if not LAYERWISE:
        for tensor in range(COUNT):
            group.wait(tensor, 1, step)
    time.sleep(0.006 * times)
if LAYERWISE:
    for tensor in range(COUNT):
        group.wait(tensor, 1, STEPS - 1)
session.close()
"""

PRIORITIES = {"DEFT_POLICY": "bytescheduler", "DEFT_BUCKETING": "tensor", "DEFT_PARTITION_BYTES": "64KB"}
FAST = {"rate": "1gbit"}
SHARED = {"rate": "800mbit", "floats": 200_000, "steps": 14}  # steps that the NICs dominate
# By name: the case, what differs once it is mended (empty: the options that explain gives), and the cause that explain
# should name.
FAULTS = {
    "slow NIC": ({**SHARED, "nic": [2, "320mbit"]}, {"nic": None}, "slow-link"),
    "NIC slow one way": ({**SHARED, "sends": [2, "320mbit"]}, {"sends": None}, "slow-link"),
    "straggler": ({**FAST, "slow": 1.6}, {"slow": 1}, "slow-worker"),
    "uneven batch": ({**FAST, "batch": [1, 2, 1]}, {"batch": [4 / 3] * 3}, "uneven-batch"),
    "batches of any length": ({**FAST, "noise": [0.8] * 3, "steps": 60}, {"even": 1.4}, "uneven-batch"),
    "noisy neighbour": (
        {**FAST, "noise": [0, 0.8, 0], "often": 0.35, "steps": 40},
        {"noise": [0] * 3},
        "noisy-neighbour",
    ),
    "small buckets": ({**FAST, "variables": {"DEFT_BUCKETING": "uniform:4096"}}, {}, "small-parts"),
    # bytescheduler gives slow links fewer bytes by itself: such a credit is no fault in a training.
    "large credit": (
        {"rate": "150mbit", "layerwise": True, "variables": {**PRIORITIES, "DEFT_CREDIT_BYTES": "64MB"}},
        {},
        "none",
    ),
    "one parameter server": ({"rate": "300mbit", "servers": 1, "steps": 16}, {"servers": 2}, "server"),
    "slow parameter server": (
        {"rate": "300mbit", "servers": 2, "slow_server": [1, "120mbit"], "steps": 16},
        {"slow_server": None},
        "server",
    ),
}


def variables_of(case: dict, folder: Path) -> dict[str, str]:
    even = case.get("even")  # batches of any length that are mended are as long as the mean
    return {
        "STEPS": str(case.get("steps", 24)),
        "SLOW_FROM": str(case.get("slow_from", 0)),
        "SLOW": str(case.get("slow", 1)),
        "BATCH": json.dumps([even] * NODES if even else case.get("batch", [1] * NODES)),
        "NOISE": json.dumps([0] * NODES if even else case.get("noise", [0] * NODES)),
        "OFTEN": str(case.get("often", 0)),  # a share of the steps, each with all of the noise
        "FLOATS": str(case.get("floats", 50_000)),
        "LAYERWISE": "1" if case.get("layerwise") else "0",
        "DEFT_TRACE": str(folder),
        "DEFT_POLICY": "fifo",
        **case.get("variables", {}),
    }


def start_servers(cluster: Nodes, count: int) -> str:
    """Parameter servers on the nodes behind the workers'; gives the link."""
    addresses = []
    for node in range(NODES, NODES + count):
        address = cluster.lab.address(node)
        cluster.listen.append(f"{address}:29611")
        cluster.daemons.append(cluster.start_daemon(node, server=True, links="auto"))
        addresses.append(cluster.listen[-1])
    return "ps:" + "+".join(addresses)


def run(lab: "netns.Lab", folder: Path, case: dict) -> None:
    lab.shape([case["rate"]])
    if case.get("nic"):
        node, rate = case["nic"]
        lab.change(0, rate, node)
    if case.get("sends"):
        node, rate = case["sends"]
        lab.limit_sending(0, rate, node)
    if case.get("slow_server"):
        server, rate = case["slow_server"]
        lab.change(0, rate, NODES + server)
    with Nodes(lab, {"timeout": "30s", "links": "gloo:eth0"}, NODES) as cluster:
        variables = variables_of(case, folder)
        if case.get("servers"):
            variables["DEFT_LINKS"] = start_servers(cluster, case["servers"])
        cluster.finish(cluster.start("import json\n" + TRAIN, **variables))
        wait_until(lambda: len(list(folder.glob("*.trace"))) == NODES, what="the traces")
        # A daemon finishes its files before it ends.
        for daemon in cluster.daemons:
            daemon.terminate()
        for daemon in cluster.daemons:
            daemon.wait(60)


def go_first() -> None:
    """This job has the processors before other programs, if the user may ask for that: then no fault is in it but those
    that are put in. Linux shares the processors out by sessions, so this process begins one, and changes no other."""
    try:
        os.setsid()
    except PermissionError:
        return  # a shell began a group of processes for it: the session is the shell's
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text("-10")


if __name__ == "__main__":
    if not netns.inside():
        go_first()
        sys.exit(netns.enter([sys.executable, *sys.argv]))
    with netns.Lab(nodes=NODES + SERVERS, nics=1) as lab:
        for name, case in json.loads(sys.argv[2]).items():
            run(lab, Path(sys.argv[1]) / name, case)
