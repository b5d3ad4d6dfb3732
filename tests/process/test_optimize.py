"""`deft optimize --verify` and `--try` on real jobs."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cluster import BUILD, PROLOGUE, ROOT, deft, json_of, wait_until
from test_trace import TRAIN

sys.path.insert(0, str(ROOT / "tools"))
from deft_tuner import command as tuner

SMALL = "uniform:4096"
# Of a simulated job, which the network holds up under fifo; the first byte is the fuzzer's (tests/fuzz_trace).
SIMULATED = ROOT / "tests/fuzz_trace/corpus/fuzz_trace/file"

# Steps with the job's own settings take OWN seconds, and all others take OTHER, whatever replay says of them.
SLEEPS = """
own = {"DEFT_POLICY": "fifo", "DEFT_BUCKETING": None, "DEFT_PARTITION_BYTES": None, "DEFT_CREDIT_BYTES": None}
group = session.declare("g", [deft.Tensor("t", deft.FLOAT32, (1000,), 0)])
for step in range(9):
    session.stage(deft.FORWARD, step)
    has_own = all(os.environ.get(name) == value for name, value in own.items())
    time.sleep(float(os.environ["OWN" if has_own else "OTHER"]))
    session.stage(deft.BACKWARD, step)
    group.ready(0, 1, step)
    group.wait(0, 1, step)
session.close()
"""

# A step takes OWN seconds of compute, and a tenth of that with the change.
CHANGES = """
pause_s = float(os.environ["OWN"]) / (10 if deft.trying("quick-layers") else 1)
group = session.declare("g", [deft.Tensor("t", deft.FLOAT32, (1000,), 0)])
for step in range(9):
    session.stage(deft.FORWARD, step)
    time.sleep(pause_s)
    session.stage(deft.BACKWARD, step)
    group.ready(0, 1, step)
    group.wait(0, 1, step)
session.close()
"""


class Job:
    """A job of two nodes, and its traces."""

    def __init__(self, folder: Path, script: str, **variables: str):
        file = folder / "train.py"
        file.write_text(PROLOGUE + script)
        self.command = [str(BUILD / "bin/deftrun"), "-np", "2", "--nodes", "2", sys.executable, str(file)]
        own = {"DEFT_POLICY": "fifo", "PYTHONPATH": str(BUILD / "python")}
        self.environment = os.environ | own | variables
        self.traces = folder / "traces"

    def trace(self) -> None:
        environment = self.environment | {"DEFT_TRACE": str(self.traces)}
        traced = subprocess.run(self.command, env=environment, capture_output=True, text=True, check=False)
        assert traced.returncode == 0, traced.stderr

    def verify(self, budget: str) -> subprocess.CompletedProcess:
        return self.optimize(budget, "--json", "--verify")

    def optimize(self, budget: str, *words: str) -> subprocess.CompletedProcess:
        words = [BUILD / "bin/deft", "optimize", self.traces, "--budget", budget, *words, *self.command]
        return subprocess.run(words, env=self.environment, capture_output=True, text=True, check=False)


def small_buckets(folder: Path) -> Job:
    return Job(folder, TRAIN, STEPS="30", DEFT_BUCKETING=SMALL)


def test_settings_that_are_found_are_tried_on_the_job_itself(tmp_path):
    job = small_buckets(tmp_path)
    job.trace()
    found = job.verify("8s")
    result = json_of(found)
    # How much the small buckets cost, and whether replay errs by less, depends on what else the machine does.
    verified = result.get("verified")
    assert result["worth_it"] == (verified is not None), result
    faster = verified is not None and verified["after_us"] + verified["noise_us"] < verified["before_us"]
    assert verified is None or verified["is_faster"] == faster
    assert found.returncode == (0 if faster or not verified else 1), found.stderr
    assert (job.traces / "optimized.flags").exists() == faster
    if verified:
        assert verified["before_us"] > 0 and verified["after_us"] > 0
        assert result["options"], "which ones is a matter of the times that were traced: optimize_test has the choice"


def verify_sleeping_job(folder: Path, own: str, other: str) -> tuple[subprocess.CompletedProcess, dict, Path]:
    job = Job(folder, SLEEPS, OWN=own, OTHER=other)
    job.traces.mkdir()
    (job.traces / "simulated-node0.trace").write_bytes(SIMULATED.read_bytes()[1:])
    done = job.verify("4s")
    result = json_of(done)
    assert result["worth_it"] and result["options"], result
    return done, result, job.traces / "optimized.flags"


def test_settings_that_are_slower_on_the_job_itself_are_not_written(tmp_path):
    refused, result, flags = verify_sleeping_job(tmp_path, own="0.001", other="0.3")
    assert result["verified"]["after_us"] > 300_000 and result["verified"]["after_us"] > result["verified"]["before_us"]
    assert not result["verified"]["is_faster"]
    assert refused.returncode == 1 and not flags.exists(), refused.stderr


def test_settings_that_are_faster_on_the_job_itself_are_written(tmp_path):
    taken, result, flags = verify_sleeping_job(tmp_path, own="0.5", other="0.001")
    assert result["verified"]["before_us"] > 500_000 > result["verified"]["after_us"]
    assert result["verified"]["is_faster"]
    assert taken.returncode == 0, taken.stderr
    lines = [line for line in flags.read_text().splitlines() if not line.startswith("#")]
    assert lines == [f"{name} = {value}" for name, value in sorted(result["options"].items())]


@pytest.fixture(scope="module")
def changing_job(tmp_path_factory):
    job = Job(tmp_path_factory.mktemp("changes"), CHANGES, OWN="0.4")
    job.trace()
    return job


def test_a_change_of_the_script_is_measured_in_a_run_of_its_own(changing_job):
    done = changing_job.optimize("2s", "--json", "--try", "quick-layers", "--run")
    result = json_of(done)
    assert done.returncode == 0, done.stderr
    (change,) = result["tries"]
    assert change["name"] == "quick-layers" and change["steps"] >= 4
    assert result["traced_step_us"] > 400_000
    assert 40_000 < change["compute_us"] < change["measured_step_us"] < result["traced_step_us"] / 2
    assert 40_000 < change["step_us"] < result["traced_step_us"] / 2


def test_a_change_is_told_in_words(changing_job):
    done = changing_job.optimize("2s", "--try", "quick-layers", "--run")
    assert done.returncode == 0, done.stderr
    measured, replayed = done.stdout.splitlines()[-2:]
    assert measured.startswith("with quick-layers, in ") and " ms instead of 4" in measured
    assert replayed.startswith("  with the best settings of each, by replay, a step ")


def test_a_change_that_the_script_does_not_know_is_an_error(changing_job):
    done = changing_job.optimize("2s", "--try", "compile", "--run")
    assert done.returncode == 2 and done.stdout == ""
    assert "the script does not try 'compile'" in done.stderr and 'deft.trying("compile")' in done.stderr
    assert not (changing_job.traces / "optimized.flags").exists()


@pytest.mark.parametrize(
    "words, complaint",
    [
        (["--try", "compile"], "--try needs the command that starts the job"),
        (["--run", "true"], "--run has nothing to try"),
        (["--try", "../compile", "--run", "true"], "--try is '../compile'"),
        (["--try", "compile", "--run"], "--run needs the command that starts the job"),
        (["--try", "compile", "--run", "false"], "false failed, so nothing was compared"),
        (["--try", "compile", "--run", "/nowhere"], "cannot run /nowhere: No such file"),
    ],
)
def test_what_cannot_be_tried_is_an_error(simulated, words, complaint):
    done = deft("optimize", str(simulated), "--budget", "1s", *words)
    assert done.returncode != 0 and complaint in done.stderr, done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_command_and_leaves_no_traces(simulated, number):
    """A terminal gives Ctrl-C to all of its processes, and SIGTERM goes to one."""
    scratch, marker = simulated / "scratch", simulated / "pid"
    scratch.mkdir()
    script = f"echo $$ > {marker}.new; mv {marker}.new {marker}; exec sleep 1000"
    words = ["--policy", "dear", "--verify", "sh", "-c", script]
    command = [BUILD / "bin/deft", "optimize", simulated, "--budget", "60s", *words]
    environment = os.environ | {"TMPDIR": str(scratch)}
    # Whoever starts the tests in the background may have interrupts ignored, and so they would stay.
    ready = {"start_new_session": True, "preexec_fn": lambda: signal.signal(number, signal.SIG_DFL)}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True, **ready) as deft_:
        wait_until(marker.exists, what="the command")
        assert list(scratch.iterdir())
        os.killpg(deft_.pid, number) if number == signal.SIGINT else deft_.terminate()
        complaint = deft_.stderr.read()
    assert deft_.returncode == 1 and "a signal has ended sh, so nothing was compared" in complaint
    assert list(scratch.iterdir()) == [] and not Path(f"/proc/{marker.read_text().strip()}").exists()


@pytest.fixture
def simulated(tmp_path):
    (tmp_path / "simulated-node0.trace").write_bytes(SIMULATED.read_bytes()[1:])
    return tmp_path


def test_what_is_written_and_printed_leads_to_the_settings_that_were_found(simulated):
    found = deft("optimize", str(simulated), "--budget", "60s")
    flags = simulated / "optimized.flags"
    lines = flags.read_text().splitlines()
    options = dict(line.split(" = ") for line in lines if not line.startswith("#"))
    assert len(options) > 1 and "policy" in options
    # test_tune_search.py holds these words.
    assert tuner.how_to_train(options, str(flags)) in found.stdout
    assert [line for line in lines if line.startswith("#")][-2:] == tuner.comments(options)


def test_a_gain_within_what_replay_may_err_by_is_told_and_not_written(simulated):
    found = deft("optimize", str(simulated), "--budget", "60s", "--policy", "dear")
    assert "DEFT_POLICY=dear would win 2.8 % by replay, too little to be sure of it (6.0 %)" in found.stdout
    assert "--verify" in found.stdout and not (simulated / "optimized.flags").exists()


def test_without_time_nothing_is_said_of_other_settings(simulated):
    file = simulated / "passes.py"
    file.write_text(PASSES)
    found = deft("optimize", str(simulated), "--budget", "1us", "--pass", str(file))
    assert found.returncode == 0 and "no settings were tried: the --budget was used up" in found.stdout
    assert "no pass was asked" in found.stdout and "keep" not in found.stdout


def test_what_another_job_got_does_not_stay_in_the_folder(simulated):
    flags = simulated / "optimized.flags"

    def optimize(*words: str) -> str:
        found = deft("optimize", str(simulated), "--budget", "60s", "--policy", "fifo", *words)
        assert found.returncode == 0 and "keep them" in found.stdout
        return found.stderr

    flags.write_text("# deft optimize: for another job\nbucketing = uniform:4096\n")
    assert f"removed {flags}" in optimize() and not flags.exists()
    flags.write_text("# deft optimize: with this the job was traced\npolicy = auto\n")
    assert "removed" not in optimize() and flags.exists()
    own = simulated / "own"
    own.write_text("bucketing = uniform:4096\n")
    assert "removed" not in optimize("-o", str(own)) and own.exists()


WRITERS = {
    "replay": ["replay", "--profile"],
    "explain": ["explain", "--html"],
    "report": ["report", "--budget", "10m", "-o"],
    "optimize": ["optimize", "--budget", "10m", "-o"],
    "merge": ["trace merge", "-o"],
}


@pytest.mark.parametrize("words", WRITERS.values(), ids=WRITERS)
def test_what_cannot_be_written_is_told_with_the_reason_before_the_work(simulated, words):
    failed = deft(*words[0].split(), str(simulated), *words[1:], str(simulated / "nowhere/f"))
    assert failed.returncode == 2
    assert f"cannot write {simulated}/nowhere/f: No such file or directory" in failed.stderr
    assert "node 1 is missing" not in failed.stderr, "the traces were not read"


@pytest.mark.parametrize("words", WRITERS.values(), ids=WRITERS)
def test_no_output_replaces_a_trace(simulated, words):
    (trace,) = simulated.glob("*.trace")
    before = trace.read_bytes()
    failed = deft(*words[0].split(), str(simulated), *words[1:], str(trace))
    assert failed.returncode == 2 and "has the name of a trace" in failed.stderr
    assert trace.read_bytes() == before


def test_verify_says_what_is_missing(tmp_path):
    missing = deft("optimize", str(tmp_path), "--verify")
    assert missing.returncode == 2 and "the command that starts the job" in missing.stderr
    soon = deft("optimize", str(tmp_path), "--budget", "soon")
    assert soon.returncode == 2 and "--budget is 'soon'" in soon.stderr


def test_a_codec_is_taken_if_it_is_allowed_and_wins(simulated):
    flags = simulated / "optimized.flags"

    def optimize(*words: str) -> dict:
        found = json_of(deft("optimize", str(simulated), "--budget", "60s", "--json", *words))
        assert found["worth_it"] and ("compression = int8" in flags.read_text()) == bool(words)
        return found

    exact, coded = optimize(), optimize("--compression", "int8")
    assert "compression" not in exact["options"] and coded["options"]["compression"] == "int8"
    assert coded["step_us"] < 0.98 * exact["step_us"]


def test_a_codec_that_is_suggested_goes_with_the_settings_that_are_kept(simulated):
    """And not with those that were found, and do not win enough."""
    found = deft("optimize", str(simulated), "--budget", "60s", "--policy", "mgwfbp")
    kept = json_of(deft("replay", str(simulated), "--compression", "int8", "--json"))[0]["step_us_p50"]
    assert "keep them" in found.stdout
    assert f"compression = int8 would make it {kept / 1000:.1f} ms" in found.stdout


# The first pass proposes another policy than the searched one. The second proposes nothing.
PASSES = """
import deft

@deft.optimization_pass
def unequal_blocks(job, best):
    print("asked, with", len(job["buckets"]), "buckets and", job["links"][0]["name"])
    assert job["nodes"] >= 1 and best["step_us"] > 0
    return [{"policy": "usbyte"}, {"policy": "usbyte", "partition_bytes": best["partition_bytes"] // 4}]

@deft.optimization_pass
def idle(job, best):
    return None
"""


def test_passes_of_a_user_propose_settings(simulated):
    file = simulated / "my passes.py"
    file.write_text(PASSES)
    words = ["optimize", str(simulated), "--budget", "60s", "--policy", "fifo"]
    alone, found = json_of(deft(*words, "--json")), json_of(deft(*words, "--json", "--pass", str(file)))
    assert alone["settings"]["policy"] == "auto" and not alone["options"] and "passes" not in alone
    assert found["settings"]["policy"] == "usbyte" and found["step_us"] < 0.95 * alone["step_us"]
    assert list(found["passes"]) == ["unequal_blocks"]
    assert found["passes"]["unequal_blocks"]["proposals"] >= 4, "it is asked again when it has helped"
    assert found["step_us"] <= found["passes"]["unequal_blocks"]["best_us"] < alone["step_us"]
    told = deft(*words, "--pass", str(file))
    assert "pass unequal_blocks: " in told.stdout and "asked, with" in told.stderr
    assert "policy = usbyte" in (simulated / "optimized.flags").read_text()


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ("return [{'policy': 'knapsack'}]", 'pass mine proposes policy = "knapsack", which is no policy whose'),
        ("return [{'partition_bytes': 12}]", "pass mine proposes partition_bytes = 12 "),
        ("return [{'bucket_bytes': -1}]", "pass mine proposes bucket_bytes = -1 "),
        ("return [{'links': ['gloo:eth7']}]", 'pass mine proposes links = ["gloo:eth7"] (give a list'),
        ("return [{'compression_min_bytes': 1}]", "pass mine proposes compression_min_bytes = 1 "),
        ("return [{'speed': 'high'}]", 'pass mine proposes speed = "high" (a proposal may have policy,'),
        ("return ['p3']", "pass mine proposes 'p3': a proposal is a dict"),
        ("return 1 / 0", "pass mine failed: ZeroDivisionError: division by zero"),
        ("return [{'partition_bytes': float('nan')}]", "pass mine failed: ValueError: "),
        ("raise SystemExit(0)", "pass mine has called sys.exit()"),
        ("import os; os._exit(0)", "a pass has ended Python without an answer"),
        (
            "pass\n\n@deft.optimization_pass\ndef mine(job, best): pass",
            "ValueError: there is an optimization pass mine already",
        ),
        (None, "registers no pass: put @deft.optimization_pass above a function"),
    ],
)
def test_a_pass_that_is_wrong_is_named(simulated, body, complaint):
    refused_pass(simulated, body, complaint)


def test_a_pass_that_does_not_end_is_named(simulated):
    """Even a busy machine comes to the pass within the budget."""
    refused_pass(simulated, "while True: pass", "pass mine took longer than the time that the search has left", "9s")


def refused_pass(simulated, body, complaint, budget="60s"):
    file = simulated / "wrong.py"
    register = f"import deft\n\n@deft.optimization_pass\ndef mine(job, best):\n    {body}\n"
    file.write_text(register if body else "import deft\n")
    failed = deft("optimize", str(simulated), "--budget", budget, "--policy", "fifo", "--pass", str(file))
    assert failed.returncode == 2 and failed.stdout == ""
    assert complaint in failed.stderr, failed.stderr


def test_an_answer_counts_once(simulated):
    asked = simulated / "asked"
    once = f"import os, pathlib; p = pathlib.Path({str(asked)!r}); p.exists() and os._exit(0); p.touch()"
    yields = "return [{'policy': 'usbyte'}]"
    refused_pass(simulated, f"{once}; {yields}", "a pass has ended Python without an answer")


def test_passes_keep_the_buckets_of_a_running_job(simulated):
    file = simulated / "buckets.py"
    file.write_text("import deft\n\n@deft.optimization_pass\ndef mine(job, best):\n    yield {'bucket_bytes': 65536}\n")
    failed = deft("optimize", str(simulated), "--budget", "60s", "--running", "--pass", str(file))
    assert failed.returncode == 2 and "pass mine proposes other buckets" in failed.stderr
    missing = deft("optimize", str(simulated), "--budget", "60s", "--pass", str(simulated / "none.py"))
    assert missing.returncode == 2 and "none.py failed: FileNotFoundError" in missing.stderr


def test_codecs_that_cannot_be_chosen_are_named(tmp_path):
    unknown = deft("optimize", str(tmp_path), "--compression", "int9")
    assert unknown.returncode == 2 and "int9" in unknown.stderr
    running = deft("optimize", str(tmp_path), "--running", "--compression", "int8")
    assert running.returncode == 2 and "a running job cannot change its codec" in running.stderr
