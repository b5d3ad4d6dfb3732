import json
import statistics
import subprocess
import sys

import pytest
from lab import pairs
from lab.netns import PAYLOAD_SHARE
from lab_commands import ROOT, run_compare

HAS_MPI = (ROOT / "build/bin/deft-mpi").exists()


def test_a_set_says_by_its_nics_what_it_is():
    assert pairs.LinkTimes(["gloo:eth0", "mpi:eth1"]).kind == "multi-link"
    assert pairs.LinkTimes(["gloo:eth0", "mpi:eth0"]).kind == "single-link"
    assert pairs.LinkTimes(["ps:eth0"]).kind == "one link"
    assert pairs.nics_of(["gloo:eth0,mpi:eth2", "gloo:eth1"]) == 3
    with pytest.raises(ValueError, match="gloo:eth0"):
        pairs.nic("mpi")


def test_elements_are_read_in_millions_of_two_to_the_twentieth():
    assert pairs.parse_elements("4M,0.5M,1000") == [4 << 20, 1 << 19, 1000]
    for text in ("", "4G", "0", "-1M"):
        with pytest.raises(ValueError, match=f"--elements {text}: give numbers"):
            pairs.parse_elements(text)


def test_the_bound_is_the_time_of_a_ring_on_the_payload_of_the_line():
    assert pairs.bound_us(1 << 20, 2, "100mbit") == pytest.approx((4 << 20) * 8 / 100 / PAYLOAD_SHARE)
    assert pairs.bound_us(1 << 20, 4, "100mbit") == pytest.approx(1.5 * pairs.bound_us(1 << 20, 2, "100mbit"))
    assert pairs.bound_us(1 << 20, 2, None) is None


def test_what_links_carry_together_is_added_up():
    found = pairs.LinkTimes(["gloo:eth0", "mpi:eth1"])
    bound = pairs.bound_us(1 << 20, 2, "100mbit")
    for mode, share in (("alone", 1.0), ("together", 0.5)):
        for link in found.links:
            found.us[mode, link, 1 << 20] = bound / share
            found.rounds[mode, link, 1 << 20] = [bound / share]
    text = pairs.table([found], 2, ["100mbit", "100mbit"])
    assert "together carry 1.00 of one NIC's line rate, 1.00 of the faster link alone" in text


def test_a_nic_that_links_share_unevenly_carries_no_more_than_its_line_rate():
    found = pairs.LinkTimes(["gloo:eth0", "mpi:eth0"])
    bound = pairs.bound_us(1 << 20, 2, "100mbit")
    # The first link gets three fifths until it ends, and in the last round it is the other one that does.
    rounds = {"gloo:eth0": [bound / 0.6, bound / 0.6, 2 * bound], "mpi:eth0": [2 * bound, 2 * bound, bound / 0.6]}
    for link in found.links:
        found.us["alone", link, 1 << 20] = bound
        found.us["together", link, 1 << 20] = statistics.median(rounds[link])
        found.rounds["together", link, 1 << 20] = rounds[link]
    text = pairs.table([found], 2, ["100mbit"])
    assert "together carry 1.00 of one NIC's line rate, 1.00 of the faster link alone" in text


@pytest.mark.skipif(not HAS_MPI, reason="this build has no MPI links: see deft check-build")
def test_pairs_are_measured_in_emulated_nodes_and_planned_for(tmp_path):
    path = tmp_path / "pairs.json"
    sets = ["gloo:eth0,mpi:eth1", "gloo:eth0,mpi:eth0", "ps:eth0"]
    limits = ["--rate", "200mbit", "--rounds", "2", "--elements", "16384,65536,0.25M"]
    command = [sys.executable, ROOT / "bench/link_pairs", *limits, "--sets", *sets, "--json", path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if "needs emulated nodes" in done.stderr:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr
    multi, single, servers = json.loads(path.read_text())
    assert [multi["kind"], single["kind"], servers["kind"]] == ["multi-link", "single-link", "one link"]
    times = {(t["links"], t["link"]): t["us"] for t in single["times"] if t["elements"] == 1 << 18}
    bound = pairs.bound_us(1 << 18, 2, "200mbit")
    assert min(times.values()) > 0.8 * bound  # what the token buckets hold comes on top
    assert max(times["together", link] for link in single["links"]) > 1.6 * bound  # one NIC has to carry both
    assert "what the planner makes of them" in done.stdout
    assert {fit["link"] for fit in multi["fits"]} == {"gloo:eth0", "mpi:eth1"}


@pytest.mark.parametrize(
    ("words", "said"),
    [(["--sets", "mpi"], "with a NIC"), (["--elements", "x"], "--elements x"), (["--nodes", "1"], "sends nothing")],
)
def test_mistakes_are_said_before_anything_starts(words, said):
    done = subprocess.run(
        [sys.executable, ROOT / "bench/link_pairs", *words], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 2 and said in done.stderr


@pytest.mark.skipif(not HAS_MPI, reason="this build has no MPI links: see deft check-build")
def test_training_over_gloo_and_mpi_keeps_replicas_equal(tmp_path):
    path = tmp_path / "out.json"
    done = run_compare("--model", "mlp", "--rate", "100mbit", "--links", "gloo:eth0,mpi:eth1", "--steps", 4,
                       "--rounds", 1, "--schemes", "fifo,fifo@1", "--json", path)  # fmt: skip
    assert done.returncode == 0, done.stderr
    mixed, plain = json.loads(path.read_text())
    assert len(set(mixed["params_sha256"] + plain["params_sha256"])) == 1
