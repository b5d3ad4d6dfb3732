"""`deft optimize --verify` on a real job with buckets that are far too small."""

import json
import shutil
import subprocess
import sys

from cluster import BUILD, PROLOGUE, clean_environment
from test_trace import TRAIN, deft

SMALL = "uniform:4096"


# With other settings than its first ones the job does worse, whatever replay says of them.
WORSE = """
own = {"DEFT_POLICY": "fifo", "DEFT_BUCKETING": "uniform:4096", "DEFT_PARTITION_BYTES": None, "DEFT_CREDIT_BYTES": None}
worse = "WORSE" in os.environ and any(os.environ.get(name) != value for name, value in own.items())
"""


class SmallBuckets:
    """A job whose buckets are far too small, and its traces."""

    def __init__(self, folder):
        script = folder / "train.py"
        script.write_text(
            PROLOGUE + WORSE + TRAIN.replace("time.sleep(0.002)", "time.sleep(0.1 if worse else 0.002)", 1)
        )
        self.command = [str(BUILD / "bin/deftrun"), "-np", "2", "--nodes", "2", sys.executable, str(script)]
        own = {"STEPS": "30", "DEFT_POLICY": "fifo", "DEFT_BUCKETING": SMALL, "PYTHONPATH": str(BUILD / "python")}
        self.environment = clean_environment() | own
        self.traces = folder / "traces"

    def trace(self):
        environment = self.environment | {"DEFT_TRACE": str(self.traces)}
        traced = subprocess.run(self.command, env=environment, capture_output=True, text=True)
        assert traced.returncode == 0, traced.stderr

    def verify(self, budget, **variables):
        words = [BUILD / "bin/deft", "optimize", self.traces, "--budget", budget, "--json", "--verify", *self.command]
        return subprocess.run(words, env=self.environment | variables, capture_output=True, text=True, check=False)


def test_settings_that_are_found_are_tried_on_the_job_itself(tmp_path):
    job = SmallBuckets(tmp_path)
    job.trace()
    found = job.verify("8s")
    result = json.loads(found.stdout)
    # How much the small buckets cost, and whether replay errs by less, depends on what else the machine does.
    verified = result.get("verified")
    assert result["worth_it"] == (verified is not None), result
    faster = verified is not None and verified["after_us"] < verified["before_us"]
    assert found.returncode == (0 if faster or not verified else 1), found.stderr
    assert (job.traces / "optimized.flags").exists() == faster
    if verified:
        assert verified["before_us"] > 0 and verified["after_us"] > 0
        assert result["options"], "which ones is a matter of the times that were traced: optimize_test has the choice"


def test_settings_that_are_slower_on_the_job_itself_are_not_written(tmp_path):
    job = SmallBuckets(tmp_path)
    for _ in range(8):  # until replay errs by less than what it promises
        shutil.rmtree(job.traces, ignore_errors=True)
        job.trace()
        refused = job.verify("4s", WORSE="1")
        result = json.loads(refused.stdout)
        if result["worth_it"]:
            break
    assert result["worth_it"], result
    assert result["verified"]["after_us"] > result["verified"]["before_us"]
    assert refused.returncode == 1 and not (job.traces / "optimized.flags").exists()


def test_verify_says_what_is_missing(tmp_path):
    missing = deft("optimize", str(tmp_path), "--verify")
    assert missing.returncode == 2 and "the command that starts the job" in missing.stderr
    soon = deft("optimize", str(tmp_path), "--budget", "soon")
    assert soon.returncode == 2 and "--budget is 'soon'" in soon.stderr


def test_a_codec_is_taken_if_it_is_allowed_and_wins(tmp_path):
    job = SmallBuckets(tmp_path)
    job.trace()
    flags = tmp_path / "flags"
    words = ("optimize", str(job.traces), "--budget", "4s", "--compression", "int8", "--json", "-o", str(flags))
    found = json.loads(deft(*words).stdout)
    assert found["settings"]["compression"] in ("", "int8")
    if found["worth_it"]:
        chosen = "compression" in found["options"]
        assert chosen == (found["settings"]["compression"] == "int8")
        assert ("compression = int8" in flags.read_text()) == chosen


def test_codecs_that_cannot_be_chosen_are_named(tmp_path):
    unknown = deft("optimize", str(tmp_path), "--compression", "int9")
    assert unknown.returncode == 2 and "int9" in unknown.stderr
    running = deft("optimize", str(tmp_path), "--running", "--compression", "int8")
    assert running.returncode == 2 and "a running job cannot change its codec" in running.stderr
