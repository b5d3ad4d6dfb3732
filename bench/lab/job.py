"""One scheme's processes on all nodes: workers, and for Deft a daemon a node. They live through all rounds, so that
start-up is paid once, and sleep while other schemes run."""

from __future__ import annotations

import functools
import json
import os
import selectors
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lab import deft_program
from lab.assignment import Assignment, Training
from lab.frameworks import VARIABLES
from lab.netns import ForkedProcess, Nodes
from lab.schemes import Scheme
from lab.services import START_DEADLINE_S, JobFailed, Services, end

REPOSITORY = Path(__file__).resolve().parents[2]
SILENCE_DEADLINE_S = 180  # no step of any kind takes this long
STEPS_AFTER_TRACE = 3  # for all nodes to reach its end


def interpreter(framework: str) -> Path:
    """Python with TensorFlow or MXNet."""
    return REPOSITORY / f".venv-{framework}/bin/python"


@dataclass
class Block:
    """The results of one run of some steps."""

    step_ms: list[float]  # of all ranks, one rank after the other
    losses: list[float]  # a step, averaged over the ranks
    updates: float  # of the parameters, in all steps
    worker_cpu_ms: float  # a node and step
    daemon_cpu_ms: float
    wall_s: float = 0  # of all steps, those of the warm-up too

    def ranks_ms(self) -> list[list[float]]:
        """Each rank's step times."""
        steps = len(self.losses)
        return [self.step_ms[first : first + steps] for first in range(0, len(self.step_ms), steps)]

    def slowest_ms(self) -> list[float]:
        """Each step's time on the worker that took longest."""
        return [max(times) for times in zip(*self.ranks_ms(), strict=True)]


@dataclass(frozen=True)
class Score:
    """The model's loss and accuracy on the held-out samples."""

    accuracy: float
    loss: float


class Job:
    def __init__(
        self, lab: Nodes, scheme: Scheme, training: Training, number: int, logs: Path, role: str | None = None
    ):
        """`role`: what the workers do if they do not train as the scheme says."""
        self.scheme, self._lab, self._training = scheme, lab, training
        self._assignment = Assignment(lab, scheme, training, number, logs, role)
        self._services = Services(lab, self._assignment)
        self._workers: list[ForkedProcess] = []
        self._buffers: dict[int, bytes] = {}
        self.world = self._assignment.world
        self.gradient_bytes = 0

    # Starting and ending

    def start(self) -> None:
        """Starts everything; returns when all workers are ready to train."""
        if self.scheme.is_deft:
            self._services.start_deft(self._training.build)
        if self.scheme.kind == "own":
            self._services.start_helpers(self._training.framework, interpreter(self._training.framework))
        for rank in range(self.world):
            self._start_worker(rank)
        answers = self._answers(START_DEADLINE_S)
        self.gradient_bytes = answers[0]["ready"]

    def _start_worker(self, rank: int) -> None:
        if self._training.framework != "torch":
            self._start_framework_worker(rank)
            return
        from lab import worker  # imports torch, which every worker then has from the start

        setting = self._assignment.setting(rank)
        node, log = rank // self._training.workers, self._assignment.log(f"worker{rank}")
        environment = self._assignment.worker_environment(rank)
        self._workers.append(self._lab.fork(node, functools.partial(worker.serve, setting), environment, log))

    def _start_framework_worker(self, rank: int) -> None:
        program = REPOSITORY / "bench/lab/framework_worker.py"
        argv = [str(interpreter(self._training.framework)), str(program), json.dumps(self._assignment.setting(rank))]
        environment = os.environ | VARIABLES[self._training.framework]
        environment |= self._assignment.worker_environment(rank)
        with open(self._assignment.log(f"worker{rank}"), "wb") as log:
            streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": log}
            node = rank // self._training.workers
            self._workers.append(self._lab.start(node, argv, env=environment, **streams))

    def stop(self) -> None:
        """Ends the workers in peace, then the services; what does not end is killed."""
        for worker in self._workers:
            if worker.poll() is None:
                try:
                    worker.stdin.write(b'{"stop": true}\n')
                    worker.stdin.close()
                except BrokenPipeError:
                    pass
        end(self._workers)
        self._services.stop()

    def processes(self, node: int) -> list[int]:
        """The ids of all processes of this node."""
        each = self._training.workers
        workers = self._workers[node * each : (node + 1) * each]
        return [*(worker.pid for worker in workers), *self._services.on(node)]

    # Training

    def run(self, warmup: int, steps: int, on_step: Callable[[int], None] = lambda _: None) -> Block:
        """Trains `warmup` steps and `steps` timed ones; both are raised to whole updates."""
        warmup, steps = (self.scheme.whole_updates(count) for count in (warmup, steps))
        before = self._services.cpu_ms()
        answers = self._ask({"run": {"warmup": warmup, "steps": steps}}, on_step)
        daemon = (self._services.cpu_ms() - before) / (steps + warmup) / self._lab.nodes
        worker = sum(answer["cpu_ms"] for answer in answers) / steps / self._lab.nodes
        losses = [sum(step) / self.world for step in zip(*(answer["losses"] for answer in answers), strict=True)]
        step_ms = [value for answer in answers for value in answer["step_ms"]]
        wall_s = max(answer["wall_s"] for answer in answers)
        return Block(step_ms, losses, answers[0]["updates"], worker, daemon, wall_s)

    def score(self) -> Score:
        answers = self._ask({"evaluate": True})
        correct, seen, loss = (sum(answer[name] for answer in answers) for name in ("correct", "seen", "loss_sum"))
        return Score(correct / seen, loss / seen)

    def layers(self, steps: int) -> list[dict]:
        """The layer times (lab/layer_times.py) of some steps in which each worker trains alone, of all workers."""
        return [step for answer in self._ask({"layers": {"steps": steps}}) for step in answer["layers"]]

    def link_times(self, part_bytes: int) -> dict[str, list[float]]:
        """The times that the workers of lab/links.py measure. The last one has waited for nobody."""
        answers = self._ask({"links": {"part_bytes": part_bytes}})
        return {
            count: [min(taken) for taken in zip(*(answer["links"][count] for answer in answers), strict=True)]
            for count in answers[0]["links"]
        }

    def bucket_bytes(self) -> list[int]:
        """The buckets into which Deft has cut the gradients, in the order of the arena."""
        said = self._deft("status", "--json")
        groups = [group for job in json.loads(said)["jobs"] for group in job["groups"]]
        return max(groups, key=lambda group: group["bytes"])["bucket_bytes"]

    def trace(self, folder: Path, steps: int) -> None:
        """Trains a few steps more than the `steps` that all nodes trace into `folder`."""
        self._deft("trace", "start", str(folder), "--steps", str(steps))
        self.run(0, steps + STEPS_AFTER_TRACE)

    def _deft(self, *words: str) -> str:
        """What this command of `deft` prints."""
        program, at = self._training.build / "bin" / "deft", ("--socket", self._assignment.socket(0))
        try:
            return deft_program.printed(program, *words, *at, timeout_s=START_DEADLINE_S)
        except deft_program.DeftFailed as failure:
            raise JobFailed(f"{self.scheme.text}: {failure}") from None

    def hashes(self) -> list[str]:
        return [answer["sha256"] for answer in self._ask({"hash": True})]

    def _ask(self, command: dict, on_step: Callable[[int], None] = lambda _: None) -> list[dict]:
        for rank, worker in enumerate(self._workers):
            try:
                worker.stdin.write(json.dumps(command).encode() + b"\n")
                worker.stdin.flush()
            except BrokenPipeError:
                raise self._services.failure(f"worker {rank} has ended", f"worker{rank}") from None
        return self._answers(SILENCE_DEADLINE_S, on_step)

    def _answers(self, patience_s: float, on_step: Callable[[int], None] = lambda _: None) -> list[dict]:
        """One answer of every worker, in the order of ranks; `patience_s` without a word from anyone is a failure."""
        answers: list[dict | None] = [None] * self.world
        with selectors.DefaultSelector() as selector:
            for rank, worker in enumerate(self._workers):
                selector.register(worker.stdout, selectors.EVENT_READ, rank)
            while None in answers:
                ready = selector.select(patience_s)
                if not ready:
                    silent = answers.index(None)
                    what = f"worker {silent} has been silent for {patience_s} s"
                    raise self._services.failure(what, f"worker{silent}")
                for key, _ in ready:
                    for message in self._read(key.data):
                        if "step" in message:
                            on_step(message["step"])
                        else:
                            answers[key.data] = message
        return answers

    def _read(self, rank: int) -> list[dict]:
        received = os.read(self._workers[rank].stdout.fileno(), 1 << 16)
        if not received:
            raise self._services.failure(f"worker {rank} has ended", f"worker{rank}")
        *lines, self._buffers[rank] = (self._buffers.get(rank, b"") + received).split(b"\n")
        return [json.loads(line) for line in lines]
