"""One training script over links of every kind and mixtures of them, as a user starts it: deftrun --nodes 2."""

import os
import re
import subprocess
import sys

import pytest
from launching import BUILD, DAEMON, PACKAGE, free_port

TRAINING = """
import hashlib, torch
import deft.torch as hvd
hvd.init()
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 300), torch.nn.ReLU(),
                            torch.nn.Linear(300, 10))
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
samples = torch.Generator().manual_seed(100 + hvd.rank())
for step in range(12):
    inputs = torch.randn(32, 64, generator=samples)
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(inputs), inputs[:, :10].argmax(1)).backward()
    optimizer.step()
rank = hvd.rank()
hvd.shutdown()
digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
print(f"rank {rank} trained to {digest}")
"""

HAS_MPI = (BUILD / "bin/deft-mpi").exists()


@pytest.fixture(scope="module")
def server():
    """A parameter server's link."""
    address = f"127.0.0.1:{free_port()}"
    process = subprocess.Popen([DAEMON, "server", f"--listen={address}"], stderr=subprocess.DEVNULL)
    yield f"ps:{address}"
    process.terminate()
    assert process.wait(60) == 0


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    path = tmp_path_factory.mktemp("mixed") / "training.py"
    path.write_text(TRAINING)
    return path


def digests(script, links: str, policy: str, compression: str = "none") -> set[str]:
    """What the parameters of the two ranks hash to at the end."""
    command = [
        BUILD / "bin/deftrun",
        "-np",
        "2",
        "--nodes",
        "2",
        "--links",
        links,
        "--policy",
        policy,
        "--timeout",
        "60s",
    ]
    own = {"PYTHONPATH": str(PACKAGE), "OMP_NUM_THREADS": "1", "DEFT_SOCKET": str(script.parent / "none.sock")}
    environment = os.environ | own
    environment["DEFT_MAX_STALENESS_STEPS"] = "0"  # for what is late depends on what is measured
    environment["DEFT_COMPRESSION"] = compression  # likewise
    done = subprocess.run(
        [sys.executable, *command, sys.executable, script], env=environment, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.findall(r"rank \d trained to (\w+)", done.stdout)
    assert len(found) == 2, done.stdout + done.stderr
    return set(found)


@pytest.fixture(scope="module")
def over_gloo(script):
    return digests(script, "gloo:lo", "fifo")


@pytest.mark.skipif(not HAS_MPI, reason="this build has no MPI links: see deft check-build")
@pytest.mark.parametrize(
    ("links", "policy"),
    [("mpi:lo", "fifo"), ("gloo:lo,mpi:lo", "bytescheduler"), ("gloo:lo,{server},mpi:lo", "knapsack")],
)
def test_replicas_are_equal_and_the_same_whatever_links_they_used(script, server, over_gloo, links, policy):
    assert len(over_gloo) == 1
    assert digests(script, links.format(server=server), policy) == over_gloo


def through_two_servers(script, folder, compression: str) -> tuple[set[str], int]:
    """What the parameters hash to, and the bytes that the nodes pushed."""
    addresses = [f"127.0.0.{host}:{free_port()}" for host in (1, 2)]
    logs = [folder / f"{compression}-{address}.log" for address in addresses]
    servers = []
    for address, log in zip(addresses, logs, strict=True):
        with log.open("w") as file:
            servers.append(subprocess.Popen([DAEMON, "server", f"--listen={address}"], stderr=file))
    try:
        found = digests(script, "ps:" + "+".join(addresses), "fifo", compression)
        for server in servers:
            server.terminate()
            assert server.wait(60) == 0
    finally:
        for server in servers:
            server.kill()
            server.wait()
    pushed = [int(n) for log in logs for n in re.findall(r"has ended after (\d+) bytes", log.read_text())]
    assert len(pushed) == 2 and min(pushed) > 0.3 * sum(pushed), "the servers share the work"
    return found, sum(pushed)


def test_codes_through_servers_train_to_the_bits_of_gloo_with_fewer_bytes(script, over_gloo, tmp_path):
    exact, exact_bytes = through_two_servers(script, tmp_path, "none")
    encoded, encoded_bytes = through_two_servers(script, tmp_path, "int8")
    assert exact == over_gloo
    assert encoded == digests(script, "gloo:lo", "fifo", "int8") and len(encoded) == 1
    assert encoded != exact
    assert exact_bytes / encoded_bytes > 3  # biases, and the parameters at the begin, travel as they are
