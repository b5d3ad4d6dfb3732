"""Training through parameter servers: real `deftd server` processes, alone and mixed with gloo."""

import signal
import subprocess
import time

import pytest
from cluster import BUILD, MARGIN_S, TIMEOUT_S, Cluster, free_port, wait_for_line, wait_until
from held import descriptors
from test_compression import CODECS, EVERY_CODEC
from test_compression import SUMS as ENCODED

SUMS = """
import hashlib
group = session.declare("sgd", [deft.Tensor("a", deft.FLOAT32, (300001,), 0), deft.Tensor("b", deft.FLOAT32, (7,), 1),
                                deft.Tensor("c", deft.BFLOAT16, (100003,), 2)])
steps = int(os.environ.get("STEPS", 6))
digest = hashlib.sha256()
for step in range(steps):
    values = np.random.default_rng((step, rank)).standard_normal(400011).astype(np.float32)
    try:
        vector(group, 0)[:] = values[:300001]
        vector(group, 1)[:] = values[300001:300008]
        vector(group, 2, np.uint16)[:] = (values[300008:].view(np.uint32) >> 16).astype(np.uint16)
        group.ready(0, 3, step)
        group.wait(0, 3, step)
    except deft.DeftError as error:
        say(f"ERROR {time.monotonic()} {error}")
        raise SystemExit(7)
    exact = sum(np.random.default_rng((step, r)).standard_normal(400011).astype(np.float32) for r in range(size))
    assert np.abs(vector(group, 0) - exact[:300001]).max() < 1e-5
    for index, dtype in ((0, np.float32), (1, np.float32), (2, np.uint16)):
        digest.update(vector(group, index, dtype).tobytes())
    if step == 3:
        say("training")
    while step == steps - 10 and not os.path.exists(os.environ.get("GO_ON", "/")):
        time.sleep(0.01)
session.close()
say(digest.hexdigest())
"""
TIMEOUT = f"{TIMEOUT_S:g}s"  # of jobs that lose a server


class Servers:
    """Parameter servers beside a cluster's daemons."""

    def __init__(self, cluster: Cluster, count: int):
        self.addresses = [f"127.0.0.{100 + i}:{free_port(f'127.0.0.{100 + i}')}" for i in range(count)]
        cluster.listen += self.addresses
        self.processes = [cluster.start_daemon(cluster.nodes + i, server=True, links="auto") for i in range(count)]
        cluster.daemons += self.processes
        self.link = "ps:" + "+".join(self.addresses)


@pytest.mark.parametrize("nodes, per_node, count", [(2, 1, 1), (2, 2, 2), (3, 1, 2)])
def test_all_ranks_get_the_bits_that_gloo_gives(nodes, per_node, count):
    with Cluster(nodes) as cluster:
        servers = Servers(cluster, count)
        before = [descriptors(server.pid) for server in servers.processes]
        digests = {
            links: {cluster_output.split()[-1] for cluster_output in run(cluster, per_node, links)}
            for links in ("gloo:lo", servers.link, f"gloo:lo,{servers.link}")
        }
        assert all(len(digest) == 1 for digest in digests.values()), digests
        assert len(set.union(*digests.values())) == 1, digests
        for server, count_before in zip(servers.processes, before, strict=True):
            wait_until(
                lambda s=server, c=count_before: descriptors(s.pid) <= c, what="the server's descriptors given back"
            )


@pytest.mark.parametrize("nodes, count", [(2, 2), (3, 1)])
def test_encoded_gradients_have_the_bits_that_gloo_gives(nodes, count):
    with Cluster(nodes, partition_bytes="64KB", policy="bytescheduler") as cluster:
        servers = Servers(cluster, count)
        found = {}
        for links in ("gloo:lo", servers.link, f"gloo:lo,{servers.link}"):
            workers = cluster.start_without_session(f"CODECS = {CODECS}\n{EVERY_CODEC}", DEFT_LINKS=links)
            found[links] = {line for output in cluster.finish(workers, seconds=180) for line in output.splitlines()}
    for lines in found.values():
        assert len(lines) == len(CODECS), "the ranks hold different bits"
        assert lines == found["gloo:lo"]


LONG = ENCODED.replace(
    "        group.wait(0, len(tensors), step)\n",
    "        group.wait(0, len(tensors), step)\n"
    "        if step == 3:\n"
    "            say('training')\n"
    "            while not os.path.exists(os.environ['GO_ON']):\n"
    "                time.sleep(0.01)\n",
)


def test_a_server_that_is_lost_takes_nothing_along_of_what_encodings_left_out(tmp_path):
    """The job ends with the bits of one that lost no server, so no residual was there."""
    with Cluster(2, partition_bytes="64KB", policy="bytescheduler", compression="int4") as cluster:
        servers = Servers(cluster, 2)
        outputs = {}
        for kills in (False, True):
            go_on = tmp_path / f"go-on-{kills}"
            script = LONG + "say(train(session, 12)[0])\nsession.close()\n"
            workers = cluster.start(script, DEFT_LINKS=f"gloo:lo,{servers.link}", GO_ON=str(go_on))
            for worker in workers:
                wait_for_line(worker, "training")
            if kills:
                servers.processes[1].kill()
                servers.processes[1].wait()
            go_on.touch()
            outputs[kills] = {output.split()[-1] for output in cluster.finish(workers)}
        assert len(outputs[False]) == 1 and outputs[True] == outputs[False]
        for node in range(2):
            assert f"goes on without link {servers.link}" in cluster.log(node)


def run(cluster: Cluster, per_node: int, links: str, policy: str = "bytescheduler", **options: str) -> list[str]:
    return cluster.finish(cluster.start(SUMS, per_node, DEFT_LINKS=links, DEFT_POLICY=policy, **options))


def test_a_key_guards_the_servers_too(tmp_path):
    key = tmp_path / "key"
    key.write_text(subprocess.run([BUILD / "bin/deft", "keygen"], capture_output=True, text=True, check=True).stdout)
    with Cluster(2, secret_file=str(key)) as cluster:
        servers = Servers(cluster, 1)
        digests = {output.split()[-1] for links in ("gloo:lo", servers.link) for output in run(cluster, 1, links)}
        both = run(cluster, 1, f"gloo:lo,{servers.link}", DEFT_ENCRYPT_GRADIENTS="on")
        assert len(digests | {output.split()[-1] for output in both}) == 1
        cluster.listen.append(f"127.0.0.90:{free_port('127.0.0.90')}")
        cluster.daemons.append(cluster.start_daemon(3, server=True, links="auto", secret_file=""))
        for worker in cluster.start(SUMS, DEFT_LINKS="ps:" + cluster.listen[3]):
            out, err = worker.communicate(timeout=120)
            assert worker.returncode != 0
            assert "has another key than this daemon, or none" in out + err


@pytest.mark.parametrize("policy", ["p3", "prophet", "bytescheduler"])
def test_parts_of_each_policy_follow_each_other_through_the_servers(policy):
    with Cluster(2) as cluster:
        servers = Servers(cluster, 2)
        digests = {
            links: {output.split()[-1] for output in run(cluster, 1, links, policy, DEFT_PARTITION_BYTES="64KB")}
            for links in ("gloo:lo", servers.link)
        }
        assert all(len(digest) == 1 for digest in digests.values()), digests
        assert len(set.union(*digests.values())) == 1, digests


@pytest.mark.parametrize("kill", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_server_is_named_on_every_worker_by_the_deadline(kill):
    with Cluster(2, timeout=TIMEOUT) as cluster:
        servers = Servers(cluster, 2)
        workers = cluster.start(SUMS, DEFT_LINKS=servers.link, STEPS="1000000")
        for worker in workers:
            wait_for_line(worker, "training")
        moment = time.monotonic()
        servers.processes[1].send_signal(kill)
        for worker in workers:
            _, seconds, text = wait_for_line(worker, "ERROR").split(" ", 2)
            assert float(seconds) - moment < TIMEOUT_S + MARGIN_S, text
            assert f"the parameter server {servers.addresses[1]} was lost" in text
            assert worker.wait(60) == 7


@pytest.mark.parametrize("kill", [signal.SIGKILL, signal.SIGSTOP])
def test_a_job_that_loses_its_servers_goes_on_over_gloo(kill, tmp_path):
    with Cluster(2, timeout=TIMEOUT) as cluster:
        servers = Servers(cluster, 2)
        options = {"STEPS": "40", "DEFT_PARTITION_BYTES": "64KB"}
        wanted = {output.split()[-1] for output in run(cluster, 1, "gloo:lo", **options)}
        options["GO_ON"] = str(tmp_path / "go-on")
        workers = cluster.start(SUMS, DEFT_LINKS=f"gloo:lo,{servers.link}", DEFT_POLICY="bytescheduler", **options)
        wait_for_line(workers[0], "training")
        servers.processes[1].send_signal(kill)
        (tmp_path / "go-on").touch()
        assert {output.split()[-1] for output in cluster.finish(workers)} == wanted
        for node in range(2):
            assert f"goes on without link {servers.link}" in cluster.log(node)


@pytest.mark.parametrize("beside", ["", "gloo:lo,"])
def test_a_lost_node_is_named_and_the_servers_serve_the_next_job(beside):
    with Cluster(3, timeout=TIMEOUT) as cluster:
        servers = Servers(cluster, 2)
        before = [descriptors(server.pid) for server in servers.processes]
        workers = cluster.start(SUMS, DEFT_LINKS=beside + servers.link, STEPS="1000000")
        for worker in workers:
            wait_for_line(worker, "training")
        cluster.daemons[2].kill()
        for worker in workers[:2]:
            assert "node 2" in wait_for_line(worker, "ERROR")
        cluster.daemons[2].wait()
        cluster.daemons[2] = cluster.start_daemon(2)
        for server, count_before in zip(servers.processes, before, strict=True):
            wait_until(
                lambda s=server, c=count_before: descriptors(s.pid) <= c, what="the server's descriptors given back"
            )
        assert len({output.split()[-1] for output in run(cluster, 1, servers.link)}) == 1


def test_a_server_that_is_not_there_is_named():
    with Cluster(2, timeout=TIMEOUT) as cluster:
        missing = f"127.0.0.99:{free_port('127.0.0.99')}"
        workers = cluster.start(SUMS, DEFT_LINKS="ps:" + missing)
        for worker in workers:
            out, err = worker.communicate(timeout=120)
            assert worker.returncode != 0
            assert f"the parameter server {missing} does not answer" in out + err


def test_nodes_with_different_servers_are_told():
    with Cluster(2) as cluster:
        servers = Servers(cluster, 2)
        workers = [
            cluster.start_one(SUMS, rank, DEFT_LINKS="ps:" + address) for rank, address in enumerate(servers.addresses)
        ]
        for worker in workers:
            out, err = worker.communicate(timeout=120)
            assert worker.returncode != 0
            assert all("ps:" + address in out + err for address in servers.addresses)


def test_a_server_that_is_told_to_stop_lets_the_job_end():
    with Cluster(2) as cluster:
        servers = Servers(cluster, 1)
        workers = cluster.start(SUMS, DEFT_LINKS=servers.link, STEPS="60")
        for worker in workers:
            wait_for_line(worker, "training")
        servers.processes[0].terminate()
        cluster.finish(workers)
        assert servers.processes[0].wait(60) == 0
