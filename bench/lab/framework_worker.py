"""One training process of the lab with TensorFlow or MXNet, for --framework. It needs no torch.

    .venv-tensorflow/bin/python bench/lab/framework_worker.py SETTING     # a JSON object

It understands run, evaluate, hash and stop of lab/worker.py, from stdin, and answers to stdout. A trainer has
train_step(images, labels) -> loss, settle(), scores(images) -> array, parameters() -> arrays, close(), and counts its
`updates`.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path[0] = str(Path(__file__).resolve().parents[1])  # instead of this folder, whose names are short
from lab import data, memory  # noqa: E402
from lab.timed_steps import timed_steps  # noqa: E402

_EVALUATED_AT_ONCE = 250
_TRAINERS = {"mxnet": "MXNetTrainer", "tensorflow": "TensorFlowTrainer"}  # each in the module of its framework


def normalized(images: np.ndarray) -> np.ndarray:
    return (images.astype(np.float32) / 255 - 0.286) / 0.353


class Worker:
    def __init__(self, setting: dict, say: Callable[[dict], None]):
        self._setting, self._say = setting, say
        self._images, self._labels = data.load("train", setting["data"])
        self._shards = data.Shards.of(setting, len(self._labels))
        self._step = 0
        self._updates = 0.0  # that _take_updates() has given
        framework = setting["framework"]
        module = importlib.import_module(f"lab.{framework}_trainer")
        self.trainer = getattr(module, _TRAINERS[framework])(setting)

    def gradient_bytes(self) -> int:
        return sum(array.nbytes for array in self.trainer.parameters())

    def _train_step(self) -> float:
        index = self._shards.indices(self._step)
        self._step += 1
        return self.trainer.train_step(normalized(self._images[index]), self._labels[index].astype(np.int32))

    def _take_updates(self) -> float:
        before, self._updates = self._updates, self.trainer.updates
        return self._updates - before

    def _reached(self, step: int) -> None:
        if self._setting["rank"] == 0:
            self._say({"step": step})

    def run(self, warmup: int, steps: int) -> dict:
        return timed_steps(warmup, steps, self._train_step, self.trainer.settle, self._take_updates, self._reached)

    def evaluate(self) -> dict:
        """On this rank's share of the held-out samples; together the ranks see each sample once."""
        images, labels = (part[self._setting["rank"] :: self._setting["world"]] for part in self._held_out())
        correct, total = 0, 0.0
        for first in range(0, len(labels), _EVALUATED_AT_ONCE):
            some = slice(first, first + _EVALUATED_AT_ONCE)
            scores = self.trainer.scores(normalized(images[some])).astype(np.float64)
            scores -= scores.max(axis=1, keepdims=True)
            total += float(np.sum(np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(len(scores)), labels[some]]))
            correct += int((scores.argmax(axis=1) == labels[some]).sum())
        return {"correct": correct, "seen": len(labels), "loss_sum": total}

    def _held_out(self) -> tuple[np.ndarray, np.ndarray]:
        return data.load("t10k", self._setting["data"])

    def digest(self) -> str:
        digest = hashlib.sha256()
        for array in self.trainer.parameters():
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer

    def say(message: dict) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    memory.keep()
    worker = Worker(json.loads(sys.argv[1]), say)
    say({"ready": worker.gradient_bytes()})
    for line in sys.stdin:
        command = json.loads(line)
        if "run" in command:
            say(worker.run(**command["run"]))
        elif "evaluate" in command:
            say(worker.evaluate())
        elif "hash" in command:
            say({"sha256": worker.digest()})
        else:
            break
    worker.trainer.close()


if __name__ == "__main__":
    main()
