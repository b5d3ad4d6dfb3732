"""A NIC that goes down in mid-training, on emulated nodes: the job goes on over the other links, with the same bits."""

import functools
import json
import subprocess
import sys
from pathlib import Path

import pytest
from cluster import BUILD, MARGIN_S, PATIENT

FOLDER = Path(__file__).parent
TIMEOUT_S = 12  # in which links also open: on a busy machine new NICs lose the first packets
BASE = {
    "links": "gloo:eth0,gloo:eth1",
    "nics": 2,
    "policy": "fifo",
    "timeout": f"{TIMEOUT_S}s",
    "rate": "200mbit",
    "steps": 22,
}


@pytest.fixture(scope="module", autouse=True)
def emulated():
    trial = "import sys; sys.path.insert(0, 'bench'); from lab import netns; sys.exit(netns.enter(['true']))"
    try:
        done = subprocess.run([sys.executable, "-c", trial], cwd=FOLDER.parents[1], capture_output=True, text=True)
    except OSError as error:
        pytest.skip(str(error))
    if done.returncode:
        pytest.skip(f"no emulated nodes here: {done.stderr.splitlines()[-1:]}")


def run(**case) -> dict:
    text = json.dumps(BASE | case)
    done = subprocess.run(
        [sys.executable, FOLDER / "nic_down.py", text], capture_output=True, text=True, timeout=550, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def weights(result: dict) -> set[str]:
    assert set(result["codes"]) == {0}, "\n".join([*result["outputs"], *result["logs"]])
    return {line for output in result["outputs"] for line in output.splitlines() if line.startswith("weights ")}


@functools.cache
def undisturbed(nodes: int, per_node: int, steps: int) -> set[str]:
    result = run(nodes=nodes, per_node=per_node, steps=steps, rate="1gbit", down=[], timeout=PATIENT)
    return weights(result)


CASES = {
    "fifo": {},
    "the leader's own NIC": {"down": [[0, 1]], "per_node": 2},
    "mgwfbp": {"policy": "mgwfbp", "steps": 40},
    "bytescheduler": {"policy": "bytescheduler"},
    "prophet": {"policy": "prophet"},
    "dear": {"policy": "dear"},
    "auto": {"policy": "auto", "steps": 40},
    "knapsack": {"policy": "knapsack", "steps": 40},
    "knapsack with a given plan": {"policy": "knapsack", "variables": {"DEFT_PLAN": "0@1"}},
    "two of three": {"nodes": 3, "nics": 3, "links": "gloo:eth0,gloo:eth1,gloo:eth2", "down": [[1, 1], [2, 2]]},
}


@pytest.mark.parametrize("name", CASES)
def test_the_training_goes_on_with_the_bits_of_an_undisturbed_one(name):
    case = {"down": [[1, 1]], **CASES[name]}
    result = run(**case)
    steps = case.get("steps", BASE["steps"])
    wanted = undisturbed(case.get("nodes", 2), case.get("per_node", 1), steps)
    assert len(wanted) == 1
    assert weights(result) == wanted, "\n".join(result["logs"])
    lost = {link["name"] for link in result["status"]["jobs"][0]["links"] if "lost" in link}
    down = {f"gloo:eth{nic}" for _, nic in case["down"]}
    assert lost and lost <= down
    for log in result["logs"]:
        assert all(f"goes on without link {name}" in log for name in down)
        assert all(f"nothing has come through link {name} for" in log for name in down)
    if case.get("policy") == "mgwfbp":
        assert " transfers from step " in result["logs"][0]
    if case.get("policy") == "knapsack" and "variables" not in case:
        assert "because of the loss of link 1" in result["logs"][0]


@pytest.mark.parametrize("plan", ["0-1@4,2@5", "0@1;0:0-1@3"])
def test_merged_and_late_updates_survive_it_too(plan):
    variables = {"DEFT_PLAN": plan, "UNDISTURBED": PATIENT}
    result = run(torch=True, policy="knapsack", variables=variables, down=[[1, 1]])
    found = weights(result)
    wanted = {line for output in result["outputs"] for line in output.splitlines() if line.startswith("undisturbed ")}
    assert len(wanted) == 1
    assert found == {line.replace("undisturbed", "weights") for line in wanted}, "\n".join(result["logs"])
    assert "goes on without link gloo:eth1" in result["logs"][1]


# Not with the bits of an undisturbed one: of other parts other nodes own what the second encoding leaves out.
def test_encoded_gradients_survive_it_with_the_same_bits_on_all_ranks():
    result = run(torch=True, policy="bytescheduler", down=[[1, 1]], variables={"DEFT_COMPRESSION": "int8"})
    assert len(weights(result)) == 1, "\n".join(result["logs"])
    links = result["middle"][0]["jobs"][0]["links"]
    assert 0 < sum(link["wire_bytes"] for link in links) < 0.5 * sum(link["bytes"] for link in links), links
    assert all("goes on without link gloo:eth1" in log for log in result["logs"])


@pytest.mark.skipif(not (BUILD / "bin/deft-mpi").exists(), reason="this build has no MPI links")
def test_what_mpi_carried_goes_on_over_gloo():
    result = run(links="gloo:eth0,mpi:eth1", down=[[1, 1]])
    assert weights(result) == undisturbed(2, 1, BASE["steps"])
    assert "goes on without link mpi:eth1" in result["logs"][1]


def test_without_a_link_that_is_left_every_rank_has_the_error_by_the_deadline():
    result = run(nics=3, links="gloo:eth1,gloo:eth2", down=[[1, 1], [1, 2]], look=False)
    assert result["codes"] == [7, 7]
    for output in result["outputs"]:
        error = next(line for line in output.splitlines() if line.startswith("ERROR"))
        assert "link gloo:eth" in error
    assert result["seconds"] < TIMEOUT_S + 3 * MARGIN_S, "it would never come without the deadline"


def test_packets_that_are_lost_are_counted_by_link():
    result = run(links="gloo:eth0", nics=1, down=[], timeout=PATIENT, queue={"rate": "100mbit", "size": 70_000})
    assert weights(result) == undisturbed(2, 1, BASE["steps"])
    sender = result["middle"][1]["jobs"][0]["links"][0]
    assert sender["connections"]["resent_packets"] > 0, sender
    assert sender["connections"]["sent_bytes"] > 4_000_000 and sender["connections"]["least_rtt_us"] > 0, sender
