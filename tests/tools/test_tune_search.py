"""What deft tune decides, on step times whose best settings are known. No job, no network, no waiting."""

import json
import math
import random
import re
import signal
import statistics
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from deft_tuner import bayesian, command, descent, duel, job, measure  # noqa: E402
from deft_tuner.settings import KB, MB, USES_SIZES, Settings, Space  # noqa: E402

START = Settings("bytescheduler", 1 * MB, 4 * MB)
BEST = Settings("bytescheduler", 256 * KB, 16 * MB)
RULES = duel.Rules()


class Hills:
    """A job whose steps are shortest at BEST: a valley in the logarithms of both sizes, with noise and drift."""

    def __init__(self, noise=0.03, drift=0.0, seed=1, depth=0.04):
        self.random = random.Random(seed)
        self.noise, self.drift, self.depth = noise, drift, depth
        self.steps = 0
        self.tried = set()

    def true_us(self, settings):
        part = math.log2(settings.partition_bytes / BEST.partition_bytes)
        credit = math.log2(settings.credit_bytes / BEST.credit_bytes)
        slower = self.depth * (part**2 + credit**2 + 0.5 * part * credit)
        return 40_000 * (1 + min(2.0, slower))

    def run(self, settings, steps):
        self.tried.add(settings)
        times = []
        for _ in range(steps):
            self.steps += 1
            drift = 1 + self.drift * self.steps / 1000
            times.append(self.true_us(settings) * drift * math.exp(self.random.gauss(0, self.noise)))
        return times

    def compare(self, best, other):
        return duel.duel(self.run, best, other, RULES)


def test_the_policies_with_sizes_are_those_of_the_table():
    table = (ROOT / "core/base/policy_traits.h").read_text()
    assert re.findall(r'\.name = "([a-z0-9-]+)".*\.has_sizes = true', table) == list(USES_SIZES)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("drift", [0.0, 0.5, -0.2])
def test_descent_finds_the_valley_in_spite_of_noise_and_drift(seed, drift):
    hills = Hills(drift=drift, seed=seed)
    search = descent.descend(hills.compare, START, Space(), trials=25)
    assert hills.true_us(search.best) < 1.03 * hills.true_us(BEST)
    assert hills.true_us(START) > 1.2 * hills.true_us(BEST)
    assert len(search.trials) < 25 and search.why_it_ended == "no neighbour gains more than the noise"


def test_descent_stays_where_nothing_is_better():
    moved = []
    for seed in range(20):
        hills = Hills(noise=0.05, depth=0.0, seed=seed)
        search = descent.descend(hills.compare, START, Space(), trials=30)
        moved.append(search.best != START)
        assert len(search.trials) <= 30
    # A duel errs once in forty, for each of the dozen neighbours; the comparison at the end sorts those out.
    assert sum(moved) <= 8, moved


@pytest.mark.parametrize("own", [(4 * KB, 8 * KB), (1024 * MB, 1024 * MB), (64 * KB, 64 * MB)])
def test_descent_also_begins_outside_of_the_limits(own):
    hills = Hills(depth=0.01)  # no plateau
    search = descent.descend(hills.compare, Settings("bytescheduler", *own), Space(), trials=40)
    assert hills.true_us(search.best) < 1.05 * hills.true_us(BEST), search.best


def test_descent_tries_at_most_so_many_and_none_twice():
    hills = Hills()
    search = descent.descend(hills.compare, START, Space(), trials=3)
    assert [trial.number for trial in search.trials] == [1, 2, 3]
    assert len(hills.tried) == 4
    assert search.why_it_ended == "all trials were made"


def test_what_replay_predicts_is_tried_first():
    for method in (descent.descend, bayesian.optimise):
        hills = Hills()
        search = method(hills.compare, START, Space(), trials=2, predicted=BEST)
        assert search.trials[0].settings == BEST and search.trials[0].is_new_best
        assert search.best == BEST


def test_sizes_stay_within_their_limits():
    space = Space()
    tiny = Settings("p3", 64 * KB, 64 * KB)
    assert space.scaled(tiny, {"partition_bytes": 0.5}) is None
    assert space.scaled(tiny, {"partition_bytes": 2.0}) == Settings("p3", 128 * KB, 64 * KB)
    assert space.scaled(Settings("p3", 12 * MB, 64 * KB), {"partition_bytes": 4.0}).partition_bytes == 16 * MB
    assert space.rounded("credit_bytes", 1e12) == 64 * MB
    assert space.rounded("credit_bytes", 100_000) == 24 * 4 * KB


@pytest.mark.parametrize("seed", range(3))
def test_bayesian_optimisation_finds_the_valley(seed):
    hills = Hills(drift=0.3, seed=seed)
    search = bayesian.optimise(hills.compare, START, Space(), trials=18)
    assert hills.true_us(search.best) < 1.05 * hills.true_us(BEST), search.best
    assert len(search.trials) <= 18


def test_a_duel_is_fair_under_drift():
    """The job gets slower all the time: what runs later takes longer, and yet equal settings are equal."""
    gains = []
    for seed in range(30):
        hills = Hills(noise=0.01, drift=3.0, seed=seed)
        fight = hills.compare(START, START)
        gains.append(fight.gain)
        assert fight.pairs % 2 == 0
    assert abs(statistics.fmean(gains)) < 0.004
    hills = Hills(noise=0.01, drift=3.0)
    one_after_the_other = measure.measured(hills.run(START, 64)).us / measure.measured(hills.run(START, 64)).us
    assert one_after_the_other < 0.9, "the drift would decide"


def test_a_duel_is_as_long_as_the_noise_wants():
    small = Hills(noise=0.002).compare(START, BEST)
    assert small.pairs == RULES.least_pairs and small.is_better and 0.15 < small.gain < 0.35
    even = Hills(noise=0.2, depth=0.0).compare(START, BEST)
    assert even.pairs > RULES.least_pairs or not even.is_better
    hopeless = Hills(noise=0.002).compare(BEST, Settings("bytescheduler", 16 * MB, 64 * KB))
    assert hopeless.pairs == 2 and hopeless.gain < -0.5


def test_the_noise_of_a_duel_covers_the_truth():
    inside = 0
    for seed in range(100):
        hills = Hills(noise=0.05, seed=seed)
        other = Settings("bytescheduler", 512 * KB, 4 * MB)
        fight = duel.duel(hills.run, START, other, duel.Rules(least_pairs=12, hopeless=9))
        truth = 1 - hills.true_us(other) / hills.true_us(START)
        inside += abs(fight.gain - truth) <= fight.noise
    assert inside >= 88  # 95 of 100 in the mean


def test_the_noise_of_a_median_shrinks_with_the_steps():
    wave = random.Random(3)
    few, many = ([wave.gauss(100, 5) for _ in range(count)] for count in (16, 1600))
    assert measure.measured(few).noise_us > 5 * measure.measured(many).noise_us
    assert abs(measure.measured(many).us - 100) < 1
    assert measure.t_95(1) == 12.71 and 1.96 < measure.t_95(100) < 2.0
    assert str(measure.measured([41_000.0] * 4)) == "41.00 ms +- 0.00"


def test_each_step_counts_once():
    log = measure.StepLog()
    log.take(10, [5, 6, 7])
    log.take(11, [6, 7, 8])
    assert log.newest() == 14 and log.from_step(11, 2) == [6, 7] and log.count_from(12) == 2
    log.forget_before(13)
    assert log.us == {13: 8}


class FakeDeft:
    """A daemon that leads one job, which takes three steps between two looks at it."""

    def __init__(self, hills, settings=START, steps=10**6, name="mine"):
        self.hills, self.steps, self.name = hills, steps, name
        self.settings, self.waiting = settings, None
        self.policies, self.us, self.step = [], [], 0
        self.refuses, self.leads, self.stands = "", True, False
        self.sets = []

    def take_steps(self, count):
        for _ in range(0 if self.stands else count):
            if self.waiting is not None:
                self.settings, self.waiting = self.waiting, None
                sizes = {"partition_bytes": self.settings.partition_bytes, "credit_bytes": self.settings.credit_bytes}
                change = {"group": 0, "from_step": self.step, "policy": self.settings.policy, "reason": ""} | sizes
                self.policies = [*self.policies, change][-8:]
            self.us += self.hills.run(self.settings, 1)
            self.step += 1

    def jobs(self):
        self.take_steps(3)
        if self.step > self.steps:
            return []
        shown = {"name": self.name, "state": "running"}
        if self.leads:
            times = [{"group": 0, "first_step": max(0, self.step - 256), "us": self.us[-256:]}]
            settings = dict(vars(self.settings))
            shown["leader"] = {"settings": settings, "policies": self.policies, "step_times": times}
        return [shown, {"name": "another", "state": "running"}]

    def run(self, action, *words):
        assert action == "set" and words[-1] == self.name
        if self.refuses:
            return SimpleNamespace(returncode=2, stderr=f"deft set: {self.refuses}\n")
        values = dict(word.split("=") for word in words[:-1])
        self.waiting = Settings(values["policy"], int(values["partition_bytes"]), int(values["credit_bytes"]))
        self.sets.append(self.waiting)
        return SimpleNamespace(returncode=0, stderr="")


def running(deft, patience_s=5.0):
    now = [0.0]

    def sleep(seconds):
        now[0] += seconds

    return job.RunningJob("mine", deft, patience_s, sleep, lambda: now[0])


def arguments(*words):
    return command.parser().parse_args([*words])


def test_a_block_has_only_steps_of_its_own_settings():
    hills = Hills(noise=0.0)
    deft = FakeDeft(hills)
    fast = running(deft)
    assert fast.own_settings() == START
    for settings in (START, BEST, BEST, START):
        assert set(fast.run(settings, 8)) == {hills.true_us(settings)}
    assert deft.sets == [START, BEST, START], "it sets what is not in force"
    froms = [change["from_step"] for change in deft.policies]
    assert froms == sorted(set(froms))


def test_tuning_leaves_the_best_in_force_and_says_what_it_tried(tmp_path, capsys):
    hills = Hills(drift=0.1)
    deft = FakeDeft(hills)
    path = tmp_path / "tuned.flags"
    command.tune(running(deft), arguments("--trials", "20", "-o", str(path), "--job", "mine"))
    said = capsys.readouterr().out
    assert deft.sets[-1] != START and hills.true_us(deft.sets[-1]) < 1.05 * hills.true_us(BEST)
    lines = path.read_text().splitlines()
    assert lines[0].startswith("# deft tune: ") and "trials by descent" in lines[0]
    options = deft.sets[-1].options()
    assert lines[3:] == [f"{name} = {value}" for name, value in options.items()]
    listed = "DEFT_POLICY, DEFT_PARTITION_BYTES and DEFT_CREDIT_BYTES"
    assert lines[1] == f"# A variable wins over this file: unset {listed}." and lines[2].startswith("# ")
    assert "train with " + " ".join(f"DEFT_{name.upper()}={value}" for name, value in options.items()) in said
    assert f"DEFT_FLAG_FILE={path}, and {listed} not set, since a variable wins over it" in said
    assert "the best so far" in said and " ms of the best: " in said


def test_the_times_that_are_told_are_those_of_the_gain():
    measured = measure.measured([100_000.0] * 4), measure.measured([101_000.0] * 4)  # the network drifted
    assert duel.Duel(*measured, 0.05, 0.01, 4).times() == ("100.00 ms", "95.00 ms")


def test_without_a_daemon_the_words_are_those_of_status(monkeypatch):
    words = "deft status: no deftd answers on /run/deft/deftd.sock"
    ended = subprocess.CompletedProcess([], 1, "", words)
    monkeypatch.setattr(job.DeftCommand, "run", lambda *_: ended)
    with pytest.raises(job.TuneError, match=r"^no deftd answers on "):
        command.tune_running(arguments("--job", "mine"))


def test_the_result_is_an_object_for_programs(tmp_path, capsys):
    deft = FakeDeft(Hills())
    command.tune(running(deft), arguments("--trials", "2", "--json", "-o", str(tmp_path / "f"), "--job", "mine"))
    shown = json.loads(capsys.readouterr().out)
    assert shown["own"] == START.options() and len(shown["trials"]) == 2
    assert shown["worth_it"] == (tmp_path / "f").exists()
    assert {"step_us", "step_noise_us", "gain", "noise", "pairs", "new_best"} <= shown["trials"][0].keys()


def test_a_job_that_is_best_as_it_is_gets_its_settings_back(tmp_path, capsys):
    deft = FakeDeft(Hills(), settings=BEST)
    command.tune(running(deft), arguments("-o", str(tmp_path / "f"), "--job", "mine"))
    assert deft.sets[-1] == BEST and not (tmp_path / "f").exists()
    assert "keep" in capsys.readouterr().out


def test_a_policy_without_sizes_is_compared_with_bytescheduler_at_the_end(tmp_path, capsys):
    class FifoIsBest(Hills):
        def true_us(self, settings):
            return 30_000 if settings.policy == "fifo" else super().true_us(settings)

    fifo = Settings("fifo", 1 * MB, 4 * MB)
    deft = FakeDeft(FifoIsBest(), settings=fifo)
    command.tune(running(deft), arguments("-o", str(tmp_path / "f"), "--job", "mine"))
    assert deft.sets[-1] == fifo and not (tmp_path / "f").exists()
    assert "keep the job's own settings" in capsys.readouterr().out


def test_a_job_that_ends_meanwhile_is_told_and_nothing_is_written(tmp_path, capsys):
    deft = FakeDeft(Hills(), steps=200)
    command.tune(running(deft), arguments("-o", str(tmp_path / "f"), "--job", "mine"))
    said = capsys.readouterr().out
    assert "the job ended after" in said and "the best so far were" in said and not (tmp_path / "f").exists()
    longer = FakeDeft(Hills(), steps=600)
    command.tune(running(longer), arguments("--json", "-o", str(tmp_path / "f"), "--job", "mine"))
    shown = json.loads(capsys.readouterr().out)
    assert shown["job_ended"] and not shown["worth_it"] and 1 <= len(shown["trials"]) < 8


def test_a_job_that_is_about_to_end_has_ended(tmp_path, capsys):
    deft = FakeDeft(Hills())
    deft.refuses = "no job 'mine' runs on this daemon (deft status lists the jobs)"
    command.tune(running(deft), arguments("-o", str(tmp_path / "f"), "--job", "mine"))
    assert "the job ended after 0 trials" in capsys.readouterr().out


def test_another_run_of_the_job_keeps_its_own_settings(tmp_path, capsys):
    class Restarted(FakeDeft):
        def take_steps(self, count):
            super().take_steps(count)
            if self.step > 100 and self.sets:
                self.__init__(self.hills, Settings("fifo", 64 * KB, 64 * KB))

    deft = Restarted(Hills())
    command.tune(running(deft), arguments("-o", str(tmp_path / "f"), "--job", "mine"))
    assert "the job ended after" in capsys.readouterr().out
    assert deft.settings.policy == "fifo" and not deft.sets and not (tmp_path / "f").exists()


def test_refusals_and_jobs_that_stand_still_are_told(tmp_path):
    def tune(deft):
        with pytest.raises(job.TuneError) as raised:
            command.tune(running(deft), arguments("-o", str(tmp_path / "f"), "--job", "mine"))
        return str(raised.value)

    refusing = FakeDeft(Hills())
    refusing.refuses = "this job cannot change while it runs"
    assert tune(refusing) == "this job cannot change while it runs"
    elsewhere = FakeDeft(Hills())
    elsewhere.leads = False
    assert "run deft tune on the node of rank 0" in tune(elsewhere)
    standing = FakeDeft(Hills())
    standing.take_steps(4)
    standing.stands = True
    assert "has not come to its next steps within 5 s: see deft status" in tune(standing)


def test_an_error_puts_the_own_settings_back(monkeypatch, tmp_path):
    deft = FakeDeft(Hills())

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setitem(command.METHODS, "descent", interrupt)
    with pytest.raises(KeyboardInterrupt):
        command.tune(running(deft), arguments("-o", str(tmp_path / "f"), "--job", "mine"))
    assert deft.sets == [START]


def test_ctrl_c_that_ends_the_job_too_says_nothing_of_its_settings(monkeypatch, tmp_path, capsys):
    deft = FakeDeft(Hills())

    def interrupt(*_):
        deft.steps = deft.step  # the job has ended, too
        raise KeyboardInterrupt

    monkeypatch.setitem(command.METHODS, "descent", interrupt)
    with pytest.raises(KeyboardInterrupt):
        command.tune(running(deft), arguments("-o", str(tmp_path / "f"), "--job", "mine"))
    assert not deft.sets and "its own settings back" not in capsys.readouterr().out


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(job.TuneError, match=r"cannot write .*nowhere/f: No such file"):
        command.tune(running(FakeDeft(Hills())), arguments("-o", str(tmp_path / "nowhere/f"), "--job", "mine"))


def test_what_auto_had_in_force_must_be_beaten_too():
    def outcome(before_us):
        fight = duel.Duel(measure.Measured(50_000, 100, 9), measure.Measured(40_000, 100, 9), 0.2, 0.01, 12)
        own = Settings("auto", 1 * MB, 4 * MB)
        return command.TuneResult(own, measure.Measured(before_us, 100, 20), descent.Search(BEST), fight)

    assert outcome(50_000).is_faster(0.01)
    assert not outcome(40_100).is_faster(0.01)


def test_a_missing_optimiser_is_told_with_the_command_that_installs_it(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert command.main(["--method", "bayesian", "--job", "mine"]) == 2
    assert "python3 -m pip install optuna scipy torch" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "give the command that starts the job, or --job JOB"),
        (["--job", "mine", "true"], "give the command that starts the job, or --job JOB"),
        (["/no/such/program"], "cannot run /no/such/program: No such file"),
        (["true"], "the command ended with 0 before its job trained"),
        (["--patience", "0", "true"], "run `deft tune --job JOB` on the node of rank 0"),
        (["-o", "/no/such/folder/f", "/no/such/program"], "cannot write /no/such/folder/f: No such file"),
        (["--deft", "false", "--trace", "/tmp", "/no/such/program"], "--trace: "),
    ],
)
def test_wrong_usage_is_told(words, says, capsys):
    assert command.main(words) in (1, 2)
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("patience", ["nan", "inf", "-1", "soon"])
def test_a_patience_that_never_ends_is_refused(patience, capsys):
    with pytest.raises(SystemExit):
        command.main([f"--patience={patience}", "--job", "mine"])
    assert "argument --patience: " in capsys.readouterr().err


# Ends well only if nobody ends it before its input does.
TRAINING = [sys.executable, "-c", "import sys; sys.stdin.read(); print('trained')"]


def tuned_while_it_trains(monkeypatch, error, *words):
    """The status of `deft tune TRAINING`, whose tuning ends with `error` while the training still runs."""
    made = []
    start = subprocess.Popen

    def popen(*words, **options):
        made.append(start(*words, stdin=subprocess.PIPE, **options))
        return made[0]

    def wait_for_the_end():  # what the user's training does when the tuning is over
        made[0].stdin.close()
        return start.wait(made[0])

    def fails(*_):
        made[0].wait = wait_for_the_end
        raise error

    monkeypatch.setattr(command.subprocess, "Popen", popen)
    monkeypatch.setattr(command.job, "job_of", fails)
    status = command.main([*words, *TRAINING])
    return status, made[0].returncode


@pytest.mark.parametrize(
    ("error", "says", "status"),
    [
        (job.TuneError("job 'mine' has not come to its next steps", 1), "has not come to its next steps", 1),
        (job.TuneError("no rank 0 of a job of Deft trains on this machine"), "no rank 0", 1),
        (job.TuneError("updates of knapsack come late", 2), "updates of knapsack come late", 2),
        (ZeroDivisionError("a bug"), "ZeroDivisionError: a bug", 1),
    ],
)
def test_the_training_goes_on_when_the_tuning_fails(error, says, status, monkeypatch, tmp_path, capfd):
    ended = tuned_while_it_trains(monkeypatch, error, "-o", str(tmp_path / "f"))
    said = capfd.readouterr()
    assert ended == (status, 0) and "trained" in said.out
    assert says in said.err and "the command goes on" in said.err


def test_a_training_that_is_too_short_to_be_tuned_is_told(monkeypatch, tmp_path, capfd):
    ended = tuned_while_it_trains(monkeypatch, job.JobEnded("mine"), "--json", "-o", str(tmp_path / "f"))
    said = capfd.readouterr()
    assert ended == (1, 0) and said.out == "", "no object, so no success"
    assert "the job ended before 20 of its steps were measured: nothing was tried" in said.err


def test_the_training_ends_when_the_user_stops_the_tuning(monkeypatch, tmp_path):
    ended = tuned_while_it_trains(monkeypatch, KeyboardInterrupt(), "-o", str(tmp_path / "f"))
    assert ended == (130, -signal.SIGTERM)


def test_the_check_of_the_output_changes_no_file(tmp_path):
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_text("policy = p3\n")
    command.check_output(str(old))
    command.check_output(str(new))
    assert old.read_text() == "policy = p3\n" and not new.exists()


def test_the_first_worker_is_found_among_the_processes_of_the_command(tmp_path):
    for pid, parent, variables in (
        (7, 1, ""),
        (8, 7, "PATH=/bin"),
        (9, 8, "DEFT_RANK=1"),
        (10, 8, "DEFT_RANK=0"),
        (11, 1, ""),
    ):
        folder = tmp_path / str(pid)
        folder.mkdir()
        (folder / "stat").write_text(f"{pid} (a) b) S {parent} 1 1")
        (folder / "environ").write_bytes(variables.encode() + b"\0")
    found = job.descendants(7, tmp_path)
    assert sorted(int(folder.name) for folder in found) == [8, 9, 10]
    assert job.variables_of(tmp_path / "10")["DEFT_RANK"] == "0"
    assert job.variables_of(tmp_path / "99") == {}
