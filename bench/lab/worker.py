"""One training process of the lab. The controller writes commands and reads results, one JSON object a line.

    {"run": {"warmup": 2, "steps": 20}}  ->  {"step_ms": [...], "losses": [...], "cpu_ms": ..., "updates": ...}
    {"evaluate": true}                   ->  {"correct": ..., "seen": ...}
    {"hash": true}                       ->  {"sha256": "..."}
    {"stop": true}                       ends it

While it runs, rank 0 tells each step: {"step": 3}. A worker is forked into its node with its setting: kind (compute,
ddp, deft), model, data, batch, rank, world, learning_rate, seed, for ddp store and bucket_mib, for deft packages.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import sys
import time
from typing import TextIO

import torch
import torch._dynamo  # the first optimizer imports it, for seconds; here it is imported once, before the forks
import torch.distributed
import torch.nn.parallel
from torch import nn
from torch.nn import functional

from lab import data
from lab.models import MODELS


class Updates:
    """Counts how often the parameters are updated, whole or a layer at a time: each update writes a parameter once."""

    def __init__(self, model: nn.Module):
        self._parameters = list(model.parameters())
        self._seen = self._versions()

    def _versions(self) -> list[int]:
        return [parameter._version for parameter in self._parameters]

    def take(self) -> float:
        """The updates since the last call."""
        before, self._seen = self._seen, self._versions()
        written = [now - then for now, then in zip(self._seen, before, strict=True)]
        total = sum(p.numel() for p in self._parameters)
        return sum(count * p.numel() for count, p in zip(written, self._parameters, strict=True)) / total


class Trainer:
    """Trains alone; the other kinds of training change only how gradients are averaged."""

    def __init__(self, setting: dict, answers: TextIO):
        torch.manual_seed(setting["seed"])
        self._setting, self._answers = setting, answers
        self.model = MODELS[setting["model"]]()
        self.updates = Updates(self.model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=setting["learning_rate"], momentum=0.9)
        self._images, self._labels = load("train", setting["data"])
        self._shards = data.Shards(len(self._labels), setting["batch"], setting["rank"], setting["world"])
        self._step = 0
        self.wrap()

    def wrap(self) -> None:
        """Puts the model or the optimizer into the scheme's wrapper."""

    def settle(self) -> None:
        """Waits for everything that training has started."""

    def close(self) -> None:
        """Leaves the other workers in peace."""

    def _batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        index = torch.from_numpy(self._shards.indices(self._step))
        self._step += 1
        return _normalized(self._images[index]), self._labels[index]

    def train_step(self) -> float:
        images, labels = self._batch()
        self.optimizer.zero_grad()
        loss = functional.cross_entropy(self.model(images), labels)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def run(self, warmup: int, steps: int) -> dict:
        for _ in range(warmup):
            self.train_step()
        self.settle()
        self.updates.take()
        step_ms, losses = [], []
        cpu, last = time.process_time(), time.perf_counter()
        for step in range(steps):
            losses.append(self.train_step())
            if step + 1 == steps:
                self.settle()
            now = time.perf_counter()
            step_ms.append(1e3 * (now - last))
            last = now
            if self._setting["rank"] == 0:
                self.say({"step": step + 1})
        cpu_ms = 1e3 * (time.process_time() - cpu)
        return {"step_ms": step_ms, "losses": losses, "cpu_ms": cpu_ms, "updates": self.updates.take()}

    def evaluate(self) -> dict:
        """On this rank's share of the test images; together the ranks see each image once."""
        self.settle()
        images, labels = load("t10k", self._setting["data"])
        own = slice(self._setting["rank"], None, self._setting["world"])
        images, labels = images[own], labels[own]
        module, correct = self.plain_model(), 0
        module.eval()
        with torch.no_grad():
            for chunk, truth in zip(images.split(250), labels.split(250), strict=True):
                correct += int((module(_normalized(chunk)).argmax(1) == truth).sum())
        module.train()
        return {"correct": correct, "seen": len(labels)}

    def say(self, message: dict) -> None:
        self._answers.write(json.dumps(message) + "\n")
        self._answers.flush()

    def plain_model(self) -> nn.Module:
        return self.model

    def digest(self) -> str:
        self.settle()
        digest = hashlib.sha256()
        for parameter in self.plain_model().parameters():
            digest.update(parameter.detach().contiguous().numpy().tobytes())
        return digest.hexdigest()


class DdpTrainer(Trainer):
    def wrap(self) -> None:
        setting = self._setting
        torch.distributed.init_process_group(
            "gloo", f"tcp://{setting['store']}", rank=setting["rank"], world_size=setting["world"]
        )
        parallel = torch.nn.parallel.DistributedDataParallel
        self.model = parallel(self.model, bucket_cap_mb=setting["bucket_mib"], broadcast_buffers=False)

    def plain_model(self) -> nn.Module:
        return self.model.module

    def close(self) -> None:
        torch.distributed.destroy_process_group()


class DeftTrainer(Trainer):
    def wrap(self) -> None:
        sys.path.insert(0, self._setting["packages"])
        import deft.torch as deft

        deft.init()
        deft.broadcast_parameters(self.model.state_dict(), root_rank=0)
        self.optimizer = deft.DistributedOptimizer(self.optimizer, named_parameters=self.model.named_parameters())

    def settle(self) -> None:
        self.optimizer.flush()

    def close(self) -> None:
        import deft.torch as deft

        deft.shutdown()


TRAINERS = {"compute": Trainer, "ddp": DdpTrainer, "deft": DeftTrainer}


@functools.cache
def load(part: str, folder: str | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Called before the forks, it reads the files once for all workers."""
    images, labels = data.load(part, folder)
    return torch.from_numpy(images.copy()), torch.from_numpy(labels.astype("int64"))


def _normalized(images: torch.Tensor) -> torch.Tensor:
    return images.unsqueeze(1).float().div_(255).sub_(0.286).div_(0.353)


def serve(setting: dict, commands: int, answers: int) -> None:
    """The life of a worker."""
    torch.set_num_threads(1)
    trainer = TRAINERS[setting["kind"]](setting, os.fdopen(answers, "w"))
    trainer.say({"ready": sum(p.numel() * p.element_size() for p in trainer.model.parameters())})
    for line in os.fdopen(commands):
        command = json.loads(line)
        if "run" in command:
            trainer.say(trainer.run(**command["run"]))
        elif "evaluate" in command:
            trainer.say(trainer.evaluate())
        elif "hash" in command:
            trainer.say({"sha256": trainer.digest()})
        else:
            break
    trainer.close()
