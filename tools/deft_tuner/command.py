"""The command line of deft tune."""

from __future__ import annotations

import argparse
import functools
import json
import math
import re
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from deft_tuner import bayesian, descent, job
from deft_tuner.descent import Search, Trial
from deft_tuner.duel import Duel, Rules, duel
from deft_tuner.job import JobEnded, RunningJob, TuneError
from deft_tuner.measure import Measured, measured
from deft_tuner.settings import USES_SIZES, Settings, Space

METHODS = {"descent": descent.descend, "bayesian": bayesian.optimise}
FIRST_STEPS = 20  # of the job as it is, for the report
USAGE = """deft tune [--trials N] [--method descent|bayesian] [-o FILE] COMMAND ...
       deft tune [...] --job JOB"""
DESCRIPTION = """\
Looks for a part size and a credit with which a job trains faster, while it trains. Run it on the node of rank
0. COMMAND starts the job (deftrun ...), which goes on with the best settings; JOB runs already. Updates stay
those of plain data-parallel training. Each trial is compared with the best settings by turns. If the best
ones are faster than the job's own beyond the noise, in a comparison at the end, they are written to FILE,
which DEFT_FLAG_FILE takes."""
INSTALL = "python3 -m pip install optuna scipy torch"


@dataclass
class TuneResult:
    """The result of the tuning. `final`: the comparison at the end; None if there was none, or the job ended before."""

    own: Settings
    before: Measured
    search: Search
    final: Duel | None = None
    ended: bool = False
    trials: list[Trial] = field(default_factory=list)  # that were made, also if the job ended meanwhile

    def is_faster(self, least_gain: float) -> bool:
        if self.final is None or not self.final.is_better or self.final.gain <= least_gain:
            return False
        # What `auto` had in force cannot be set by name, so it takes no part in duels: its steps came before.
        limit = self.before.us - self.before.noise_us
        return self.own.policy != "auto" or self.final.other.us + self.final.other.noise_us < limit


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="deft tune", usage=USAGE, description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--deft", default="deft", help=argparse.SUPPRESS)  # the program that runs this
    made.add_argument("--trials", type=positive, default=15, metavar="N", help="settings that are tried at most (15)")
    made.add_argument(
        "--method",
        choices=METHODS,
        default="descent",
        help="descent: changes one size after the other. bayesian: expected improvement, by Optuna",
    )
    made.add_argument(
        "--policy", choices=USES_SIZES, help="whose sizes are tuned; without it the job's, or bytescheduler"
    )
    made.add_argument(
        "--trace", metavar="DIR", help="traces of the job (DEFT_TRACE): begin with what replay says is best"
    )
    made.add_argument(
        "--steps", type=positive, default=8, metavar="N", help="steps of a block (8); a trial has 8 to 24 blocks"
    )
    made.add_argument("--patience", type=seconds, default=120, metavar="SECONDS", help="for the job's next step (120)")
    made.add_argument("-o", "--output", default="tuned.flags", metavar="FILE", help="the flag file (tuned.flags)")
    made.add_argument(
        "--json", action="store_true", help="print an object at the end, and the trials to the error output"
    )
    made.add_argument("--socket", default="", metavar="PATH", help="of the daemon, as for deft status")
    made.add_argument("--job", metavar="JOB", help="the name of a running job")
    made.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND ...")
    return made


def positive(text: str) -> int:
    if not re.fullmatch("[0-9]+", text) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return int(text)


def seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is no number of seconds")
    return value


def predicted_by_replay(given: argparse.Namespace, start: Settings) -> Settings | None:
    """What `deft optimize` finds for the sizes of a traced job, with its buckets and under this policy."""
    if not given.trace:
        return None
    with tempfile.TemporaryDirectory() as folder:
        words = [given.deft, "optimize", given.trace, "--running", "--policy", start.policy, "--json"]
        found = subprocess.run([*words, "-o", f"{folder}/flags"], capture_output=True, text=True, check=False)
    if found.returncode != 0:
        raise TuneError(found.stderr.strip().removeprefix("deft optimize: "), found.returncode)
    sizes = json.loads(found.stdout)["settings"]
    return Settings(start.policy, int(sizes["partition_bytes"]), int(sizes["credit_bytes"]))


def in_words(trial: Trial, rules: Rules) -> str:
    fight = trial.duel
    change = f"{abs(fight.gain):.1%} {'faster' if fight.gain > 0 else 'slower'} +- {fight.noise:.1%}"
    verdict = "the best so far" if trial.is_new_best else "no gain above the noise" if not fight.is_worse else "worse"
    if fight.is_better and not trial.is_new_best:
        verdict = f"below {rules.least_gain:.0%}"
    best, other = fight.times()
    return (
        f"{trial.number:>3}  {trial.settings}: {other}, beside {best} of the best: {change} "
        f"({fight.pairs} pairs): {verdict}"
    )


class Tuning:
    """One tuning of a running job, from its own settings to the end."""

    def __init__(self, running: RunningJob, given: argparse.Namespace, say: Callable[[str], None]) -> None:
        self.running, self.given, self.say = running, given, say
        self.rules = Rules(block_steps=given.steps)

    def start_of(self, own: Settings) -> Settings:
        policy = self.given.policy or (own.policy if own.policy in USES_SIZES else "bytescheduler")
        return Settings(policy, own.partition_bytes, own.credit_bytes)

    def run(self) -> TuneResult:
        own = self.running.own_settings()
        before = measured(self.running.untouched(FIRST_STEPS))
        self.say(f"job {self.running.name}: {own}: {before} a step")
        start = self.start_of(own)
        outcome = TuneResult(own, before, Search(start))
        try:
            self.search(outcome, start)
        except JobEnded:
            outcome.ended = True
        except BaseException:
            self.put_back(own)
            raise
        return outcome

    def take(self, outcome: TuneResult, trial: Trial) -> None:
        outcome.trials.append(trial)
        self.say(in_words(trial, self.rules))

    def put_back(self, own: Settings) -> None:
        try:
            self.running.set(own)
        except JobEnded:
            pass  # Ctrl-C at a terminal ends the job, too
        except TuneError as error:
            self.say(f"job {self.running.name} does not have its own settings back: {error}")

    def search(self, outcome: TuneResult, start: Settings) -> None:
        compare = functools.partial(duel, self.running.run, rules=self.rules)
        rival = start if outcome.own.policy == "auto" else outcome.own
        outcome.search = METHODS[self.given.method](
            compare,
            start,
            Space(),
            self.given.trials,
            self.rules.least_gain,
            functools.partial(self.take, outcome),
            predicted_by_replay(self.given, start),
        )
        best = outcome.search.best
        self.say(f"ended, because {outcome.search.why_it_ended}; the best: {best}")
        if best != rival:
            outcome.final = duel(self.running.run, rival, best, final_rules(self.rules))
        self.running.set(best if outcome.is_faster(self.rules.least_gain) else outcome.own)


def final_rules(rules: Rules) -> Rules:
    """The winner of many trials was lucky, too. So the last comparison is a new one, and it is long."""
    return Rules(rules.block_steps, rules.most_pairs, rules.most_pairs, rules.least_gain, rules.hopeless)


def header(outcome: TuneResult, method: str) -> str:
    before, after = outcome.final.times()
    final = outcome.final
    return (
        f"# deft tune: {after} a step instead of {before} "
        f"({final.gain:.1%} less, +- {final.noise:.1%}), after {len(outcome.trials)} trials by {method}\n"
    )


def variables(options: dict[str, str]) -> dict[str, str]:
    return {f"DEFT_{name.upper()}": value for name, value in options.items()}


def listed(options: dict[str, str]) -> str:
    *most, last = variables(options)
    return f"{', '.join(most)} and {last}" if most else last


# deft optimize gives the same advice, in the same words (tools/optimize.cc).
def comments(options: dict[str, str]) -> list[str]:
    return [
        f"# A variable wins over this file: unset {listed(options)}.",
        "# If the job has a flag file already, add these lines to that one.",
    ]


def how_to_train(options: dict[str, str], path: str) -> str:
    return (
        f"train with {' '.join(f'{name}={value}' for name, value in variables(options).items())}\n"
        f"or with the file {path}: DEFT_FLAG_FILE={path}, and {listed(options)} not set, since a variable wins over it"
    )


def write_flags(path: str, outcome: TuneResult, method: str) -> None:
    options = outcome.search.best.options()
    lines = comments(options) + [f"{name} = {value}" for name, value in options.items()]
    try:
        Path(path).write_text(header(outcome, method) + "".join(f"{line}\n" for line in lines))
    except OSError as error:
        raise TuneError(f"cannot write {path}: {error.strerror}") from None


def as_json(outcome: TuneResult, is_faster: bool) -> str:
    def row(fight: Duel) -> dict:
        return {
            "step_us": fight.other.us,
            "step_noise_us": fight.other.noise_us,
            "best_step_us": fight.best.us,
            "best_step_noise_us": fight.best.noise_us,
            "gain": fight.gain,
            "noise": fight.noise,
            "pairs": fight.pairs,
        }

    trials = [trial.settings.options() | row(trial.duel) | {"new_best": trial.is_new_best} for trial in outcome.trials]
    result = {
        "worth_it": is_faster,
        "options": outcome.search.best.options() if is_faster else {},
        "own": outcome.own.options(),
        "own_step_us": outcome.before.us,
        "trials": trials,
        "final": row(outcome.final) if outcome.final else None,
        "job_ended": outcome.ended,
    }
    return json.dumps(result, indent=2)


def verdict(outcome: TuneResult, is_faster: bool, path: str) -> str:
    final = outcome.final
    if is_faster:
        before, after = final.times()
        return (
            f"{after} a step instead of {before}: {final.gain:.1%} less, +- {final.noise:.1%}\n"
            f"{how_to_train(outcome.search.best.options(), path)}"
        )
    if outcome.ended and final is None:
        best = [trial.settings for trial in outcome.trials if trial.is_new_best]
        seen = f"the best so far were {best[-1]}" if best else "none was better than the first settings"
        return (
            f"the job ended after {len(outcome.trials)} trials, before the last comparison; {seen}: nothing was written"
        )
    if final is None:
        return "nothing is faster than the job's own settings: keep them"
    return (
        f"the best is not faster beyond the noise ({final.gain:+.1%} +- {final.noise:.1%}): keep the job's own settings"
    )


def tune(running: RunningJob, given: argparse.Namespace) -> None:
    out = sys.stderr if given.json else sys.stdout
    tuning = Tuning(running, given, lambda line: print(line, file=out, flush=True))
    outcome = tuning.run()
    is_faster = outcome.is_faster(tuning.rules.least_gain)
    if is_faster:
        write_flags(given.output, outcome, given.method)
    print(as_json(outcome, is_faster) if given.json else verdict(outcome, is_faster, given.output), flush=True)


def check_method(method: str) -> None:
    if method != "bayesian":
        return
    try:
        bayesian.make_study(1)
    except ImportError as error:
        raise TuneError(
            f"--method bayesian needs the Python packages optuna, scipy and torch ({error}): {INSTALL}", 2
        ) from None


def tune_running(given: argparse.Namespace) -> int:
    deft = job.DeftCommand(given.deft, given.socket)
    try:
        tune(RunningJob(given.job, deft, given.patience), given)
    except JobEnded:
        deft.check_daemon()
        raise TuneError(f"no job '{given.job}' runs on this daemon: deft status lists the jobs", 2) from None
    return 0


def check_output(path: str) -> None:
    """Hours of trials must not end with a file that cannot be written."""
    was_there = Path(path).exists()
    try:
        with Path(path).open("a"):
            pass
    except OSError as error:
        raise TuneError(f"cannot write {path}: {error.strerror}", 2) from None
    if not was_there:
        Path(path).unlink()


def check_trace(given: argparse.Namespace) -> None:
    if not given.trace:
        return
    replayed = subprocess.run(
        [given.deft, "replay", given.trace, "--json"], capture_output=True, text=True, check=False
    )
    if replayed.returncode != 0:
        raise TuneError(f"--trace: {replayed.stderr.strip().removeprefix('deft replay: ')}", replayed.returncode)


def status_of_tuning(command: subprocess.Popen, given: argparse.Namespace) -> int:
    """Tunes the job that the command has started. Whatever goes wrong with that, the training must not end for it."""
    try:
        tune(job.job_of(command, given.deft, given.socket, given.patience), given)
    except JobEnded:
        print(
            f"deft tune: the job ended before {FIRST_STEPS} of its steps were measured: nothing was tried",
            file=sys.stderr,
            flush=True,
        )
        return 1
    except TuneError as error:
        print(f"deft tune: {error}", file=sys.stderr, flush=True)
        status = error.status
    except Exception:
        traceback.print_exc()
        status = 1
    else:
        return 0
    if command.poll() is None:
        print("deft tune: the tuning has ended, and the command goes on", file=sys.stderr, flush=True)
    return status


def tune_command(given: argparse.Namespace) -> int:
    """The command's own output goes where it would go without us, but for --json, whose output is the object alone."""
    try:
        command = subprocess.Popen(given.command, stdout=sys.stderr if given.json else None)
    except OSError as error:
        raise TuneError(f"cannot run {given.command[0]}: {error.strerror}", 2) from None
    try:
        tuned = status_of_tuning(command, given)
        ended = command.wait()
        return max(tuned, ended if ended >= 0 else 128 - ended)  # as shells have it
    finally:
        if command.poll() is None:  # the user wants to stop
            command.send_signal(signal.SIGTERM)
            command.wait()


def main(words: list[str]) -> int:
    given = parser().parse_args(words)
    given.command = given.command[1:] if given.command[:1] == ["--"] else given.command
    try:
        if bool(given.job) == bool(given.command):
            raise TuneError("give the command that starts the job, or --job JOB (see deft tune --help)", 2)
        check_method(given.method)
        check_output(given.output)
        check_trace(given)
        return tune_running(given) if given.job else tune_command(given)
    except TuneError as error:
        print(f"deft tune: {error}", file=sys.stderr)
        return error.status
    except KeyboardInterrupt:
        return 130
