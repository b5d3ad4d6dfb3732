"""`deft explain` on real trainings with a fault that nobody tells it: the first line names the cause."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from cluster import BUILD, PROLOGUE, deft, json_of
from slow_jobs import FAULTS
from test_lost_links import emulated  # noqa: F401  (skips where there are no emulated nodes)

FOLDER = Path(__file__).parent
# Of as few bytes as the NICs are slower: on a busy machine the processors would hold up faster ones.
SLOW = {"rate": "200mbit", "floats": 60_000, "steps": 14}
CASES = {
    **{name: case for name, (case, _, _) in FAULTS.items() if name not in ("large credit", "batches of any length")},
    "slow NIC": {**SLOW, "nic": [2, "80mbit"]},
    "NIC slow one way": {**SLOW, "sends": [2, "80mbit"]},
    "uneven batch": {"rate": "1gbit", "batch": [1, 3, 1]},
    "straggler": {"rate": "1gbit", "slow_from": 14, "slow": 3, "steps": 34},
    "nothing": {"rate": "2gbit"},
}


@pytest.fixture(scope="module")
def traces(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("slow")
    command = [sys.executable, FOLDER / "slow_jobs.py", folder, json.dumps(CASES)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_a_job_that_goes_first_leaves_the_session_of_who_starts_it_as_it_is():
    share = Path("/proc/self/autogroup")
    if not share.exists():
        pytest.skip("this kernel does not share processors by sessions (CONFIG_SCHED_AUTOGROUP)")
    before = share.read_text()
    words = [sys.executable, "-c", "import slow_jobs; slow_jobs.go_first()"]
    subprocess.run(words, cwd=FOLDER, process_group=0, check=True)  # as a shell starts a command
    assert share.read_text() == before


def explain(folder: Path) -> tuple[str, dict]:
    """The first line, and the first cause."""
    text, listed = deft("explain", str(folder)), deft("explain", str(folder), "--json")
    assert text.returncode == 0 and listed.returncode == 0, text.stderr
    assert "where a step's time goes" in text.stdout
    causes = json_of(listed)
    assert all(cause["cause"] == "none" or cause["gain_us"] >= cause["error_us"] for cause in causes), causes
    return text.stdout, causes[0]


def test_a_slow_nic_is_named_by_its_node(traces):
    text, first = explain(traces / "slow NIC")
    assert (first["cause"], first["where"]) == ("slow-link", "node2/eth0"), text
    share = int(re.match(r"eth0 of node2 (?:carries|sends at|receives at) (\d+) %", text)[1])
    assert 25 <= share <= 60, text


def test_a_nic_that_is_slow_one_way_is_named_with_the_direction(traces):
    text, first = explain(traces / "NIC slow one way")
    assert (first["cause"], first["where"]) == ("slow-link", "node2/eth0"), text
    assert re.match(r"eth0 of node2 (?:carries|sends at) \d+ %", text), text


def test_a_larger_batch_is_told_from_a_slow_node(traces):
    text, first = explain(traces / "uneven batch")
    assert (first["cause"], first["where"]) == ("uneven-batch", "node1"), text


def test_a_noisy_neighbour_is_named_or_that_all_nodes_vary(traces):
    text, first = explain(traces / "noisy neighbour")
    # On a busy machine the other nodes vary, too, or most of this node's steps are long. explain_test has both. If
    # replay errs by more than mending would win, no cause is left, and a line tells what disturbs all nodes.
    disturbed = re.search(r"^other programs take \d+ % .*, and more than 10 % of those of \d more", text, re.M)
    expected = {"noisy-neighbour", "slow-worker", "uneven-batch"} | ({"none"} if disturbed else set())
    assert first["cause"] in expected, text
    assert first["where"] in ("node1", ""), text


def test_a_parameter_server_that_is_short_of_bandwidth_is_named(traces):
    text, first = explain(traces / "one parameter server")
    assert first["cause"] == "server", text
    assert text.startswith("1 parameter server carries the gradients of 3 nodes"), text


def test_one_slow_parameter_server_of_two_is_named_by_its_address(traces):
    text, _ = explain(traces / "slow parameter server")
    # On a busy machine a worker may really cost more than the server does. The servers' nodes are behind the workers'.
    named = re.search(r"^the parameter server (\S+) carries (\d+) % of the others' rate: mending it saves", text, re.M)
    assert named and named[1] == "10.77.0.5:29611", text
    assert 20 <= int(named[2]) <= 74, text


def test_a_straggler_is_named(traces):
    text, first = explain(traces / "straggler")
    assert (first["cause"], first["where"]) == ("slow-worker", "node1"), text
    # On a busy machine sleeps are longer on all nodes: explain_test has the share, and the step since which.
    assert re.match(r"node1 computes \d+ % longer than the others.*: mending it saves", text), text


def test_buckets_that_are_far_too_small_are_named(traces):
    text, first = explain(traces / "small buckets")
    assert first["cause"] == "small-parts", text
    assert text.startswith("gradients travel in parts of 4.0 KB, which is too small"), text
    assert set(first["options"]) == {"bucketing", "partition_bytes"}


def test_links_and_options_of_a_job_without_a_fault_are_not_blamed(traces):
    text, first = explain(traces / "nothing")
    # What else runs on the machine may really disturb a node, but no NIC and no option of Deft.
    assert first["cause"] not in ("slow-link", "server", "small-parts", "large-credit"), text


# Each worker has a core of its own, and each step takes so much processor time.
PINNED = """
os.sched_setaffinity(0, {json.loads(os.environ["CORES"])[rank]})
def compute(seconds):
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass
COUNT = 6
group = session.declare("model", [deft.Tensor(f"t{i}", deft.FLOAT32, (20_000,), COUNT - 1 - i) for i in range(COUNT)])
for step in range(24):
    session.stage(deft.FORWARD, step)
    compute(0.02)
    session.stage(deft.BACKWARD, step)
    for tensor in range(COUNT):
        compute(0.008)
        group.ready(tensor, 1, step)
    for tensor in range(COUNT):
        group.wait(tensor, 1, step)
    compute(0.005)
session.close()
"""


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two nodes need a core each")
def test_other_programs_on_the_cores_of_a_node_are_named(tmp_path):
    cores = sorted(os.sched_getaffinity(0))[:2]
    (tmp_path / "train.py").write_text("import json, os, time\n" + PROLOGUE + PINNED)
    own = {"DEFT_POLICY": "fifo", "PYTHONPATH": str(BUILD / "python"), "DEFT_TRACE": str(tmp_path / "traces")}
    command = [BUILD / "bin/deftrun", "-np", "2", "--nodes", "2", sys.executable, tmp_path / "train.py"]
    spin = ["taskset", "-c", str(cores[1]), "sh", "-c", "while :; do :; done"]
    # Linux shares the processors out by sessions, and that of the tests may be one of low priority.
    others = [subprocess.Popen(spin, start_new_session=True) for _ in range(4)]
    try:
        environment = os.environ | own | {"CORES": json.dumps(cores)}
        traced = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    finally:
        for other in others:
            other.kill()
            other.wait()
    assert traced.returncode == 0, traced.stderr
    text, first = explain(tmp_path / "traces")
    slow = re.match(
        r"node1 computes \d+ % longer than the others.*, and other programs take (\d+) % of its cores", text
    )
    # On a busy machine the other node's core may be as busy, and then neither is the slow one.
    both = re.search(
        r"^other programs take (\d+) % of the cores of node\d, and more than 10 % of those of 1 more", text, re.M
    )
    assert slow or both, text
    assert 50 <= int((slow or both)[1]) <= 99, text
    assert both or (first["cause"], first["where"]) == ("noisy-neighbour", "node1"), text


def test_explain_says_what_it_cannot_read(tmp_path):
    assert deft("explain").returncode == 2
    assert deft("explain", str(tmp_path)).returncode == 2
    (tmp_path / "x.trace").write_text("hello")
    broken = deft("explain", str(tmp_path))
    assert broken.returncode == 2 and "x.trace" in broken.stderr
