import json
import os
from pathlib import Path

import pytest
from lab_commands import ROOT, run_compare

pytestmark = pytest.mark.usefixtures("fashion_mnist")
QUICK = ("--model", "mlp", "--steps", "3", "--rounds", "2", "--batch", "32")
BUILT = (ROOT / "build/bin/deftd").exists() and (ROOT / "build/python/deft/torch").exists()


def compared(tmp_path, *argv, **more):
    out = tmp_path / "out.json"
    done = run_compare(*QUICK, "--json", out, *argv, **more)
    return done, {record["scheme"]: record for record in json.loads(out.read_text())} if out.exists() else {}


def test_ddp_keeps_replicas_equal_and_compute_does_not(emulated, tmp_path):
    plot = tmp_path / "plot.png"
    schemes = "compute,ddp,ddp:5@1,ddp:5@free"
    done, records = compared(tmp_path, "--schemes", schemes, "--coverage", "0.5", "--accuracy", "--plot", plot)
    assert done.returncode == 0, done.stderr
    assert list(records) == schemes.split(",")
    assert len(set(records["compute"]["params_sha256"])) == 2
    for scheme in ("ddp", "ddp:5@1", "ddp:5@free"):
        assert len(records[scheme]["params_sha256"]) == 2
        assert len(set(records[scheme]["params_sha256"])) == 1
    # The same samples in the same order: every way of averaging trains the same model.
    assert records["ddp:5@1"]["loss"] == pytest.approx(records["ddp"]["loss"], abs=1e-4)
    assert records["ddp"]["speedup_vs_ddp"] == 1
    assert records["ddp"]["updates_per_step"] == 1
    assert 0.1 < records["ddp"]["accuracy"] < 1
    assert records["ddp"]["cpu_ms_per_step"] > 0
    assert "round 2/2" in done.stderr
    assert plot.stat().st_size > 2000


@pytest.mark.skipif(not BUILT, reason="deftd or the torch plugin is not built")
def test_replay_predicts_each_scheme_from_its_trace_and_from_the_first_ones(emulated, tmp_path):
    schemes = "fifo,bytescheduler,fifo:compression=int8,fifo@4x"
    done, records = compared(tmp_path, "--predict", "--schemes", schemes, "--coverage", "2", "--logs", tmp_path)
    assert done.returncode == 0, done.stderr
    said = {(p["from"], scheme): p for scheme, record in records.items() for p in record["predictions"]}
    assert set(said) == {(traced, scheme) for scheme in schemes.split(",") for traced in ("fifo", scheme)}
    assert all(p["ms"] > 0 and p["coarse_ms"] > 0 and p["measured_ms"] > 0 for p in said.values())
    # The network bounds this job on any machine, so a quarter of the bytes and four times the rate are much faster.
    for scheme in ("fifo:compression=int8", "fifo@4x"):
        assert said["fifo", scheme]["ms"] < 0.8 * said["fifo", "fifo"]["ms"]
    assert "from the trace of" in done.stdout


@pytest.mark.skipif(not BUILT, reason="deftd or the torch plugin is not built")
@pytest.mark.parametrize(
    "nodes", [["--nodes", "2"], ["--nodes", "2", "--workers", "2"], ["--nodes", "2", "--loopback"]]
)
def test_deft_trains_what_ddp_trains(tmp_path, nodes):
    schemes = "ddp:5,fifo,bytescheduler:partition_bytes=64KB@1,fifo@free,fifo-ddp:5"
    if "--workers" in nodes:
        schemes += ",fsdp2,fifo-fsdp2"
    done, records = compared(tmp_path, "--schemes", schemes, "--rate", "200mbit", *nodes)
    assert done.returncode == 0, done.stderr
    assert list(records) == schemes.split(",")
    for record in records.values():
        assert len(set(record["params_sha256"])) == 1
        assert record["loss"] == pytest.approx(records["ddp:5"]["loss"], abs=1e-3)
        assert record["updates_per_step"] == 1


def test_every_way_of_sending_less_keeps_replicas_equal_and_counts_its_updates(emulated, tmp_path):
    schemes = "ddp-nosync-2:5,ddp-fp16:5,ddp-powersgd:5"
    if BUILT:
        schemes += ",bytescheduler-accumulate-2,fifo-accumulate-3@1"
    done, records = compared(tmp_path, "--schemes", schemes, "--rate", "200mbit")
    assert done.returncode == 0, done.stderr
    assert list(records) == schemes.split(",")
    updates = {"ddp-nosync-2:5": 1 / 2, "bytescheduler-accumulate-2": 1 / 2, "fifo-accumulate-3@1": 1 / 3}
    for scheme, record in records.items():
        assert len(set(record["params_sha256"])) == 1
        assert record["updates_per_step"] == pytest.approx(updates.get(scheme, 1), abs=1e-3)
    if BUILT:  # the same samples, added up in the same way
        ours, theirs = records["bytescheduler-accumulate-2"], records["ddp-nosync-2:5"]
        assert ours["loss"] == pytest.approx(theirs["loss"], abs=1e-3)


@pytest.mark.skipif(not BUILT, reason="deftd or the torch plugin is not built")
def test_replicas_stay_equal_when_a_nic_and_a_node_slow_down_in_mid_run(emulated, tmp_path):
    events = ["--nic-event", "eth1@step 2: 5mbit", "--nic-event", "node1/eth0@step 1: 50mbit"]
    events += ["--straggler", "node1@step 1: 0.5"]
    done, records = compared(tmp_path, "--schemes", "fifo,bytescheduler", "--rate", "200mbit", *events)
    assert done.returncode == 0, done.stderr
    for scheme in ("fifo", "bytescheduler"):
        assert len(set(records[scheme]["params_sha256"])) == 1
        for round_number in (1, 2):
            for what in (
                "step 2: eth1 at 5mbit",
                "step 1: node1/eth0 at 50mbit",
                "step 1: node1 gets 0.5 of its cores",
            ):
                assert f"round {round_number}/2, {scheme}: {what}" in done.stderr
    assert records["fifo"]["loss"] == pytest.approx(records["bytescheduler"]["loss"], abs=1e-3)


@pytest.mark.skipif(not BUILT, reason="deftd or the torch plugin is not built")
def test_verify_and_time_to_accuracy_add_what_they_measure(emulated, tmp_path):
    schemes = "compute,ddp:5,fifo,bytescheduler@1"
    more = ["--verify", "--epochs", "0.01", "--time-to-accuracy", "11%"]
    done, records = compared(tmp_path, "--schemes", schemes, "--coverage", "1", *more)
    assert done.returncode == 0, done.stderr
    assert "forecast_ms" not in records["ddp:5"]
    for scheme in ("compute", "fifo", "bytescheduler@1"):
        assert records[scheme]["forecast_ms"] >= records[scheme]["forecast_network_ms"] > 0
    assert records["fifo"]["forecast_network_ms"] > records["compute"]["forecast_ms"]
    for record in records.values():
        assert 0 < record["test_loss"] < 5
        reached = any(score["accuracy"] >= 0.11 for score in record["scores"])
        assert (record["time_to_accuracy_s"] or 0) > 0 if reached else record["time_to_accuracy_s"] is None
        assert record["scores"][-1]["accuracy"] == record["accuracy"]
        assert f"{record['scheme']}: test accuracy {record['accuracy']:.2%} after" in done.stderr
    assert records["fifo"]["time_to_accuracy_s"] > 0
    assert "all-reduce: gloo:eth0 " in done.stderr
    assert "s to accuracy" in done.stdout
    assert "with Deft's CPU ms" in done.stdout


@pytest.mark.skipif(not BUILT, reason="deftd or the torch plugin is not built")
def test_replayed_layers_go_through_every_kind_of_scheme(emulated, tmp_path):
    schemes = "compute,ddp:5,fifo,bytescheduler-accumulate-2,knapsack:preserver=off:compression=none"
    more = ["--accelerator", "--verify", "--model", "resnet", "--batch", "8", "--steps", "4"]
    done, records = compared(tmp_path, "--schemes", schemes, "--rate", "100mbit", *more)
    assert done.returncode == 0, done.stderr
    assert "layers on the cores: forward" in done.stderr and "as on an accelerator" in done.stderr
    assert list(records) == schemes.split(",")
    for scheme, record in records.items():
        assert record["loss"] is None
        assert len(set(record["params_sha256"])) == (2 if scheme == "compute" else 1)
        assert 0 < record["updates_per_step"] <= 1
        assert record["updates_per_step"] == (0.5 if "accumulate" in scheme else 1) or "knapsack" in scheme
    fifo, compute = records["fifo"], records["compute"]
    assert compute["forecast_ms"] == compute["forecast_network_ms"] > 0
    cpu_added_ms = max(0.0, fifo["cpu_ms_per_step"] - compute["cpu_ms_per_step"])  # busy machines measure badly
    assert 0 < fifo["forecast_network_ms"] <= fifo["forecast_ms"] <= fifo["forecast_network_ms"] + cpu_added_ms + 0.1


def test_without_namespaces_it_says_so_and_trains_over_loopback(tmp_path):
    # A PATH without unshare is a system without namespaces.
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("taskset", "env"):
        (programs / name).symlink_to(f"/usr/bin/{name}")
    environment = {**os.environ, "PATH": str(programs)}
    done, records = compared(tmp_path, "--schemes", "compute,ddp:5", env=environment)
    if Path("/sbin/unshare").exists():
        pytest.skip("unshare lies in /sbin here")
    assert done.returncode == 0, done.stderr
    assert "No emulated nodes: the program unshare is missing" in done.stderr
    assert "loopback" in done.stderr
    assert records["ddp:5"]["rate"] == "none"


def test_a_scheme_that_fails_is_named_and_the_others_go_on(tmp_path):
    done, records = compared(tmp_path, "--schemes", "compute,fifo", "--build", tmp_path / "nowhere", "--loopback")
    assert done.returncode == 1
    assert list(records) == ["compute"]
    assert "nowhere/bin/deftd is not built: run scripts/build" in done.stderr


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["--nodes", "0"], "--nodes"),
        (["--coverage", "-1"], "--coverage"),
        (["--coverage", "1", "--nodes", "1"], "two nodes"),
        (["--rate", "fast"], "fast"),
        (["--schemes", "fifo@5"], "@5"),
        (["--model", "alexnet"], "there are cnn, vgg"),
        (["--model", "gpt", "--data", "/no/such/folder"], "fortunes"),
        (["--nic-event", "eth5@step 3: 10mbit"], "eth5"),
        (["--nic-event", "eth0@step 20: 10mbit", "--steps", "20"], "in no round"),
        (["--straggler", "node1@step 3: 2"], "share"),
        (["--time-to-accuracy", "0.5"], "--epochs"),
        (["--time-to-accuracy", "120%", "--epochs", "1"], "between"),
        (["--verify", "--schemes", "ddp,fifo"], "compute"),
        (["--verify", "--schemes", "compute,knapsack"], "'knapsack': --verify forecasts exact gradients"),
        (["--verify", "--schemes", "compute,fifo:compression=int8"], "add :compression=none"),
        (["--accelerator", "--epochs", "1"], "--epochs"),
        (["--accelerator", "--accuracy"], "--accuracy"),
        (["--accelerator", "--straggler", "node1@step 3: 0.5"], "--straggler"),
        (["--verify", "--straggler", "node1@step 3: 0.5"], "steady"),
        (["--plot", "x.doc"], "x.doc"),
        (["--json", "/no/such/folder/x.json"], "/no/such/folder"),
        (["--json", "/tmp"], "it is a folder"),
        (["--data", "/no/such/folder"], "dataset-fashion-mnist"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(argv, named):
    done = run_compare(*argv, timeout=120)
    assert done.returncode == 2
    assert named in done.stderr
