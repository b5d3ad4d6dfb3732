"""What a job would be on fewer links: `deft replay --links NAME=0x`, and `deft optimize`."""

import subprocess
from pathlib import Path

import pytest
from cluster import BUILD, deft, json_of
from ports import free_port
from test_optimize import Job
from test_trace import TRAIN


@pytest.fixture(scope="module")
def on_two_links(tmp_path_factory):
    """A traced job on loopback and on a parameter server. It gives the job, and its links."""
    address = f"127.0.0.1:{free_port()}"
    server = subprocess.Popen([BUILD / "bin/deftd", "server", "--listen", address])
    try:
        links = ["gloo:lo", f"ps:{address}"]
        # Of many parts each link gets some.
        small = {
            "DEFT_PARTITION_BYTES": "16KB",
            "DEFT_BUCKETING": "uniform:65536",
            "DEFT_COMPRESSION_MIN_BYTES": "64KB",
        }
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


def optimize_with_pass(job: Job, folder: Path, changes: str, *words: str) -> subprocess.CompletedProcess:
    file = folder / "passes.py"
    file.write_text(f"import deft\n\n@deft.optimization_pass\ndef mine(job, best):\n    {changes}\n")
    return deft("optimize", str(job.traces), "--budget", "60s", "--policy", "fifo", "--pass", str(file), *words)


def test_a_pass_may_leave_out_links(on_two_links, tmp_path):
    job, links = on_two_links
    # A link alone may win by the times that were traced: then the pass is asked again, and the best has that link.
    changes = (
        f"assert set(best['links']) <= {set(links)}; return [{{'links': [link['name']]}} for link in job['links']]"
    )
    done = optimize_with_pass(job, tmp_path, changes, "--json")
    assert done.returncode == 0, done.stderr
    # proposals_test has the choice.
    mine = json_of(done)["passes"]["mine"]
    assert mine["proposals"] >= 2 and mine["best_us"] > 0


@pytest.mark.parametrize(
    ("changes", "words", "complaint"),
    [
        ("{'links': ['gloo:eth7']}", [], 'pass mine proposes links = ["gloo:eth7"] (give a list of the names in job'),
        ("{'links': []}", [], "pass mine proposes links = [] (give a list"),
        ("{'links': 'gloo:lo'}", [], 'pass mine proposes links = "gloo:lo" (give a list'),
        ("{'links': ['gloo:lo']}", ["--running"], "pass mine proposes other links, which a running job cannot have"),
        ("{'compression_min_bytes': 32768}", [], "= 32768, which is less than the traced job's 65536"),
        ("{'compression_min_bytes': '64KB'}", [], 'pass mine proposes compression_min_bytes = "64KB" (a proposal may'),
        (
            "{'compression_min_bytes': 131072}",
            ["--running"],
            "pass mine proposes other compression_min_bytes, which a running job cannot have",
        ),
    ],
)
def test_what_the_job_cannot_have_is_no_proposal(on_two_links, tmp_path, changes, words, complaint):
    done = optimize_with_pass(on_two_links[0], tmp_path, f"return [{changes}]", *words)
    assert done.returncode == 2 and done.stdout == ""
    assert complaint in done.stderr, done.stderr


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
