"""What users get wrong: each a clear error on every side, at once or by the deadline."""

import os
import random
import socket
import subprocess
from pathlib import Path

import pytest
from cluster import BUILD, TIMEOUT_S, Cluster, wait_for_line, wait_until

DEADLINE = f"{TIMEOUT_S:g}s"  # of jobs whose error comes only then
ATTACH = "session.close()\n"

DECLARE = """
group = session.declare("sgd", [deft.Tensor(*spec) for spec in eval(os.environ["TENSORS"])])
session.close()
"""


def errors(workers) -> list[str]:
    texts = []
    for worker in workers:
        _, err = worker.communicate(timeout=120)
        assert worker.returncode != 0, "the worker should have failed"
        texts.append(err)
    return texts


def run_deftd(*flags: str, **variables: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [BUILD / "bin/deftd", *flags], capture_output=True, text=True, timeout=120, env=os.environ | variables
    )


@pytest.mark.parametrize("nodes, per_node", [(1, 2), (2, 1)])
def test_a_wrong_world_size(nodes, per_node):
    with Cluster(nodes) as cluster:
        first = cluster.start_one(ATTACH, 0, per_node)
        other = cluster.start_one(ATTACH, 1, per_node, DEFT_WORLD_SIZE="3")
        for text in errors([first, other]):
            assert "world size of 3" in text or ("has a world size of 2" in text and "have 3" in text), text


@pytest.mark.parametrize("nodes, per_node", [(1, 2), (2, 1)])
def test_two_workers_of_one_rank(nodes, per_node):
    with Cluster(nodes, timeout=DEADLINE) as cluster:
        first = cluster.start_one(ATTACH, 0, per_node)
        other = cluster.start_one(ATTACH, 1, per_node, DEFT_RANK="0")
        texts = errors([first, other])
        if nodes == 1:
            assert all("two workers have rank 0" in text for text in texts)
        else:  # two leaders wait for each other's rank 1
            assert all("rank 1 of 2 is missing" in text for text in texts)


def test_a_missing_worker_is_listed_at_the_deadline():
    with Cluster(3, timeout=DEADLINE) as cluster:
        workers = [cluster.start_one(ATTACH, rank) for rank in (0, 2)]
        for text in errors(workers):
            assert "rank 1 of 3 is missing" in text


def test_a_missing_leader_is_named_at_the_deadline():
    with Cluster(2, timeout=DEADLINE) as cluster:
        [text] = errors([cluster.start_one(ATTACH, 1)])
        assert f"the leader at {cluster.listen[0]} did not answer" in text
        elsewhere = {"DEFT_LEADER": "leader.invalid:29610", "DEFT_LINKS": "ps:server.invalid:29610"}
        [text] = errors([cluster.start_one(ATTACH, 1, **elsewhere)])
        assert "this node finds no IPv4 address of that name" in text


def test_a_leader_may_be_a_name():
    with Cluster(2) as cluster:
        port = cluster.listen[0].rpartition(":")[2]
        cluster.finish(cluster.start(ATTACH, DEFT_LEADER=f"localhost:{port}"))


@pytest.mark.parametrize("nodes, per_node", [(1, 2), (2, 1)])
@pytest.mark.parametrize(
    "mine, other, expected",
    [
        ([("w", 1, (3, 4), 0)], [("v", 1, (3, 4), 0)], ["w float32 [3, 4] on rank 0", "v float32 [3, 4] on rank 1"]),
        ([("w", 1, (3, 4), 0)], [("w", 1, (4, 3), 0)], ["w float32 [3, 4] on rank 0", "w float32 [4, 3] on rank 1"]),
        ([("w", 1, (3, 4), 0)], [("w", 2, (3, 4), 0)], ["w float32 [3, 4] on rank 0", "w float64 [3, 4] on rank 1"]),
        ([("a", 1, (1,), 0), ("b", 1, (1,), 1)], [("b", 1, (1,), 0), ("a", 1, (1,), 1)], ["tensor 0 is a", "and b"]),
        (
            [("a", 1, (1,), 0), ("b", 1, (1,), 1)],
            [("a", 1, (1,), 0)],
            ["rank 0 declares 2 tensors", "rank 1 declares 1 "],
        ),
    ],
)
def test_tensors_that_differ_between_ranks(nodes, per_node, mine, other, expected):
    with Cluster(nodes) as cluster:
        workers = [
            cluster.start_one(DECLARE, 0, per_node, TENSORS=repr(mine)),
            cluster.start_one(DECLARE, 1, per_node, TENSORS=repr(other)),
        ]
        for text in errors(workers):
            assert all(part in text for part in expected), text


def test_collectives_that_differ_fail_alone_and_the_job_goes_on():
    script = """
x = np.ones(10, np.float32)
try:
    session.allreduce("x", pointer(x), 5 + rank, deft.FLOAT32, deft.SUM).finish(None)
    raise SystemExit("no error")
except deft.DeftError as error:
    assert "allreduce of 5 float32 (sum) on rank 0" in str(error) and "allreduce of 6" in str(error), str(error)
session.allreduce("y", pointer(x), 10, deft.FLOAT32, deft.SUM).finish(pointer(x))
assert (x == size).all()
session.close()
"""
    with Cluster(2) as cluster:
        cluster.finish(cluster.start(script))


def test_settings_that_differ_between_nodes():
    with Cluster(2) as cluster:
        workers = [
            cluster.start_one(ATTACH, 0, DEFT_POLICY="fifo"),
            cluster.start_one(ATTACH, 1, DEFT_POLICY="bytescheduler"),
        ]
        for text in errors(workers):
            assert "the nodes differ in 'policy': 'fifo' on" in text or "'policy': 'bytescheduler' on" in text, text
            assert "'fifo' on" in text and "'bytescheduler' on" in text, text


def test_a_nic_that_does_not_exist():
    with Cluster(2) as cluster:
        workers = cluster.start(ATTACH, DEFT_LINKS="gloo:ethX")
        for text in errors(workers):
            assert "ethX" in text and "lo" in text


def test_nodes_with_different_lists_are_named_on_every_side():
    with Cluster(2) as cluster:
        lists = ("gloo:lo", "gloo:lo,tcp:lo")
        workers = [cluster.start_one(ATTACH, rank, DEFT_LINKS=links) for rank, links in enumerate(lists)]
        for text in errors(workers):
            assert "'gloo' on" in text and "'gloo tcp' on" in text and "name as many on each" in text, text


def a_nic_that_is_down() -> str | None:
    for folder in sorted(Path("/sys/class/net").iterdir()):
        if not int((folder / "flags").read_text(), 16) & 1:
            return folder.name
    return None


@pytest.mark.parametrize("wrong", [0, 1])
@pytest.mark.parametrize(
    "links, says",
    [
        ("gloo:ethX", "no network interface 'ethX'"),
        ("mpi:ethX", "no network interface 'ethX'"),
        ("quantum:lo", "there is no link backend 'quantum'"),
        ("ps:nowhere", "'nowhere' is no address of a parameter server"),
        ("DOWN", "is down"),
    ],
)
def test_links_that_one_node_does_not_have_are_named_on_every_side(links, says, wrong):
    if links == "DOWN":
        nic = a_nic_that_is_down()
        if nic is None:
            pytest.skip("every NIC of this machine is up")
        links, says = f"gloo:{nic}", f"the network interface {nic} is down"
    with Cluster(2, timeout="300s") as cluster:
        workers = [cluster.start_one(ATTACH, rank, DEFT_LINKS=links if rank == wrong else "gloo:lo") for rank in (0, 1)]
        for text in errors(workers):  # which waits for less than the deadline
            assert says in text and f"links '{links}' on " in text, text


def test_links_that_a_node_does_not_have_are_named_where_the_others_do_not_come():
    with Cluster(2, timeout=DEADLINE) as cluster:
        for rank in (0, 1):
            [text] = errors([cluster.start_one(ATTACH, rank, DEFT_LINKS="gloo:ethX", DEFT_JOB=f"job{rank}")])
            assert "no network interface 'ethX'" in text, text


def test_a_policy_that_does_not_exist():
    with Cluster(1) as cluster:
        [text] = errors(cluster.start(ATTACH, DEFT_POLICY="bytesheduler"))
        assert "did you mean bytescheduler?" in text


def test_an_unknown_variable_in_a_worker():
    with Cluster(1) as cluster:
        [text] = errors(cluster.start(ATTACH, DEFT_POLICI="fifo"))
        assert "unknown option DEFT_POLICI (did you mean DEFT_POLICY?)" in text


def test_an_unknown_variable_or_flag_of_the_daemon():
    result = run_deftd(DEFT_TIMEOT="3")
    assert result.returncode == 2 and "did you mean DEFT_TIMEOUT?" in result.stderr
    result = run_deftd("--bucket-byte=3")
    assert result.returncode == 2 and "did you mean --bucket-bytes?" in result.stderr


def test_costs_of_links_that_cannot_be_read():
    result = run_deftd("--link-costs=/nowhere/probe.json")
    assert result.returncode == 2
    assert "link_costs" in result.stderr and "/nowhere/probe.json" in result.stderr
    assert "deft probe --output" in result.stderr


def test_a_second_daemon_on_the_same_socket():
    with Cluster(1) as cluster:
        result = run_deftd("--socket", cluster.socket(0), "--listen", "127.0.0.1:0")
        assert result.returncode == 1 and cluster.socket(0) in result.stderr
        assert cluster.daemons[0].poll() is None
        cluster.finish(cluster.start(ATTACH))


def test_a_port_in_use(tmp_path):
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        address = f"127.0.0.1:{holder.getsockname()[1]}"
        result = run_deftd("--socket", str(tmp_path / "d.sock"), "--listen", address)
        assert result.returncode == 1 and f"cannot listen on {address}" in result.stderr
    assert not os.path.exists(tmp_path / "d.sock")


def test_a_full_memory_limit_fails_that_job_only():
    script = 'session.declare("big", [deft.Tensor("w", deft.FLOAT32, (1 << 22,), 0)])\n'
    with Cluster(1, memory_limit="8MB") as cluster:
        [text] = errors(cluster.start(script))
        assert "shared memory is full" in text and "DEFT_MEMORY_LIMIT" in text
        cluster.finish(cluster.start(ATTACH))


def test_no_daemon(tmp_path):
    with Cluster(1) as cluster:
        [text] = errors([cluster.start_one(ATTACH, 0, DEFT_SOCKET=str(tmp_path / "none.sock"))])
        assert str(tmp_path / "none.sock") in text and "deftd" in text


def test_a_job_of_the_same_name_that_runs():
    script = "say('here')\ntime.sleep(600)\n"
    with Cluster(1) as cluster:
        first = cluster.start_one(script, 0)
        wait_for_line(first, "here")
        [text] = errors([cluster.start_one(ATTACH, 0)])
        assert "a job named 'default' is running" in text and "DEFT_JOB" in text


def test_a_client_of_another_version():
    packet = b"DEFT" + (1).to_bytes(4, "little") + (16).to_bytes(4, "little") + (99).to_bytes(4, "little")
    with Cluster(1) as cluster:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
            client.connect(cluster.socket(0))
            client.send(packet)
            reply = client.recv(65536)
        assert b"protocol version 99" in reply and b"this one 7" in reply
        assert cluster.daemons[0].poll() is None


GARBAGE = {
    "empty": b"",
    "one byte": b"x",
    "a header cut off": b"DEFT",
    "noise": random.Random(1).randbytes(64),
    "zeros": b"DEFT" + bytes(60),
    "much noise": random.Random(2).randbytes(60000),
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE)
def test_garbage_on_the_socket(garbage):
    with Cluster(1) as cluster:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
            client.connect(cluster.socket(0))
            client.send(garbage)
        cluster.finish(cluster.start(ATTACH))


def secret(path) -> str:
    key = subprocess.run([BUILD / "bin/deft", "keygen"], capture_output=True, text=True, check=True).stdout
    path.write_text(key)
    return str(path)


def test_daemons_with_one_secret_talk_and_others_are_kept_out(tmp_path):
    ours, other = secret(tmp_path / "ours"), secret(tmp_path / "other")
    with Cluster(2, timeout=DEADLINE, secret_file=ours) as cluster:
        cluster.finish(cluster.start(ATTACH))
        cluster.daemons[1].terminate()
        cluster.daemons[1].wait()
        cluster.daemons[1] = cluster.start_daemon(1, secret_file=other)
        texts = errors(cluster.start(ATTACH))
        assert "rank 1 of 2 is missing" in texts[0]
        assert "did not answer" in texts[1] and "another key (secret_file) than this daemon" in texts[1]
        wait_until(lambda: "it is of a daemon that has another key" in cluster.log(0), what="the leader's word")


def test_a_secret_that_is_no_key(tmp_path):
    (tmp_path / "secret").write_text("hunter2")
    result = run_deftd(
        "--socket", str(tmp_path / "d.sock"), "--listen", "127.0.0.1:0", "--secret-file", str(tmp_path / "secret")
    )
    assert result.returncode == 1 and "deft keygen" in result.stderr
