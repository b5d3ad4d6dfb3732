"""Encrypted gradients: the same bits, nothing readable on the wire, and a refusal with its reason if that cannot be."""

import functools
import json
import subprocess
import sys
from pathlib import Path

import pytest
from cluster import Cluster, free_port

FOLDER = Path(__file__).parent
NAMESPACE = ["unshare", "--user", "--map-root-user", "--net"]
OPEN = """
try:
    deft.open()
except deft.DeftError as error:
    say(f"ERROR {error}")
    raise SystemExit(7)
"""


@functools.cache
def watched(links: str, encrypt: str) -> dict:
    if subprocess.run([*NAMESPACE, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this system forbids namespaces")
    done = subprocess.run(
        [*NAMESPACE, sys.executable, FOLDER / "wire_watch.py", json.dumps({"links": links, "encrypt": encrypt})],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("links", ["gloo:lo", "tcp:lo"])
def test_the_sums_have_the_same_bits_and_nobody_can_read_them_on_the_wire(links):
    plain, encrypted = watched("gloo:lo", "off"), watched(links, "on")
    assert len({*plain["outputs"], *encrypted["outputs"]}) == 1
    assert plain["readable"] > 0  # the watcher sees what it looks for
    assert encrypted["bytes"] > 3 * 500_000 * 4  # so that there was something to read
    assert encrypted["readable"] == 0


def errors_of(cluster: Cluster, **variables: str) -> list[str]:
    workers = cluster.start_without_session(OPEN, **variables)
    return [worker.communicate(timeout=120)[0] for worker in workers]


def test_nodes_that_differ_are_told_which_one_encrypts():
    with Cluster(2) as cluster:
        cluster.start_one("", 0, DEFT_ENCRYPT_GRADIENTS="on")
        other = cluster.start_one("", 1, DEFT_ENCRYPT_GRADIENTS="off")
        for worker in (cluster.workers[0], other):
            _, error = worker.communicate(timeout=120)
            assert worker.returncode != 0
            assert "the nodes differ in 'encrypt_gradients': " in error, error
            assert "'on' on" in error and "'off' on" in error, error


@pytest.mark.parametrize(
    "links, reason",
    [("mpi:lo", "mpi:lo cannot encrypt gradients"), ("ps:SERVER", "cannot encrypt gradients: the daemon has no key")],
)
def test_links_that_cannot_encrypt_are_refused_by_name(links, reason):
    server = f"127.0.0.1:{free_port('127.0.0.1')}"
    with Cluster(2, links=links.replace("SERVER", server)) as cluster:
        for text in errors_of(cluster, DEFT_ENCRYPT_GRADIENTS="on"):
            assert reason in text and links.split(":")[0] in text and "DEFT_ENCRYPT_GRADIENTS=off" in text, text
