"""Traces of real jobs: written by each node's daemon, put on one clock, replayed."""

import json
import os
import re
import resource
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from cluster import BUILD, ROOT, Cluster, deft, json_of, wait_until
from test_parameter_servers import Servers

STEPS = 24
STRANGER = 61_000  # a user that is nobody here
MONTH_S = 30 * 24 * 3600
TRAIN = """
group = session.declare("g", [deft.Tensor(f"t{i}", deft.FLOAT32, (100_000,), 3 - i) for i in range(4)])
for step in range(int(os.environ["STEPS"])):
    session.stage(deft.FORWARD, step)
    time.sleep(0.002)
    session.stage(deft.BACKWARD, step)
    for tensor in range(4):
        time.sleep(0.002)
        vector(group, tensor, np.float32)[:] = 1
        group.ready(tensor, 1, step)
    for tensor in range(4):
        group.wait(tensor, 1, step)
session.close()
"""

# 300 blocks of float32 and as many of halves, which int8 encodes, and a bias, which it does not.
MIXED = """
tensors = [deft.Tensor("w", deft.FLOAT32, (256, 300), 2), deft.Tensor("b", deft.FLOAT32, (10_000,), 1),
           deft.Tensor("h", deft.BFLOAT16, (256, 300), 0)]
group = session.declare("g", tensors)
for step in range(int(os.environ["STEPS"])):
    session.stage(deft.FORWARD, step)
    time.sleep(0.002)
    session.stage(deft.BACKWARD, step)
    for tensor in range(3):
        group.ready(tensor, 1, step)
    for tensor in range(3):
        group.wait(tensor, 1, step)
session.close()
"""
MIXED_BYTES = {4: 307_200, 2: 153_600}  # by the bytes of an element: what may be encoded
INT8_SHARE = 258 / 1024  # of a block
FIRST_SEGMENT_FLOW = 1 << 52


# What to put before a command, so that its monotonic clock is a month ahead.
IN_ANOTHER_MONTH = ["unshare", "-r", "-T", "--monotonic", str(MONTH_S), "--fork", "--kill-child"]


class ClusterOfTwoMonths(Cluster):
    """The second node's clock is a month ahead."""

    def prefix(self, node: int) -> list[str]:
        return IN_ANOTHER_MONTH if node == 1 else []


def trace(folder: Path, cluster: Cluster, script: str = TRAIN, **options: str) -> None:
    workers = cluster.start(script, STEPS=str(STEPS), DEFT_TRACE=str(folder), **options)
    cluster.finish(workers)
    # The daemons finish the files once all workers have left.
    wait_until(lambda: not read_problems(folder), what="the end of the traces")


def read_problems(folder: Path) -> str:
    return deft("trace", "merge", str(folder), "-o", str(folder / "unread")).stderr


def started_steps(cluster: Cluster) -> int:
    groups = [group for job in cluster.status()["jobs"] for group in job["groups"]]
    return max((group["step"] for group in groups), default=0)


def decoded(path: Path) -> str:
    """A Perfetto trace as text, by the compiler of its messages."""
    command = ["protoc", f"-I{ROOT / 'proto'}", "--decode=deft.perfetto.Trace", "perfetto.proto"]
    with path.open("rb") as file:
        done = subprocess.run(command, stdin=file, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def launches(slices: list[dict]) -> dict[int, list[tuple[int, int, int]]]:
    """By launch: node, begin and end of its transfer."""
    found: dict[int, list[tuple[int, int, int]]] = {}
    for entry in slices:
        if entry.get("cat") == "transfer" and entry["ph"] == "X":
            times = (entry["pid"], entry["ts"], entry["ts"] + entry["dur"])
            found.setdefault(entry["args"]["launch"], []).append(times)
    return found


def arrows(events: list[dict]) -> dict[int, list[tuple[int, int, int]]]:
    """By number: node, begin and end of the transfer that each end of the arrow is in."""
    transfers = {(e["pid"], e["tid"], e["ts"]): e for e in events if e.get("cat") == "transfer" and e["ph"] == "X"}
    found: dict[int, list[dict]] = {}
    for event in events:
        if event["ph"] in "stf" and event["name"] == "launch":
            found.setdefault(event["id"], []).append(event)
    assert all("".join(e["ph"] for e in ends) == "sf" and ends[1]["bp"] == "e" for ends in found.values())
    assert all(start["ts"] <= finish["ts"] for start, finish in found.values())
    joined = {number: [transfers[e["pid"], e["tid"], e["ts"]] for e in ends] for number, ends in found.items()}
    return {number: sorted((e["pid"], e["ts"], e["ts"] + e["dur"]) for e in ends) for number, ends in joined.items()}


def segments(events: list[dict]) -> dict[str, dict[tuple, dict]]:
    """What nodes have sent and received: by from, to, launch, request, and part with its round."""
    found: dict[str, dict[tuple, dict]] = {"send": {}, "receive": {}}
    for event in events:
        if event["ph"] != "X" or event["cat"] not in found:
            continue
        part, way, kind, peer = re.fullmatch(r"(\w+ \d+) (to|of) (node|server) (\d+)", event["name"]).groups()
        assert (way == "to") == (event["cat"] == "send")
        node, other = event["pid"], f"{kind} {peer}" if kind == "server" else int(peer)
        ends = (node, other) if way == "to" else (other, node)
        key = (*ends, event["args"]["launch"], event["args"]["request"], part)
        assert key not in found[event["cat"]]
        found[event["cat"]][key] = event
    return found


def merged_events(folder: Path) -> list[dict]:
    merged = deft("trace", "merge", str(folder), "--chrome")
    assert merged.returncode == 0, merged.stderr
    return json.loads((folder / "merged.json").read_text())


@pytest.mark.parametrize("links", ["gloo:lo", "mpi:lo", "tcp:lo"])
def test_each_send_of_a_segment_has_its_receive(tmp_path, links):
    if "mpi" in links and not (BUILD / "bin/deft-mpi").exists():
        pytest.skip("this build has no MPI links")
    with Cluster(2, links=links) as cluster:
        trace(tmp_path, cluster)
    events = merged_events(tmp_path)
    found = segments(events)
    assert found["send"].keys() == found["receive"].keys()
    assert {key[:2] for key in found["send"]} == {(0, 1), (1, 0)}
    assert {key[2] for key in found["send"]} >= launches(events).keys(), "each launch sends something"
    flows = Counter(event["id"] for event in events if event["ph"] in "sf" and event["name"] == "segment")
    assert len(flows) == len(found["send"]) and set(flows.values()) == {2} and min(flows) >= FIRST_SEGMENT_FLOW
    for key, sent in found["send"].items():
        received = found["receive"][key]
        assert received["args"]["bytes"] == sent["args"]["bytes"] > 0
        assert received["ts"] >= sent["ts"]


def test_what_goes_over_a_server_is_told_by_each_node(tmp_path):
    with Cluster(2) as cluster:
        trace(tmp_path, cluster, DEFT_LINKS=Servers(cluster, 1).link)
    events = merged_events(tmp_path)
    found = segments(events)
    pushed = {(node, server, *rest, part.split()[1]) for node, server, *rest, part in found["send"]}
    answered = {(node, server, *rest, part.split()[1]) for server, node, *rest, part in found["receive"]}
    assert pushed == answered and {key[:2] for key in pushed} == {(0, "server 0"), (1, "server 0")}
    starts = {event["id"]: event for event in events if event["ph"] == "s" and event["name"] == "segment"}
    ends = {event["id"]: event for event in events if event["ph"] == "f" and event["name"] == "segment"}
    brought = [event for event in found["receive"].values() if event["args"]["bytes"] > 0]
    assert starts.keys() == ends.keys() and len(starts) == len(brought) > 0, "an arrow leads to each answer"
    assert all(starts[number]["ts"] <= end["ts"] for number, end in ends.items())
    assert Counter((start["pid"], start["tid"], start["ts"]) for start in starts.values()).most_common()[-1][1] == 2, (
        "one push, the last one, has fed the answers of both nodes"
    )


def test_nodes_whose_clocks_are_a_month_apart_are_put_on_one_clock(tmp_path):
    if not Path("/proc/self/ns/time").exists():
        pytest.skip("this kernel has no time namespaces")
    with ClusterOfTwoMonths(2) as cluster:
        trace(tmp_path, cluster)
    assert sorted(path.name for path in tmp_path.glob("*.trace")) == ["default-node0.trace", "default-node1.trace"]
    merged = deft("trace", "merge", str(tmp_path), "--chrome")
    assert merged.returncode == 0, merged.stderr
    error_us = int(re.search(r"node 1 .* aligned within (\d+) us", merged.stdout)[1])
    # How close it really comes is clock_alignment_test's: on a busy machine each answer may be late.
    assert error_us < 5_000_000, "of a month"
    events = json.loads((tmp_path / "merged.json").read_text())
    by_launch = launches(events)
    assert len(by_launch) >= STEPS
    assert arrows(events) == {launch + 1: sorted(times) for launch, times in by_launch.items()}
    # No node has a sum before the other one has brought its gradients.
    for (_, begin, end), (_, other_begin, other_end) in by_launch.values():
        assert begin <= other_end + error_us and other_begin <= end + error_us

    binary = deft("trace", "merge", str(tmp_path))
    assert binary.returncode == 0, binary.stderr
    packets = decoded(tmp_path / "merged.perfetto-trace")
    slices = int(re.search(r"(\d+) slices", binary.stdout)[1])
    types = Counter(re.findall(r"type: TYPE_(\w+)", packets))
    assert types["SLICE_BEGIN"] == types["SLICE_END"] and types["SLICE_BEGIN"] + types["INSTANT"] == slices
    assert re.findall(r'process_name: "(node \d)', packets) == ["node 0", "node 1"]
    on_both = Counter(int(flow) for flow in re.findall(r"flow_ids: (\d+)", packets))
    of_launches = [flow for flow in on_both if flow < FIRST_SEGMENT_FLOW]
    assert len(of_launches) == len(by_launch) and set(on_both.values()) == {2}, "the arrows of a launch"
    assert len(on_both) - len(of_launches) == len(segments(events)["send"]), "and of each segment"


def test_a_node_keeps_its_name_if_the_file_of_another_is_missing(tmp_path):
    with Cluster(2) as cluster:
        trace(tmp_path, cluster)
    (tmp_path / "default-node0.trace").unlink()
    assert deft("trace", "merge", str(tmp_path), "--chrome").returncode == 0
    events = json.loads((tmp_path / "merged.json").read_text())
    assert {event["pid"] for event in events} == {1}
    assert [event["args"]["name"][:6] for event in events if event["name"] == "process_name"] == ["node 1"]


def test_a_trace_is_replayed(tmp_path):
    with Cluster(2) as cluster:
        trace(tmp_path, cluster)
    replayed = deft("replay", str(tmp_path), "--json", "--policy", "all", "--profile", str(tmp_path / "profile.json"))
    assert replayed.returncode == 0, replayed.stderr
    predictions = {entry["policy"]: entry for entry in json_of(replayed)}
    assert {"fifo", "bytescheduler", "knapsack"} <= predictions.keys()
    for entry in predictions.values():
        assert 0 < entry["step_us_p10"] <= entry["step_us_p50"] <= entry["step_us_p90"]
        assert entry["measured_step_us_p50"] > 10_000, "ten milliseconds of each step are sleep"
        assert entry["compute_us"] > 10_000
    explained = deft("explain", str(tmp_path))
    assert re.search(r"policies in the traced steps\n  fifo \(25 MB\), with which the job began", explained.stdout)
    merged = deft("trace", "merge", str(tmp_path), "--chrome")
    marks = [event for event in json.loads((tmp_path / "merged.json").read_text()) if event.get("cat") == "policy"]
    assert merged.returncode == 0 and marks[0]["name"] == "fifo (25 MB)" and {mark["pid"] for mark in marks} == {0}
    assert deft("simulate", str(tmp_path / "profile.json"), "--policy", "fifo").returncode == 0
    unknown = deft("replay", str(tmp_path), "--links", "eth7=2x")
    assert unknown.returncode == 2 and "eth7" in unknown.stderr and "gloo:lo" in unknown.stderr


def test_a_job_whose_workers_run_the_links_is_explained(tmp_path):
    with Cluster(2, links="tcp:lo") as cluster:
        trace(tmp_path, cluster, DEFT_POLICY="fifo")
    explained = deft("explain", str(tmp_path))
    assert explained.returncode == 0, explained.stderr
    assert "where a step's time goes" in explained.stdout and not explained.stderr


def test_a_trace_tells_what_a_codec_may_encode(tmp_path):
    with Cluster(2) as cluster:
        trace(tmp_path, cluster, MIXED, DEFT_POLICY="fifo", DEFT_COMPRESSION="int8")
    replayed = deft("replay", str(tmp_path), "--profile", str(tmp_path / "profile.json"))
    assert replayed.returncode == 0, replayed.stderr
    profile = json.loads((tmp_path / "profile.json").read_text())
    for element_bytes, coded in MIXED_BYTES.items():
        buckets = [bucket for bucket in profile["buckets"] if bucket.get("element_bytes", 4) == element_bytes]
        assert sum(bucket["coded_bytes"] for bucket in buckets) == coded
    of_all = deft("replay", str(tmp_path), "--policy", "all")
    assert of_all.returncode == 0, of_all.stderr
    assert re.search(r"^dear +cannot: .*halves", of_all.stdout, re.M) and re.search(r"^p3 +\d", of_all.stdout, re.M)
    # Bytes of encodings over bytes of their gradients as float32. Gradients that travel as they are do not count.
    assert profile["codecs"][1]["wire_share"] == pytest.approx(INT8_SHARE, rel=1e-3)


def test_other_codecs_for_plans_are_not_the_traced_job(tmp_path):
    synchronous = {"DEFT_MAX_MERGED_STEPS": "1", "DEFT_MAX_STALENESS_STEPS": "0"}
    with Cluster(2) as cluster:
        trace(tmp_path, cluster, DEFT_POLICY="knapsack", **synchronous)
    for what_if, is_traced in (([], True), (["--compression", "auto/max=bf16"], False)):
        replayed = deft("replay", str(tmp_path), *what_if)
        assert replayed.returncode == 0, replayed.stderr
        assert ("traced:" in replayed.stdout) == is_traced, replayed.stdout


def test_a_relative_folder_is_that_of_the_worker(tmp_path, monkeypatch):
    with Cluster(1) as cluster:  # its daemon has another working directory
        monkeypatch.chdir(tmp_path)
        cluster.finish(cluster.start(TRAIN, STEPS="2", DEFT_TRACE="traces"))
    assert Path("traces/default-node0.trace").exists()


def test_only_the_wanted_steps_are_written(tmp_path):
    with Cluster(1) as cluster:
        trace(tmp_path, cluster, DEFT_TRACE_STEPS="5-7")
    merged = deft("trace", "merge", str(tmp_path), "--chrome")
    assert merged.returncode == 0, merged.stderr
    slices = json.loads((tmp_path / "merged.json").read_text())
    assert {entry["args"]["step"] for entry in slices if entry.get("cat") == "compute"} == {5, 6, 7}


def test_a_running_job_is_traced_when_a_user_asks_and_when_it_fails(tmp_path):
    with Cluster(2) as cluster:
        workers = cluster.start(TRAIN, STEPS="100000")
        control = ["--socket", cluster.socket(0)]
        wait_until(lambda: started_steps(cluster) > STEPS, what="some steps")
        dumped = deft("trace", "dump", *control)
        assert dumped.returncode == 0, dumped.stderr
        dump = Path(dumped.stdout.strip())
        assert dump.name == "default-node0.trace" and dump.is_relative_to(f"{cluster.folder.name}/state/traces")
        wait_until((dump.parent / "default-node1.trace").exists, what="the other node's file")
        replayed = deft("replay", str(dump.parent), "--json")
        assert replayed.returncode == 0, replayed.stderr

        explained = deft("explain", "--live", *control)
        assert explained.returncode == 0 and "where a step's time goes" in explained.stdout, explained.stderr
        named = deft("explain", "--live", "default", "--json", *control)
        assert named.returncode == 0 and json_of(named)[0]["cause"], named.stderr
        assert "nojob" in deft("explain", "--live", "nojob", *control).stderr
        same = deft("status", "--explain", *control)
        assert same.returncode == 0 and "where a step's time goes" in same.stdout, same.stderr
        assert "nojob" in deft("status", "--explain", "nojob", *control).stderr

        folder = tmp_path / "wanted"
        assert deft("trace", "start", str(folder), "default", *control).returncode == 0
        again = deft("trace", "start", str(folder), *control)
        assert again.returncode == 2 and "already" in again.stderr
        begun = started_steps(cluster)
        wait_until(lambda: started_steps(cluster) > begun + STEPS, what="some more steps")
        stopped = deft("trace", "stop", *control)
        assert stopped.returncode == 0 and stopped.stdout.strip() == f"{folder}/default-node0.trace"
        assert read_problems(folder) == "", "the files of both nodes are complete"
        assert deft("replay", str(folder)).returncode == 0

        assert deft("trace", "start", str(tmp_path / "some"), "--steps", "12", *control).returncode == 0
        wait_until(lambda: not read_problems(tmp_path / "some"), what="the end of twelve steps")
        assert deft("replay", str(tmp_path / "some")).returncode == 0
        assert deft("trace", "start", str(folder), "--steps", "none", *control).returncode == 2

        daemon = cluster.daemons[0].pid
        most = resource.prlimit(daemon, resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
        assert deft("trace", "start", str(tmp_path / "limited"), "--steps", "12", *control).returncode == 0
        begun = started_steps(cluster)
        wait_until(lambda: started_steps(cluster) > begun + STEPS, what="steps whose trace has no room")
        resource.prlimit(daemon, resource.RLIMIT_FSIZE, most)

        elsewhere = deft("trace", "dump", "--socket", cluster.socket(1))
        assert elsewhere.returncode == 2 and f"rank 0, at {cluster.listen[0]}" in elsewhere.stderr
        unknown = deft("trace", "dump", "nojob", *control)
        assert unknown.returncode == 2 and "nojob" in unknown.stderr

        before = dump.stat().st_mtime_ns
        workers[1].kill()
        wait_until(lambda: dump.stat().st_mtime_ns > before, what="the trace of the failed job")
        for node in (0, 1):
            wait_until(lambda node=node: "the job failed: the newest events are in" in cluster.log(node))


def test_a_folder_that_cannot_be_written_ends_the_job_with_its_name():
    with Cluster(1) as cluster:
        (worker,) = cluster.start(TRAIN, STEPS="1", DEFT_TRACE="/proc/nowhere")
        _, error = worker.communicate(timeout=120)
    assert worker.returncode != 0
    assert "/proc/nowhere" in error


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make links of another user")
def test_links_that_another_user_planted_lead_no_trace_elsewhere(tmp_path):
    precious, everyones = tmp_path / "precious", tmp_path / "everyones"
    precious.mkdir()
    everyones.mkdir()
    everyones.chmod(0o1777)
    (precious / "file").write_text("precious")
    for name, target in (("traces", precious), ("default-node0.trace", precious / "file")):
        (everyones / name).symlink_to(target)
        os.lchown(everyones / name, STRANGER, STRANGER)
    for name in ("traces", "traces/deeper"):
        with Cluster(1) as cluster:
            (worker,) = cluster.start(TRAIN, STEPS="1", DEFT_TRACE=str(everyones / name))
            _, error = worker.communicate(timeout=120)
        assert worker.returncode != 0 and f"traces is a symbolic link of user {STRANGER}" in error, error
    with Cluster(1) as cluster:
        trace(everyones, cluster)
    assert not (everyones / "default-node0.trace").is_symlink(), "it was replaced and not followed"
    assert [path.name for path in precious.iterdir()] == ["file"]
    assert (precious / "file").read_text() == "precious"


def test_what_is_no_trace_is_named(tmp_path):
    (tmp_path / "x.trace").write_text("hello")
    broken = deft("trace", "merge", str(tmp_path))
    assert broken.returncode == 2 and "x.trace" in broken.stderr
    for command in (["trace", "merge"], ["report"], ["optimize"], ["explain"], ["replay"]):
        absent = deft(*command, str(tmp_path / "absent"))
        assert absent.returncode == 2 and f"cannot read the folder {tmp_path}/absent: No such" in absent.stderr, command
    assert deft("replay").returncode == 2


def test_an_error_says_what_is_wrong_with_the_traces(tmp_path):
    seed = (ROOT / "tests/fuzz_trace/corpus/fuzz_trace/file").read_bytes()[1:]  # the first byte is the fuzzer's
    (tmp_path / "cut-node0.trace").write_bytes(seed[: len(seed) // 2])
    for command in ("replay", "explain", "optimize"):
        (error,) = deft(command, str(tmp_path)).stderr.splitlines()
        assert "cut-node0.trace: the file ends within a frame" in error
