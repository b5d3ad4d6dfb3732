"""Trains one model under several schemes in the lab, in turn and several times round, and says what each costs."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from lab import forecast, predictions, rates, report
from lab.assignment import Training
from lab.catalogue import MODELS
from lab.events import Events
from lab.job import Block, Job, JobFailed, Score
from lab.layers import medians
from lab.netns import Nodes
from lab.progress import Progress
from lab.report import Outcome, Results
from lab.schemes import Scheme, parse
from lab.verification import Verification

FIRST_WARMUP, WARMUP = 3, 1  # steps that are trained but not timed, in the first round and in later ones
LAYER_STEPS = 6  # of `compute` in each round, for --verify
REPLAYED_STEPS = 16  # whose medians --accelerator replays
DDP_MARGIN = 1.08  # after the first round, DDP's bucket sizes that are this much slower than its best are dropped


@dataclasses.dataclass
class Shaping:
    """How the NICs are shaped; nothing on loopback."""

    rates: list[str] | None = None  # one a NIC
    coverage: float | None = None  # if the rates were chosen for it


class Comparison:
    def __init__(
        self, arguments: argparse.Namespace, schemes: list[Scheme], lab: Nodes, progress: Progress, logs: Path
    ):
        self._arguments, self._schemes, self._lab, self._progress, self._logs = arguments, schemes, lab, progress, logs
        self._prepare()
        self._training = Training(
            arguments.model,
            arguments.data,
            arguments.batch,
            arguments.workers,
            arguments.learning_rate,
            arguments.seed,
            Path(arguments.build).resolve(),
            arguments.links,
            arguments.schedule,
            FIRST_WARMUP + (arguments.rounds - 1) * WARMUP + arguments.rounds * self._steps(),
            framework=arguments.framework,
        )
        self._jobs: dict[Scheme, Job] = {}
        self._outcomes: dict[Scheme, Outcome] = {}
        self._shaping = Shaping()
        self._layers: list[dict] = []  # measured steps of `compute`
        self.failures: list[str] = []

    def run(self) -> Results:
        try:
            if self._arguments.accelerator:
                self._replay_layers()
            self._shape()
            for scheme in self._schemes:
                for variant in scheme.variants():
                    self._start(variant)
            for number in range(self._arguments.rounds):
                self._round(number)
                if number == 0:
                    self._drop_ddp(DDP_MARGIN)
            self._judge()
        finally:
            for job in self._jobs.values():
                job.stop()
        return self._results()  # daemons that have ended have finished their traces

    def _prepare(self) -> None:
        """Loads once, before the workers are forked, the modules and data that all of them need."""
        self._progress.stage("loading torch and the data")
        from lab import worker  # noqa: F401
        from lab.datasets import open_dataset

        self._samples = open_dataset(MODELS[self._arguments.model].dataset, self._arguments.data).samples

    def _replay_layers(self) -> None:
        """Measures the layers on all nodes at the same time; from now on they are replayed."""
        self._progress.stage("measuring layers")
        with self._compute() as job:
            job.run(FIRST_WARMUP, 1)
            layers = medians(job.layers(REPLAYED_STEPS))
        self._training = dataclasses.replace(self._training, layers=layers)
        self._progress.event(
            f"layers on the cores: forward {layers.forward_us / 1e3:.0f} ms, backward {layers.backward_us / 1e3:.0f} ms"
        )

    @contextlib.contextmanager
    def _compute(self) -> Iterator[Job]:
        """Workers that train alone, for the measurements before the schemes start."""
        job = Job(self._lab, parse("compute", self._arguments.nics), self._training, 0, self._logs)
        try:
            job.start()
            yield job
        finally:
            job.stop()

    # Shaping

    def _shape(self) -> None:
        arguments = self._arguments
        if not self._lab.emulated:
            return
        if arguments.rate:
            self._shaping.rates = rates.parse(arguments.rate, arguments.nics)
        elif arguments.nodes > 1:
            self._shaping.coverage = arguments.coverage or 1.0
            self._shaping.rates = self._rates_for_coverage()
        for scheme in self._schemes:
            self._limits(scheme)  # a rate that tc does not know is an error now, and not in a round
        if self._shaping.rates:
            self._lab.shape(self._shaping.rates)
            if arguments.nodes > 1:
                shares = " ".join(f"{share:.3f}" for share in rates.achieved(self._lab, self._shaping.rates))
                self._progress.event(
                    f"NICs at {', '.join(self._shaping.rates)}; a plain TCP transfer gets {shares} of it"
                )

    def _rates_for_coverage(self) -> list[str]:
        """Measures compute on all nodes at the same time."""
        self._progress.stage("measuring compute")
        with self._compute() as job:
            block = job.run(FIRST_WARMUP, max(10, min(20, self._arguments.steps)))
        compute_ms = report.percentile(block.step_ms, 0.5)
        nodes, nics = self._arguments.nodes, self._arguments.nics
        count = job.gradient_bytes
        self._progress.event(
            f"compute: {compute_ms:.0f} ms a step; coverage {self._shaping.coverage:g}: {count / 1e6:.1f} MB of "
            f"gradients in {self._shaping.coverage * compute_ms:.0f} ms over {nics} NICs"
        )
        return rates.for_coverage(self._shaping.coverage, compute_ms / 1e3, count, nodes, nics)

    # Rounds

    def _start(self, scheme: Scheme) -> None:
        self._progress.stage(f"starting {scheme.label}")
        job = Job(self._lab, scheme, self._training, len(self._jobs) + 1, self._logs)
        self._jobs[scheme] = job
        self._attempt(scheme, job.start)
        if scheme in self._jobs:
            self._outcomes[scheme] = Outcome(scheme)

    def _attempt(self, scheme: Scheme, action):
        """Runs `action`; a scheme that fails is dropped, the others go on. Nothing is asked of one that was dropped."""
        if scheme not in self._jobs:
            return None
        try:
            return action()
        except JobFailed as failure:
            self.failures.append(str(failure))
            self._progress.event(f"FAILED {failure}")
            self._jobs.pop(scheme).stop()
            self._outcomes.pop(scheme, None)
            return None

    def _steps(self) -> int:
        arguments = self._arguments
        if arguments.epochs is None:
            return arguments.steps
        world = arguments.nodes * arguments.workers
        return max(1, round(arguments.epochs * self._samples / (arguments.batch * world) / arguments.rounds))

    def _round(self, number: int) -> None:
        warmup = WARMUP if number else FIRST_WARMUP
        for scheme, job in list(self._jobs.items()):
            where = f"round {number + 1}/{self._arguments.rounds}, {scheme.label}"
            self._lab.shape(self._limits(scheme))
            self._progress.tick(f"{where}: starting")
            block = self._attempt(scheme, lambda job=job, where=where: self._turn(job, where, warmup))
            if block:
                outcome = self._outcomes[scheme]
                outcome.blocks.append(block)
                loss = f", loss {statistics.fmean(block.losses[-10:]):.4f}" if not self._arguments.accelerator else ""
                self._progress.event(f"{where}: {report.percentile(block.step_ms, 0.5):.1f} ms a step{loss}")
                self._look_closer(scheme, job)

    def _limits(self, scheme: Scheme) -> list[str] | None:
        """The rates of the NICs while this scheme runs."""
        given = self._shaping.rates
        return None if scheme.free or given is None else rates.scaled(given, scheme.speed)

    def _turn(self, job: Job, where: str, warmup: int) -> Block:
        """One scheme's steps of one round, with the events that happen in them."""
        steps = self._steps()
        due = [] if job.scheme.free else self._arguments.nic_event
        events = Events(self._lab, job, [*due, *self._arguments.straggler], self._logs)

        def on_step(step: int) -> None:
            for event in events.reached(step):
                self._progress.event(f"{where}: step {step}: {event}")
            self._progress.tick(f"{where}: step {step}/{steps}")

        try:
            block = job.run(warmup, steps, on_step)
        finally:
            events.end()
        for event in events.still_due():
            self.failures.append(f"{where}: step {event.step} never came, and so not: {event}")
        return block

    def _look_closer(self, scheme: Scheme, job: Job) -> None:
        """Measures between rounds, outside of any step's time."""
        arguments, outcome = self._arguments, self._outcomes[scheme]
        if arguments.predict:
            self._progress.tick(f"{scheme.label}: {'tracing' if scheme.is_deft else 'as many steps as are traced'}")
            folder = self._logs / "traces" / scheme.text.replace("/", "_") / str(len(outcome.traces))
            if self._attempt(scheme, lambda: predictions.trace(job, folder)):
                outcome.traces.append(folder)
        if arguments.verify and scheme.kind == "compute":
            self._layers += self._attempt(scheme, lambda: job.layers(LAYER_STEPS)) or []
        if arguments.time_to_accuracy is not None:
            self._lab.shape(None)
            self._progress.tick(f"{scheme.label}: test accuracy")
            score = self._attempt(scheme, job.score)
            if score:
                seconds = sum(block.wall_s for block in outcome.blocks)
                outcome.scores.append((seconds, score))
                self._progress.event(f"{scheme.label}: test accuracy {score.accuracy:.2%} after {seconds:.0f} s")

    def _drop_ddp(self, margin: float | None = None) -> None:
        """Drops DDP's bucket sizes that are so many times slower than its best; without a margin all others."""
        for scheme in self._schemes:
            steps_ms = {v: self._outcomes[v].step_ms() for v in scheme.variants() if v in self._outcomes}
            ranking = sorted(steps_ms, key=steps_ms.__getitem__)
            for variant in ranking[1:]:
                if margin is None or steps_ms[variant] > margin * steps_ms[ranking[0]]:
                    self._jobs.pop(variant).stop()
                    del self._outcomes[variant]

    def _judge(self) -> None:
        self._drop_ddp()
        if self._arguments.verify:
            self._verify()
        self._lab.shape(None)
        for scheme, job in list(self._jobs.items()):
            outcome, hashes = self._outcomes[scheme], self._attempt(scheme, job.hashes)
            if hashes:
                outcome.hashes = hashes
                score = self._final_score(scheme, job)
                if score:
                    outcome.accuracy, outcome.test_loss = score.accuracy, score.loss
                if scheme.kind != "compute" and len(set(hashes)) > 1:
                    self.failures.append(
                        f"{scheme.text}: the workers' parameters differ: {', '.join(h[:12] for h in hashes)}"
                    )
        self._progress.done()

    def _final_score(self, scheme: Scheme, job: Job) -> Score | None:
        arguments, outcome = self._arguments, self._outcomes[scheme]
        if outcome.scores:  # of the last round
            return outcome.scores[-1][1]
        if not arguments.accuracy and arguments.epochs is None:
            return None
        self._progress.stage(f"checking {scheme.label}: test accuracy")
        return self._attempt(scheme, job.score)

    def _verify(self) -> None:
        """The simulator's forecast of each scheme of Deft, beside the measured step time."""
        verification = Verification(self._lab, self._training, self._arguments.accelerator, self._progress, self._logs)
        limits = {outcome.scheme: self._limits(outcome.scheme) for outcome in self._outcomes.values()}
        try:
            if not any(scheme.kind == "compute" for scheme in self._outcomes):
                raise forecast.CannotForecast("compute has failed, in whose steps the layers are measured")
            verification.forecast(self._outcomes, self._jobs, medians(self._layers), limits)
        except (JobFailed, forecast.CannotForecast) as failure:
            self.failures.append(f"--verify: {failure}")
            self._progress.event(f"FAILED --verify: {failure}")

    def _results(self) -> Results:
        outcomes = list(self._outcomes.values())
        arguments = self._arguments
        return Results(
            outcomes,
            self._shaping.rates,
            self._shaping.coverage,
            arguments.time_to_accuracy,
            arguments.accelerator,
            self._predictions(),
            arguments.paired,
        )

    def _predictions(self) -> list[predictions.Prediction]:
        if not self._arguments.predict:
            return []
        self._progress.stage("replaying traces")
        traced = [predictions.Traced(scheme, o.traces) for scheme, o in self._outcomes.items() if scheme.is_deft]
        replays = predictions.Replays(self._training.build)
        made = replays.predictions(traced)
        self.failures += replays.failures
        self._progress.done()
        return made


def lab_shell(lab: Nodes, argv: list[str]) -> int:
    """Runs a command with the script `on` in its PATH: `on NODE COMMAND...`."""
    folder = lab.common_folder("bin")
    cases = "\n".join(f'  {node}) exec {" ".join(lab.prefix(node))} "$@" ;;' for node in range(lab.nodes))
    script = folder / "on"
    script.write_text(
        f'#!/bin/sh\nnode=$1\nshift\ncase "$node" in\n{cases}\n  *) echo "on: no node $node" >&2; exit 2 ;;\nesac\n'
    )
    script.chmod(0o755)
    argv = argv or [os.environ.get("SHELL", "/bin/sh")]
    return subprocess.call(argv, env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"})


def describe(arguments: argparse.Namespace, lab: Nodes) -> str:
    text = f"{arguments.nodes} nodes x {arguments.workers} worker(s) x {arguments.nics} NIC(s)"
    framework = "" if arguments.framework == "torch" else f" of {arguments.framework}"
    text += f", model {arguments.model}{framework}, batch {arguments.batch}"
    text += ", compute as on an accelerator" if arguments.accelerator else ""
    cores = " | ".join(",".join(map(str, share)) for share in lab.cores)
    return f"{text}; cores {cores}" + (
        " (shared: fewer cores than nodes, so times say little)"
        if lab.cores_shared and not arguments.accelerator
        else ""
    )


def run(arguments: argparse.Namespace, schemes: list[Scheme], lab: Nodes) -> int:
    progress = Progress()
    progress.event(describe(arguments, lab))
    logs = Path(arguments.logs) if arguments.logs else lab.common_folder("logs")
    logs.mkdir(parents=True, exist_ok=True)
    comparison = Comparison(arguments, schemes, lab, progress, logs)
    try:
        results = comparison.run()
    except JobFailed as failure:
        print(f"bench/compare: {failure}", file=sys.stderr)
        return 1
    if results.outcomes:
        print(report.table(results), flush=True)
    if arguments.json:
        results.write_json(arguments.json)
    if arguments.plot and results.outcomes:
        report.write_plot(results, arguments.plot, describe(arguments, lab).split(";")[0])
    for failure in comparison.failures:
        print(f"\n{failure}", file=sys.stderr)
    return 1 if comparison.failures else 0
