"""What a job would be on fewer links: `deft replay --links NAME=0x`, and `deft optimize`."""

import subprocess

import pytest
from cluster import BUILD, clean_environment, json_of
from ports import free_port
from test_optimize import Job
from test_trace import TRAIN, deft


@pytest.fixture(scope="module")
def on_two_links(tmp_path_factory):
    """A traced job on loopback and on a parameter server. It gives the job, and its links."""
    address = f"127.0.0.1:{free_port()}"
    server = subprocess.Popen([BUILD / "bin/deftd", "server", "--listen", address], env=clean_environment())
    try:
        links = ["gloo:lo", f"ps:{address}"]
        # Of many parts each link gets some.
        small = {"DEFT_PARTITION_BYTES": "16KB", "DEFT_BUCKETING": "uniform:65536"}
        job = Job(tmp_path_factory.mktemp("links"), TRAIN, STEPS="30", DEFT_LINKS=",".join(links), **small)
        job.trace()
        yield job, links
    finally:
        server.terminate()
        server.wait(30)


def replayed(job: Job, *words: str) -> dict:
    return json_of(deft("replay", str(job.traces), "--json", *words))[0]


def test_replay_leaves_out_a_link(on_two_links):
    job, (gloo, servers) = on_two_links
    # Beside such workers a step is what the links take.
    both = replayed(job, "--compute", "1000x")["step_us_p50"]
    alone = [replayed(job, "--compute", "1000x", "--links", f"{link}=0x")["step_us_p50"] for link in (gloo, servers)]
    assert max(alone) > 1.02 * both, "the link that carries more is missed"
    assert replayed(job, "--links", f"all=0x,{gloo}=1x") == replayed(job, "--links", f"{servers}=0")
    dear = deft("replay", str(job.traces), "--policy", "dear")
    assert dear.returncode == 2 and f"link {servers} has none" in dear.stderr, "servers have no halves"
    assert replayed(job, "--policy", "dear", "--links", f"{servers}=0x")["step_us_p50"] > 0
    none = deft("replay", str(job.traces), "--links", "all=0x")
    assert none.returncode == 2 and "all links are left out" in none.stderr


def test_a_job_takes_its_links_from_the_flag_file_which_then_stays(tmp_path):
    """The trace names links and not the option, and the file is no advice of another job."""
    traces = tmp_path / "traces"
    traces.mkdir()
    flags = traces / "optimized.flags"
    flags.write_text("# deft optimize: for this job\nlinks = gloo:lo\n")
    Job(tmp_path, TRAIN, STEPS="12", DEFT_FLAG_FILE=str(flags)).trace()
    # Under fifo on one link there is nothing that a running job could change.
    words = ["optimize", str(traces), "--budget", "1s", "--policy", "fifo", "--running"]
    kept = deft(*words)
    assert kept.returncode == 0 and "keep them" in kept.stdout, kept.stderr
    assert "removed" not in kept.stderr and flags.exists()
    flags.write_text("# deft optimize: for another job\nlinks = gloo:eth7\n")
    assert f"removed {flags}" in deft(*words).stderr and not flags.exists()
