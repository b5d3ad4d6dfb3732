"""A long training of small tensors on two daemons: memory, descriptors, threads and queues stay what they are.

    figures = long_training(steps=1_000_000, policy="auto")
    figures["grown"]                  # what grew, in words: nothing

A day of training has some million steps.
"""

import os
import time
from dataclasses import dataclass

import numpy as np
from cluster import Cluster
from held import held
from hostile import memory_kib
from soak_crowd import Forked, take_environment
from soak_field import WORKING_THREADS, ask
from soak_worker import check, deft, floats, tensors

SIZES = (256, 16)
SMALL = 8
COLLECTIVE_EVERY = 10
SAMPLES = 20
WARM = 12  # so many samples may grow: buffers fill, the ring of the newest events with some 10,000 steps
ROOM_KIB = 1024  # for what the allocator keeps
ROOM_DESCRIPTORS = 2  # of questions, which the daemon closes a moment later


@dataclass
class Sample:
    step: int
    memory_kib: list[int]  # of daemons and workers
    held: list[tuple[int, int]]  # descriptors and threads
    arena_bytes: list[int]  # of daemons
    queued: int  # launches that have not ended


def train(output: int, steps: int) -> None:
    session = deft.open()
    group = session.declare("small", tensors(SIZES))
    rank, size = session.rank, session.size
    views, loss = [floats(group, tensor) for tensor in range(len(SIZES))], np.zeros(SMALL, np.float32)
    every = steps // SAMPLES
    for step in range(steps):
        session.stage(deft.FORWARD, step)
        session.stage(deft.BACKWARD, step)
        for tensor, view in enumerate(views):
            view[:] = rank + step % 5
            group.ready(tensor, 1, step)
        if step % COLLECTIVE_EVERY == 0:
            loss[:] = step % 7
            session.allreduce("loss", loss.ctypes.data, SMALL, deft.FLOAT32).finish(loss.ctypes.data)
            check(step, "the loss", loss, size * (step % 7))
            session.set("newest", str(step).encode())
        group.wait(0, len(SIZES), step)
        for tensor, view in enumerate(views):
            check(step, f"tensor {tensor}", view, size * (size - 1) // 2 + size * (step % 5))
        if step % every == every - 1:
            os.write(output, b".")
    session.close()


def sample(cluster: Cluster, workers: list[Forked], step: int) -> Sample:
    statuses = [ask(cluster.socket(node)) for node in range(cluster.nodes)]
    processes = [daemon.pid for daemon in cluster.daemons] + [worker.pid for worker in workers]
    queued = sum(job.get("leader", {}).get("outstanding", 0) for status in statuses for job in status["jobs"])
    return Sample(
        step,
        [memory_kib(pid) for pid in processes],
        [held(pid) for pid in processes],
        [status["memory_bytes"] for status in statuses],
        queued,
    )


def grown(samples: list[Sample]) -> list[str]:
    """What is more at the end than when everything was warm, in words."""
    begin, end = samples[WARM], samples[-1]
    names = ["daemon 0", "daemon 1", "worker 0", "worker 1"]
    words = []
    for name, before, after in zip(names, begin.memory_kib, end.memory_kib, strict=True):
        if after > before + ROOM_KIB:
            words.append(f"{name}: memory from {before} KiB after {begin.step} steps to {after} KiB")
    for name, before, after in zip(names, begin.held, end.held, strict=True):
        # To answer ask(), a daemon may start threads that end a moment later.
        if after[0] > before[0] + ROOM_DESCRIPTORS or after[1] > before[1] + WORKING_THREADS:
            words.append(f"{name}: (descriptors, threads) from {before} to {after}")
    if end.arena_bytes != begin.arena_bytes:
        words.append(f"shared memory from {begin.arena_bytes} to {end.arena_bytes} bytes")
    if end.queued > 64:
        words.append(f"{end.queued} launches wait")
    return words


def long_training(steps: int, policy: str = "auto", show=lambda sample: None) -> dict:
    with Cluster(2, timeout="60s", policy=policy) as cluster:

        def run(output: int, rank: int) -> None:
            take_environment(cluster.environment(rank, 1))
            train(output, steps)

        began = time.monotonic()
        workers = [Forked(lambda output, r=rank: run(output, r)) for rank in range(2)]
        samples = []
        for number in range(1, SAMPLES):  # at the last one workers may be leaving
            assert os.read(workers[0].output, 1), f"rank 0 ended before step {number * steps // SAMPLES}"
            samples.append(sample(cluster, workers, number * steps // SAMPLES))
            show(samples[-1])
        for worker in workers:
            worker.finish()
        seconds = time.monotonic() - began
        return {"steps": steps, "step_us": round(seconds / steps * 1e6), "grown": grown(samples)}
