"""One training process of the lab. The controller writes commands and reads results, one JSON object a line.

    {"run": {"warmup": 2, "steps": 20}}  ->  {"step_ms": [...], "losses": [...], "cpu_ms": ..., "updates": ...,
                                              "wall_s": ...}
    {"evaluate": true}                   ->  {"correct": ..., "seen": ..., "loss_sum": ...}
    {"layers": {"steps": 5}}             ->  {"layers": [...]}, of a worker that trains alone
    {"links": {"part_bytes": 65536}}     ->  {"links": {...}}, of lab/link_worker.py's
    {"hash": true}                       ->  {"sha256": "..."}
    {"stop": true}                       ends it

While it runs, rank 0 tells each step: {"step": 3}. A worker is forked into its node with its setting (lab/trainers.py).
"""

from __future__ import annotations

import json
import os

import torch

from lab import memory
from lab.link_worker import Probe
from lab.trainers import TRAINERS

KINDS = {**TRAINERS, "links": Probe}


def serve(setting: dict, commands: int, answers: int) -> None:
    """The life of a worker."""
    torch.set_num_threads(1)
    memory.keep()
    stream = os.fdopen(answers, "w")

    def say(message: dict) -> None:
        stream.write(json.dumps(message) + "\n")
        stream.flush()

    trainer = KINDS[setting["kind"]](setting, say)
    say({"ready": trainer.gradient_bytes})
    for line in os.fdopen(commands):
        command = json.loads(line)
        if "run" in command:
            say(trainer.run(**command["run"]))
        elif "evaluate" in command:
            say(trainer.evaluate())
        elif "layers" in command:
            say(trainer.measure_layers(**command["layers"]))
        elif "links" in command:
            say({"links": trainer.times(**command["links"])})
        elif "hash" in command:
            say({"sha256": trainer.digest()})
        else:
            break
    trainer.close()
