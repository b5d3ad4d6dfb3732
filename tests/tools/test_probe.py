"""deft probe: what it measures between real processes, and what it says when somebody is missing or disagrees."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ports import free_port  # the one behind it, which rank 0's store takes, is free, too
from under_test import BUILD

ROOT = Path(__file__).resolve().parents[2]
BIN = BUILD / "bin"


def start(rank: int, size: int, leader: str, *words: str, seconds: str = "0.1", **variables: str) -> subprocess.Popen:
    environment = os.environ | {
        "DEFT_RANK": str(rank),
        "DEFT_WORLD_SIZE": str(size),
        "DEFT_LOCAL_RANK": "0",
        "DEFT_LOCAL_SIZE": "1",
        "DEFT_LEADER": leader,
        "DEFT_LINKS": "gloo:lo",
        **variables,
    }
    return subprocess.Popen(
        [BIN / "deft", "probe", "--seconds", seconds, *words],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def cpu_seconds(process: subprocess.Popen) -> float:
    """Of all its threads. The clock of another process has a number that follows from its id (clock_getcpuclockid)."""
    return time.clock_gettime((~process.pid << 3) | 2)


def finish(processes: list[subprocess.Popen]) -> list[tuple[int, str, str]]:
    results = []
    for process in processes:
        out, err = process.communicate(timeout=120)
        results.append((process.returncode, out, err))
    return results


def test_deftrun_probes_two_emulated_nodes():
    result = subprocess.run(
        [sys.executable, BIN / "deftrun", "-np", "2", "--nodes", "2", BIN / "deft", "probe", "--seconds", "0.2"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    assert re.search(r"gloo:lo +0 - 1 +\d+ \+- \d+ +[\d.]+ \+- [\d.]+", result.stdout)


def test_every_pair_and_all_together_are_measured_on_every_link(tmp_path):
    leader = f"127.0.0.1:{free_port()}"
    file = tmp_path / "probe.json"
    ranks = [start(rank, 3, leader, "--json", f"--output={file}") for rank in range(3)]
    results = finish(ranks)
    assert [status for status, _, _ in results] == [0, 0, 0], results
    assert results[1][1] == results[2][1] == ""
    report = json.loads(results[0][1])
    assert json.loads(file.read_text()) == report
    assert [node["rank"] for node in report["nodes"]] == [0, 1, 2]
    assert [row["nodes"] for row in report["measured"]] == [[0, 1], [0, 2], [1, 2], [0, 1, 2]]
    for row in report["measured"]:
        assert row["link"] == "gloo:lo"
        assert row["latency_us"] >= 0 and row["latency_error_us"] > 0
        assert row["bytes_per_us"] > 0 and row["bytes_per_us_error"] > 0
        sizes = [sample["bytes"] for sample in row["samples"]]
        assert len(sizes) >= 3 and sizes == sorted(sizes)
    assert len(report["profile_links"]) == 1


def test_links_are_measured_alone_one_way_and_all_at_once():
    leader = f"127.0.0.1:{free_port()}"
    results = finish([start(rank, 2, leader, "--json", DEFT_LINKS="gloo:lo,tcp:lo") for rank in range(2)])
    assert [status for status, _, _ in results] == [0, 0], results
    report = json.loads(results[0][1])
    rows = [(row["link"], row["at_once"]) for row in report["measured"]]
    assert rows == [("gloo:lo", False), ("tcp:lo", False), ("gloo:lo", True), ("tcp:lo", True)]
    for row in report["measured"]:
        assert row["bytes_per_us"] > 0 and row["nodes"] == [0, 1]
        assert row["at_once"] or min(row["one_way_bytes_per_us"]) > 0
    assert [link["name"] for link in report["profile_links"]] == ["gloo:lo", "tcp:lo"]
    assert report["findings"] == [], "over loopback nothing is to be blamed"


def test_the_planner_takes_what_was_measured(tmp_path):
    leader = f"127.0.0.1:{free_port()}"
    file = tmp_path / "probe.json"
    finish([start(rank, 2, leader, f"--output={file}") for rank in range(2)])
    [measured] = json.loads(file.read_text())["profile_links"]
    bucket = {"name": "b", "bytes": 1 << 20, "forward_us": 1000, "backward_us": 2000}
    link = {"name": "slow", "latency_us": 1e6, "bytes_per_us": 1}
    profile = tmp_path / "profile.json"
    profile.write_text(json.dumps({"model": "m", "source": "test", "buckets": [bucket], "links": [link]}))
    simulated = subprocess.run(
        [BIN / "deft", "simulate", profile, "--link-costs", file, "--policy", "fifo", "--json"],
        capture_output=True,
        text=True,
    )
    assert simulated.returncode == 0, simulated.stderr
    [run] = json.loads(simulated.stdout)
    communication = measured["latency_us"] + (1 << 20) / measured["bytes_per_us"]
    assert run["step_us"] == pytest.approx(3000 + communication, rel=0.01)


def test_a_file_that_no_probe_has_written_is_refused(tmp_path):
    file = tmp_path / "probe.json"
    file.write_text("{}")
    profile = ROOT / "examples/profiles/vgg19_deft_table2.json"
    words = [BIN / "deft", "simulate", profile, "--link-costs", file]
    result = subprocess.run(words, capture_output=True, text=True)
    assert result.returncode != 0
    assert str(file) in result.stderr and "deft probe --output" in result.stderr


def test_links_are_measured_as_they_will_be_used():
    leader = f"127.0.0.1:{free_port()}"
    links = "gloo:lo,mpi,ps:127.0.0.1:9"
    ranks = [start(rank, 2, leader, DEFT_LINKS=links, DEFT_ENCRYPT_GRADIENTS="on") for rank in range(2)]
    status, out, err = finish(ranks)[0]
    assert status == 1, out + err
    assert "what the links send is encrypted" in out
    assert re.search(r"gloo:lo +0 - 1 +\d+ \+- ", out)
    assert re.search(r"mpi +0 - 1 +cannot encrypt", out)
    assert re.search(r"ps:127.0.0.1:9 +0 - 1 +cannot encrypt without a key", out)


def test_nodes_must_agree_on_encryption():
    leader = f"127.0.0.1:{free_port()}"
    ranks = [start(rank, 2, leader, DEFT_ENCRYPT_GRADIENTS="on" if rank else "off") for rank in range(2)]
    for status, _, err in finish(ranks):
        assert status == 1
        assert "encrypt_gradients is not the same on" in err
        assert "(rank 0)" in err and "(rank 1)" in err


def test_only_one_process_a_node_measures():
    leader = f"127.0.0.1:{free_port()}"
    ranks = [start(rank, 4, leader, "--json", DEFT_LOCAL_RANK=str(rank % 2), DEFT_LOCAL_SIZE="2") for rank in range(4)]
    results = finish(ranks)
    assert [status for status, _, _ in results] == [0] * 4, results
    assert [node["rank"] for node in json.loads(results[0][1])["nodes"]] == [0, 2]


@pytest.mark.parametrize("port", ["29x", "0", "65536"])
def test_a_port_that_is_none_is_named(port):
    (status, _, err) = finish([start(1, 2, "127.0.0.1:29610", "--port", port)])[0]
    assert status == 2 and f"--port {port} is no port" in err


def test_its_help_names_its_options():
    result = subprocess.run([BIN / "deft", "probe", "--help"], capture_output=True, text=True)
    assert result.returncode == 0 and result.stdout.startswith("usage: deft probe")
    for option in ("--json", "--output", "--seconds", "--port"):
        assert f"\n  {option} " in result.stdout


def test_a_process_alone_is_told_how_to_start():
    result = subprocess.run([BIN / "deft", "probe"], capture_output=True, text=True)
    assert result.returncode == 2
    assert "deftrun -np 2 --nodes 2 deft probe" in result.stderr


def test_who_does_not_come_is_named_by_the_deadline():
    leader = f"127.0.0.1:{free_port()}"
    (status, _, err), (other, _, other_err) = finish([start(rank, 3, leader, "--timeout=5s") for rank in (0, 2)])
    assert status == other == 1
    assert "rank 1 of deft probe did not come in time" in err and "rank 1" in other_err


@pytest.mark.parametrize("name", ["localhost", socket.gethostname()])
def test_rank_0_may_be_named(name):
    try:
        socket.gethostbyname(name)
    except OSError:
        pytest.skip("the name of this machine has no address")
    elsewhere = {"DEFT_LINKS": "ps:server.invalid:1", "DEFT_TIMEOUT": "3s"}  # loopback goes with no such name
    leader = f"{name}:{free_port()}"
    (_, out, err), _ = finish([start(rank, 2, leader, **elsewhere) for rank in (0, 1)])
    assert re.search(r"^node 1: .*, rank 1, ", out, re.MULTILINE), err


def test_a_missing_rank_0_is_said():
    (result,) = finish([start(1, 2, f"127.0.0.1:{free_port()}", "--timeout=1s")])
    assert result[0] == 1
    assert "rank 0 does not answer" in result[2]


def test_nodes_with_different_links_are_told():
    leader = f"127.0.0.1:{free_port()}"
    ranks = [
        start(0, 2, leader, "--timeout=60s"),
        start(1, 2, leader, "--timeout=60s", DEFT_LINKS="gloo:lo,ps:127.0.0.1:9"),
    ]
    for status, _, err in finish(ranks):
        assert status == 1
        assert "the nodes differ in their links: gloo:lo on" in err and "ps:127.0.0.1:9" in err


def test_a_link_that_cannot_be_opened_is_a_row_of_its_own():
    leader = f"127.0.0.1:{free_port()}"
    links = "gloo:lo,ps:127.0.0.1:9"
    results = finish([start(rank, 2, leader, "--timeout=5s", DEFT_LINKS=links) for rank in range(2)])
    assert results[0][0] == 1
    assert re.search(r"gloo:lo +0 - 1 +\d+ \+- ", results[0][1])
    assert "the parameter server 127.0.0.1:9 does not answer" in results[0][1]


def test_a_process_killed_in_the_middle_ends_the_others():
    leader = f"127.0.0.1:{free_port()}"
    ranks = [start(rank, 2, leader, "--timeout=30s", seconds="60") for rank in range(2)]
    deadline = time.monotonic() + 60
    while cpu_seconds(ranks[1]) < 0.3 and time.monotonic() < deadline:  # until it measures
        time.sleep(0.01)
    ranks[1].send_signal(signal.SIGKILL)
    status, out, err = finish(ranks)[0]
    assert status == 1
    assert "gloo:lo: the connection to node 1 failed: " in out, out + err


@pytest.mark.parametrize(
    ("words", "says"),
    [(["--seconds", "soon"], "is not a number of seconds"), (["--port"], "--port needs a value"), (["x"], "x")],
)
def test_wrong_usage(words, says):
    result = subprocess.run([BIN / "deft", "probe", *words], capture_output=True, text=True)
    assert result.returncode == 2
    assert says in result.stderr
